-- What keys, commands and status lines call.

local M = {}

local INVOKED = 1

local function shown()
  return require("dg_lsp.shown")
end

--- Takes the ghost text. Works in `expr` mappings.
---@return boolean is_there
function M.accept()
  return shown().take(vim.api.nvim_get_current_buf(), "all")
end

--- Takes its next word.
---@return boolean is_there
function M.accept_word()
  return shown().take(vim.api.nvim_get_current_buf(), "word")
end

--- Takes it up to the end of its line.
---@return boolean is_there
function M.accept_line()
  return shown().take(vim.api.nvim_get_current_buf(), "line")
end

---@return boolean is_there
function M.dismiss()
  return shown().dismiss(vim.api.nvim_get_current_buf())
end

--- Another fill at the same place; asks for up to three where there is but one.
---@param step? integer
---@return boolean
function M.next(step)
  local bufnr = vim.api.nvim_get_current_buf()
  local current = shown().current(bufnr)
  if current and #shown().all(bufnr) > 1 then
    shown().choose(bufnr, step or 1)
  else
    local rest = current and require("dg_lsp.item").rest(current)
    require("dg_lsp.requests").ask(bufnr, INVOKED, rest)
  end
  return true
end

---@return boolean
function M.previous()
  return M.next(-1)
end

function M.toggle()
  require("dg_lsp.attaching").toggle()
end

--- One short line for a status line; empty where the server is not.
---@return string
function M.status()
  return require("dg_lsp.status").line(vim.api.nvim_get_current_buf())
end

return M
