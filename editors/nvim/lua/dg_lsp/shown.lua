-- What is shown in each buffer. Neovim 0.12 draws an answer itself; what is left after a part of it was taken, and
-- the choice among several, this plugin draws on all versions.

local client_of = require("dg_lsp.client")
local ghost = require("dg_lsp.ghost")
local item_of = require("dg_lsp.item")
local positions = require("dg_lsp.positions")

local M = {}

---@class dg_lsp.Shown
---@field items dg_lsp.Item[]
---@field index integer
---@field is_native boolean Neovim draws it

---@type table<integer, dg_lsp.Shown>
local shown = {}

local native = vim.lsp.inline_completion

local function native_namespace()
  return native and vim.api.nvim_get_namespaces()["nvim.lsp.inline_completion"]
end

local function clear_native(bufnr)
  local namespace = native_namespace()
  if namespace then
    vim.api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  end
end

--- What Neovim draws; another server's, perhaps.
local function drawn_by_native(bufnr)
  local mark = vim.api.nvim_buf_get_extmarks(bufnr, native_namespace(), 0, -1, { details = true })[1]
  if not mark then
    return nil
  end
  local lines = { mark[4].virt_text, unpack(mark[4].virt_lines or {}) }
  return table.concat(
    vim.tbl_map(function(chunks)
      return chunks[1][1]
    end, lines),
    "\n"
  )
end

--- Neovim forgets what it drew, an event later, and the request it was about to make with it: so it is woken again.
local function forget_native(bufnr)
  clear_native(bufnr)
  if native then
    native.get({
      bufnr = bufnr,
      on_accept = function()
        M.wake(bufnr)
      end,
    })
  end
end

--- Has Neovim ask, as after a key.
---@param bufnr integer
function M.wake(bufnr)
  if native and vim.api.nvim_get_mode().mode:sub(1, 1) == "i" then
    pcall(vim.api.nvim_exec_autocmds, "CursorMovedI", {
      group = "nvim.lsp.inline_completion:" .. bufnr,
      buffer = bufnr,
      modeline = false,
    })
  end
end

--- At once; or an event later, where an `expr` mapping allows no change.
local function unlocked(act)
  local is_done, err = pcall(act)
  if not is_done then
    assert(tostring(err):find("E565", 1, true), err)
    vim.schedule(act)
  end
end

local function draw(bufnr)
  local state = shown[bufnr]
  local rest, place = item_of.rest(state.items[state.index])
  if rest then
    local num = #state.items
    ghost.draw(place, rest, num > 1 and (" (%d/%d)"):format(state.index, num) or nil)
  end
end

---@param bufnr integer
---@param items dg_lsp.Item[]
---@param is_native boolean
function M.set(bufnr, items, is_native)
  ghost.clear(bufnr)
  shown[bufnr] = { items = items, index = 1, is_native = is_native }
  client_of.notify(items[1].client, "textDocument/didShowCompletion", { item = items[1].lsp })
  if not is_native then
    clear_native(bufnr)
    draw(bufnr)
  end
end

--- This plugin asked for what came: it draws it, too.
---@param bufnr integer
---@param text_before? string what the user has seen already: something else comes first
function M.own(bufnr, text_before)
  local state = shown[bufnr]
  state.is_native = false
  if #state.items > 1 and item_of.rest(state.items[1]) == text_before then
    state.index = 2
  end
  forget_native(bufnr)
  M.refresh(bufnr)
end

--- The fill that the user sees, if it still is one at the cursor.
---@param bufnr integer
---@return dg_lsp.Item?
function M.current(bufnr)
  local state = shown[bufnr]
  local item = state and state.items[state.index]
  return item and item_of.rest(item) and item or nil
end

--- All of them, to choose from.
---@param bufnr integer
---@return dg_lsp.Item[]
function M.all(bufnr)
  return shown[bufnr] and shown[bufnr].items or {}
end

---@param bufnr integer
function M.forget(bufnr)
  shown[bufnr] = nil
  ghost.clear(bufnr)
  clear_native(bufnr)
end

--- After a key: what was typed over is drawn shorter, what does not fit any longer is gone before the screen is drawn.
---@param bufnr integer
function M.refresh(bufnr)
  if not M.current(bufnr) then
    M.forget(bufnr)
  elseif not shown[bufnr].is_native then
    clear_native(bufnr)
    draw(bufnr)
  end
end

--- Shows another one of those that are there.
---@param bufnr integer
---@param step integer
function M.choose(bufnr, step)
  local state = shown[bufnr]
  state.index = (state.index - 1 + step) % #state.items + 1
  M.refresh(bufnr)
end

local function take(bufnr, how)
  local item = M.current(bufnr)
  if not item then
    return
  end
  local is_done = item_of.take(item, how)
  forget_native(bufnr)
  if is_done then
    M.forget(bufnr)
    if item.lsp.command then
      client_of.run(item.client, item.lsp.command, bufnr)
    end
  else
    local told = { item = item.lsp, acceptedLength = positions.utf16_length(item.before) }
    client_of.notify(item.client, "textDocument/didPartiallyAcceptCompletion", told)
    shown[bufnr] = { items = { item }, index = 1, is_native = false }
    M.refresh(bufnr)
  end
end

--- Takes the fill or a part of it.
---@param bufnr integer
---@param how "all"|"word"|"line"
---@return boolean is_there
function M.take(bufnr, how)
  local item = M.current(bufnr)
  if not item then
    return false
  end
  -- with keys waiting Neovim has not drawn the rest yet, but something that ends with it
  local drawn = shown[bufnr].is_native and drawn_by_native(bufnr)
  if drawn and not vim.endswith(drawn, item_of.rest(item)) then
    return native.get({ bufnr = bufnr })
  end
  unlocked(function()
    take(bufnr, how)
  end)
  return true
end

---@param bufnr integer
---@return boolean is_there
function M.dismiss(bufnr)
  if not M.current(bufnr) then
    return false
  end
  unlocked(function()
    M.forget(bufnr)
    if native then
      native.get({ bufnr = bufnr, on_accept = function() end })
    end
  end)
  return true
end

return M
