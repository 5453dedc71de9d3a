-- Completion requests. This plugin sends them after its own pause, also where Neovim draws the ghost text: the newest
-- request of a buffer cancels the previous one, equal requests are sent once, and a late response is dropped unless the
-- user typed its beginning. Neovim 0.12.4 does none of these: it would insert a late response where the cursor was. Its
-- automatic requests, after a fixed pause, are not sent.

local client_of = require("dg_lsp.client")
local ghost_text = require("dg_lsp.ghost_text")
local options = require("dg_lsp.options")
local positions = require("dg_lsp.positions")
local suggestion = require("dg_lsp.suggestion")

local M = {}

M.METHOD = "textDocument/inlineCompletion"

local INVOKED, AUTOMATIC = 1, 2

---@type table<integer, { id: integer?, key: string }>
local in_flight = {}
local is_sending = false
local wrapped = setmetatable({}, { __mode = "k" })

local group = vim.api.nvim_create_augroup("dg_lsp_ghost_text", {})

--- Updates the ghost text after each key. Registered for each request, so that it runs after Neovim has drawn.
local function follow(bufnr)
  vim.api.nvim_clear_autocmds({ group = group, buffer = bufnr })
  vim.api.nvim_create_autocmd({ "CursorMovedI", "TextChangedI", "TextChangedP" }, {
    group = group,
    buffer = bufnr,
    callback = function()
      ghost_text.refresh(bufnr)
    end,
  })
  vim.api.nvim_create_autocmd({ "InsertLeave", "BufLeave" }, {
    group = group,
    buffer = bufnr,
    callback = function()
      -- Neovim cancels its request itself, and does not call back for a cancelled one
      in_flight[bufnr] = nil
      ghost_text.forget(bufnr)
    end,
  })
end

--- The item for the current cursor.
local function moved(item)
  local rest, position = suggestion.rest(item)
  local units = positions.units(position.line, position.col, item.client.offset_encoding)
  local to = positions.units(position.line, position.col + item.tail, item.client.offset_encoding)
  local range = {
    start = { line = position.row, character = units },
    ["end"] = { line = position.row, character = to },
  }
  return vim.tbl_extend("force", item.lsp, { insertText = rest, range = range })
end

--- The items of a response that still fit; nil drops the response.
local function usable(client, position, tick, result)
  local bufnr = position.bufnr
  if vim.api.nvim_get_mode().mode:sub(1, 1) ~= "i" or type(result) ~= "table" then
    return nil
  end
  local now = suggestion.position(bufnr)
  local is_late = vim.api.nvim_buf_get_changedtick(bufnr) ~= tick or not vim.deep_equal(now, position)
  local items = {}
  for _, one in ipairs(result.items or result) do
    local item = suggestion.new(client, one, position)
    if item and suggestion.rest(item) then
      table.insert(items, item)
    end
  end
  if #items > 0 then
    ghost_text.set(bufnr, items, options.is_native())
  elseif is_late then
    return nil
  else
    ghost_text.forget(bufnr)
  end
  return { items = vim.tbl_map(moved, items) }
end

---@param client vim.lsp.Client
function M.wrap(client)
  if wrapped[client.rpc] then
    return
  end
  wrapped[client.rpc] = true
  local send, notify = client.rpc.request, client.rpc.notify
  client.rpc.request = function(method, params, callback, on_reply)
    if method ~= M.METHOD then
      return send(method, params, callback, on_reply)
    end
    if params.context.triggerKind == AUTOMATIC and not is_sending then
      return false
    end
    local bufnr = vim.uri_to_bufnr(params.textDocument.uri)
    local position, tick = suggestion.position(bufnr), vim.api.nvim_buf_get_changedtick(bufnr)
    if not position then
      return false
    end
    follow(bufnr)
    local key = vim.inspect({ tick, params.position, params.context })
    local before = in_flight[bufnr]
    if before and before.key == key then
      return true, before.id
    elseif before and before.id then
      notify("$/cancelRequest", { id = before.id })
    end
    local current = { key = key }
    in_flight[bufnr] = current
    local is_sent, id = send(method, params, function(err, result)
      -- a cancelled or replaced request is not an error
      local is_newest = in_flight[bufnr] == current
      if is_newest then
        in_flight[bufnr] = nil
      end
      if err or not is_newest or not vim.api.nvim_buf_is_valid(bufnr) then
        return callback(nil, nil)
      end
      callback(nil, usable(client, position, tick, result))
    end, on_reply)
    current.id = id
    return is_sent, id
  end
end

---@param bufnr integer
---@param kind integer
---@param show fun(err: table?, result: table?, context: table)
local function send(bufnr, kind, show)
  local client = client_of.of(bufnr)
  if not (client and client.server_capabilities.inlineCompletionProvider) then
    return
  end
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  params.context = { triggerKind = kind }
  is_sending = true
  local is_done, err = pcall(client_of.request, client, M.METHOD, params, show, bufnr)
  is_sending = false
  assert(is_done, err)
end

--- Requests completions for a command of the user; this plugin draws them.
---@param bufnr integer
---@param text_before? string the visible suggestion, to show another one
function M.invoke(bufnr, text_before)
  send(bufnr, INVOKED, function(_, result)
    if result and #result.items > 0 then
      ghost_text.show_own(bufnr, text_before)
    end
  end)
end

--- Requests a completion while the user types.
---@param bufnr integer
function M.send(bufnr)
  send(bufnr, AUTOMATIC, function(err, result, context)
    if options.is_native() and ghost_text.show_native(bufnr, err, result, context) then
      return
    elseif result and #result.items > 0 then
      ghost_text.show_own(bufnr)
    end
  end)
end

--- Cancels the request of a buffer.
---@param bufnr integer
function M.cancel(bufnr)
  local before, client = in_flight[bufnr], client_of.of(bufnr)
  in_flight[bufnr] = nil
  if before and client then
    client_of.notify(client, "$/cancelRequest", { id = before.id })
  end
end

--- Discards all requests after the server ended.
function M.forget()
  in_flight = {}
end

return M
