-- Functions for key mappings, commands and status lines.

local M = {}

local function ghost_text()
  return require("dg_lsp.ghost_text")
end

--- Accepts the ghost text; without one jumps to the next edit that is shown, or makes it. Works in `expr` mappings.
---@return boolean is_shown
function M.accept()
  return ghost_text().accept(vim.api.nvim_get_current_buf(), "all") or require("dg_lsp.next_edit").accept()
end

--- Accepts its next word.
---@return boolean is_shown
function M.accept_word()
  return ghost_text().accept(vim.api.nvim_get_current_buf(), "word")
end

--- Accepts it up to the end of its line.
---@return boolean is_shown
function M.accept_line()
  return ghost_text().accept(vim.api.nvim_get_current_buf(), "line")
end

---@return boolean is_shown
function M.dismiss()
  local is_ghost_text = ghost_text().dismiss(vim.api.nvim_get_current_buf())
  return require("dg_lsp.next_edit").dismiss() or is_ghost_text
end

--- Shows another suggestion; requests up to three if there is only one.
---@param step? integer
---@return boolean
function M.next(step)
  local bufnr = vim.api.nvim_get_current_buf()
  local current = ghost_text().current(bufnr)
  if current and #ghost_text().all(bufnr) > 1 then
    ghost_text().choose(bufnr, step or 1)
  else
    local rest = current and require("dg_lsp.suggestion").rest(current)
    require("dg_lsp.requests").invoke(bufnr, rest)
  end
  return true
end

---@return boolean
function M.previous()
  return M.next(-1)
end

--- Requests a completion at the cursor, also if typing brings none.
---@return boolean
function M.trigger()
  require("dg_lsp.requests").invoke(vim.api.nvim_get_current_buf())
  return true
end

function M.toggle()
  require("dg_lsp.attachment").toggle()
end

--- Turns ghost text off for some minutes.
---@param minutes? number 5 by default
function M.snooze(minutes)
  require("dg_lsp.attachment").snooze(minutes)
end

--- A short text for a status line; empty without a server.
---@return string
function M.status()
  local line = require("dg_lsp.status").line(vim.api.nvim_get_current_buf())
  -- lualine evaluates it: a title may quote a file, whose %{...} would be executed
  return (line:gsub("%%", "％"))
end

return M
