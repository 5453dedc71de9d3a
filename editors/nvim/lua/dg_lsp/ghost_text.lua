-- The ghost text of each buffer. Neovim 0.12 draws new suggestions itself; the rest of a partly accepted suggestion, and
-- other alternatives, are drawn by this plugin.

local client_of = require("dg_lsp.client")
local keys = require("dg_lsp.keys")
local positions = require("dg_lsp.positions")
local suggestion = require("dg_lsp.suggestion")

local M = {}

---@class dg_lsp.GhostText
---@field items dg_lsp.Suggestion[]
---@field index integer
---@field is_native boolean whether Neovim draws it

---@type table<integer, dg_lsp.GhostText>
local states = {}

local NAMESPACE = vim.api.nvim_create_namespace("dg_lsp")
local HIGHLIGHT = "DgLspGhost"

vim.api.nvim_set_hl(
  0,
  HIGHLIGHT,
  { default = true, link = vim.fn.hlexists("ComplHint") == 1 and "ComplHint" or "Comment" }
)

local function clear(bufnr)
  vim.api.nvim_buf_clear_namespace(bufnr, NAMESPACE, 0, -1)
end

--- Draws the rest of a suggestion after the cursor.
---@param position dg_lsp.Position
---@param rest string
---@param hint? string its number among several
local function draw_text(position, rest, hint)
  local lines = vim.split(rest, "\n", { plain = true })
  local chunks = vim.tbl_map(function(line)
    return { { line, HIGHLIGHT } }
  end, lines)
  if hint then
    table.insert(chunks[#chunks], { hint, "NonText" })
  end
  clear(position.bufnr)
  vim.api.nvim_buf_set_extmark(position.bufnr, NAMESPACE, position.row, position.col, {
    virt_text = chunks[1],
    virt_text_pos = "inline",
    virt_lines = #chunks > 1 and vim.list_slice(chunks, 2) or nil,
    hl_mode = "combine",
  })
end

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

--- The text that Neovim draws; it may be from another server.
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

--- Makes Neovim discard its ghost text.
local function forget_native(bufnr)
  clear_native(bufnr)
  if native then
    native.get({ bufnr = bufnr, on_accept = function() end })
  end
end

--- Passes a response to Neovim's inline completion, which draws it. Neovim has no public function for it.
---@param bufnr integer
---@return boolean is_drawn false if this Neovim has no such function, or does not draw in this buffer
function M.show_native(bufnr, err, result, context)
  local has_capabilities, capabilities = pcall(require, "vim.lsp._capability")
  local completor = has_capabilities and vim.tbl_get(capabilities, "all", "inline_completion", "active", bufnr)
  if not (completor and completor.handler and completor.client_state[context.client_id]) then
    return false
  end
  completor:handler(err, result, context)
  return true
end

--- Runs a function now, or later if an `expr` mapping forbids changes now.
local function run_when_allowed(act)
  local is_done, err = pcall(act)
  if not is_done then
    assert(tostring(err):find("E565", 1, true), err)
    vim.schedule(act)
  end
end

local function draw(bufnr)
  local state = states[bufnr]
  local rest, position = suggestion.rest(state.items[state.index])
  if rest then
    local num = #state.items
    draw_text(position, rest, num > 1 and (" (%d/%d)"):format(state.index, num) or nil)
  end
end

---@param bufnr integer
---@param items dg_lsp.Suggestion[]
---@param is_native boolean
function M.set(bufnr, items, is_native)
  clear(bufnr)
  states[bufnr] = { items = items, index = 1, is_native = is_native }
  client_of.notify(items[1].client, "textDocument/didShowCompletion", { item = items[1].lsp })
  keys.warn_if_taken()
  if not is_native then
    clear_native(bufnr)
    draw(bufnr)
  end
end

--- Draws the response to a request of this plugin.
---@param bufnr integer
---@param text_before? string the suggestion before: another one is shown first
function M.show_own(bufnr, text_before)
  local state = states[bufnr]
  state.is_native = false
  if #state.items > 1 and suggestion.rest(state.items[1]) == text_before then
    state.index = 2
  end
  forget_native(bufnr)
  M.refresh(bufnr)
end

--- The visible suggestion, if it still fits at the cursor.
---@param bufnr integer
---@return dg_lsp.Suggestion?
function M.current(bufnr)
  local state = states[bufnr]
  local item = state and state.items[state.index]
  return item and suggestion.rest(item) and item or nil
end

--- All suggestions of a buffer.
---@param bufnr integer
---@return dg_lsp.Suggestion[]
function M.all(bufnr)
  return states[bufnr] and states[bufnr].items or {}
end

---@param bufnr integer
function M.forget(bufnr)
  states[bufnr] = nil
  clear(bufnr)
  clear_native(bufnr)
end

--- Updates the ghost text after a key: shortens it, or removes it before the screen is drawn if it does not fit.
---@param bufnr integer
function M.refresh(bufnr)
  if not M.current(bufnr) then
    M.forget(bufnr)
  elseif not states[bufnr].is_native then
    clear_native(bufnr)
    draw(bufnr)
  end
end

--- Shows the next or another suggestion.
---@param bufnr integer
---@param step integer
function M.choose(bufnr, step)
  local state = states[bufnr]
  state.index = (state.index - 1 + step) % #state.items + 1
  M.refresh(bufnr)
end

local function accept(bufnr, unit)
  local item = M.current(bufnr)
  if not item then
    return
  end
  local is_done = suggestion.accept(item, unit)
  forget_native(bufnr)
  if is_done then
    M.forget(bufnr)
    if item.lsp.command then
      client_of.run(item.client, item.lsp.command, bufnr)
    end
  else
    local params = { item = item.lsp, acceptedLength = positions.utf16_length(item.before) }
    client_of.notify(item.client, "textDocument/didPartiallyAcceptCompletion", params)
    states[bufnr] = { items = { item }, index = 1, is_native = false }
    M.refresh(bufnr)
  end
end

--- Accepts the suggestion or a part of it.
---@param bufnr integer
---@param unit "all"|"word"|"line"
---@return boolean is_shown
function M.accept(bufnr, unit)
  local item = M.current(bufnr)
  if not item then
    return false
  end
  -- while keys are waiting, Neovim still shows a longer text that ends with the rest
  local drawn = states[bufnr].is_native and drawn_by_native(bufnr)
  if drawn and not vim.endswith(drawn, suggestion.rest(item)) then
    return native.get({ bufnr = bufnr })
  end
  run_when_allowed(function()
    accept(bufnr, unit)
  end)
  return true
end

---@param bufnr integer
---@return boolean was_shown
function M.dismiss(bufnr)
  if not M.current(bufnr) then
    return false
  end
  run_when_allowed(function()
    M.forget(bufnr)
    forget_native(bufnr)
  end)
  return true
end

return M
