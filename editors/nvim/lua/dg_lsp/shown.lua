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

local function clear_native(bufnr)
  local namespace = native and vim.api.nvim_get_namespaces()["nvim.lsp.inline_completion"]
  if namespace then
    vim.api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  end
end

--- Has Neovim forget what it draws, too, then calls `act`; its own scheduling is kept to.
local function without_native(bufnr, act)
  local is_there = native
    and native.get({
      bufnr = bufnr,
      on_accept = function(other)
        local ours = client_of.of(bufnr)
        if ours and other.client_id ~= ours.id then
          return other
        end
        act()
      end,
    })
  if not is_there then
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
  if not native then
    M.refresh(bufnr)
    return
  end
  without_native(bufnr, function()
    if shown[bufnr] then
      M.refresh(bufnr)
    end
  end)
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

--- Takes the fill or a part of it, once the key that asks for it is through.
---@param bufnr integer
---@param how "all"|"word"|"line"
---@return boolean is_there
function M.take(bufnr, how)
  if not M.current(bufnr) then
    return false
  end
  without_native(bufnr, function()
    local item = M.current(bufnr)
    if not item then
      return
    end
    if item_of.take(item, how) then
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
  end)
  return true
end

---@param bufnr integer
---@return boolean is_there
function M.dismiss(bufnr)
  if not M.current(bufnr) then
    return false
  end
  without_native(bufnr, function()
    M.forget(bufnr)
  end)
  return true
end

return M
