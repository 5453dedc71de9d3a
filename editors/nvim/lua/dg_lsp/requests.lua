-- Between whoever asks for fills, Neovim or this plugin, and the server: the newest request of a buffer cancels the one
-- before, the same one is not sent twice, and an answer that comes too late is dropped, unless the user has typed what
-- it says. Neovim 0.12.4 by itself does none of these: it would put a late answer where the cursor was.

local client_of = require("dg_lsp.client")
local item_of = require("dg_lsp.item")
local options = require("dg_lsp.options")
local positions = require("dg_lsp.positions")
local shown = require("dg_lsp.shown")

local M = {}

M.METHOD = "textDocument/inlineCompletion"

---@type table<integer, { id: integer?, key: string }>
local in_flight = {}
local wrapped = setmetatable({}, { __mode = "k" })

local group = vim.api.nvim_create_augroup("dg_lsp_shown", {})

--- What is shown follows the keys. Registered anew with each request: so it comes after Neovim's own drawing.
local function follow(bufnr)
  vim.api.nvim_clear_autocmds({ group = group, buffer = bufnr })
  vim.api.nvim_create_autocmd({ "CursorMovedI", "TextChangedI", "TextChangedP" }, {
    group = group,
    buffer = bufnr,
    callback = function()
      shown.refresh(bufnr)
    end,
  })
  vim.api.nvim_create_autocmd({ "InsertLeave", "BufLeave" }, {
    group = group,
    buffer = bufnr,
    callback = function()
      -- Neovim cancels on its own there, and does not call back for what was cancelled
      in_flight[bufnr] = nil
      shown.forget(bufnr)
    end,
  })
end

--- The item as it is to be put at the cursor as it is now.
local function moved(item)
  local rest, place = item_of.rest(item)
  local units = positions.units(place.line, place.col, item.client.offset_encoding)
  local past = positions.units(place.line, place.col + item.tail, item.client.offset_encoding)
  local range = {
    start = { line = place.row, character = units },
    ["end"] = { line = place.row, character = past },
  }
  return vim.tbl_extend("force", item.lsp, { insertText = rest, range = range })
end

--- What of an answer may be shown; nil drops it.
local function usable(client, place, tick, result)
  local bufnr = place.bufnr
  if vim.api.nvim_get_mode().mode:sub(1, 1) ~= "i" or type(result) ~= "table" then
    return nil
  end
  local now = item_of.place(bufnr)
  local is_late = vim.api.nvim_buf_get_changedtick(bufnr) ~= tick or not vim.deep_equal(now, place)
  local items = {}
  for _, one in ipairs(result.items or result) do
    local item = item_of.new(client, one, place)
    if item and item_of.rest(item) then
      table.insert(items, item)
    end
  end
  if #items > 0 then
    shown.set(bufnr, items, options.is_native())
  elseif is_late then
    return nil
  else
    shown.forget(bufnr)
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
    local bufnr = vim.uri_to_bufnr(params.textDocument.uri)
    local place, tick = item_of.place(bufnr), vim.api.nvim_buf_get_changedtick(bufnr)
    if not place then
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
    local mine = { key = key }
    in_flight[bufnr] = mine
    local is_sent, id = send(method, params, function(err, result)
      -- cancelled, or not wanted any longer: no trouble
      local is_newest = in_flight[bufnr] == mine
      if is_newest then
        in_flight[bufnr] = nil
      end
      if err or not is_newest or not vim.api.nvim_buf_is_valid(bufnr) then
        return callback(nil, nil)
      end
      callback(nil, usable(client, place, tick, result))
    end, on_reply)
    mine.id = id
    return is_sent, id
  end
end

--- Asks for this plugin's own ghost text.
---@param bufnr integer
---@param kind integer 1 when the user wants it, 2 when the plugin thinks so
---@param text_before? string what the user has seen already
function M.ask(bufnr, kind, text_before)
  local client = client_of.of(bufnr)
  if not (client and client.server_capabilities.inlineCompletionProvider) then
    return
  end
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  params.context = { triggerKind = kind }
  client_of.request(client, M.METHOD, params, function(_, result)
    if result and #result.items > 0 then
      shown.own(bufnr, text_before)
    end
  end, bufnr)
end

--- Whatever was asked for is not wanted any longer.
---@param bufnr integer
function M.cancel(bufnr)
  local before, client = in_flight[bufnr], client_of.of(bufnr)
  in_flight[bufnr] = nil
  if before and client then
    client_of.notify(client, "$/cancelRequest", { id = before.id })
  end
end

--- The server ended: none of its answers will come.
function M.forget()
  in_flight = {}
end

return M
