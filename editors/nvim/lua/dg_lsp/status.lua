-- The status that the server reports, and the running rewrites.

local client_of = require("dg_lsp.client")

local M = {}

---@type table<integer, table> by client
local statuses = {}
---@type table<integer, table<string, string>> titles of running rewrites, by client and token
local running = {}

local function changed()
  vim.api.nvim_exec_autocmds("User", { pattern = "DgLspStatus", modeline = false })
  vim.cmd.redrawstatus()
end

---@param client_id integer
---@param status table see `didChangeStatus` in docs/editors/neovim.md
function M.set(client_id, status)
  statuses[client_id] = status
  changed()
end

---@param data { client_id: integer, params: { token: string, value: table } }
function M.progress(data)
  local client = vim.lsp.get_client_by_id(data.client_id)
  if not client or client.name ~= client_of.NAME then
    return
  end
  local titles = running[data.client_id] or {}
  running[data.client_id] = titles
  local token, value = data.params.token, data.params.value
  if value.kind == "end" then
    titles[token] = nil
  elseif value.kind == "begin" then
    titles[token] = value.title
  elseif titles[token] and value.message then
    -- a report may arrive after the end
    titles[token] = vim.split(titles[token], " · ")[1] .. " · " .. value.message
  end
  changed()
end

--- Stops all rewrites.
function M.cancel()
  local num_running = 0
  for client_id, titles in pairs(running) do
    local client = vim.lsp.get_client_by_id(client_id)
    for token in pairs(titles) do
      if client then
        num_running = num_running + 1
        client_of.notify(client, "window/workDoneProgress/cancel", { token = token })
      end
    end
  end
  if num_running == 0 then
    vim.notify("dg-lsp: no rewrite is running", vim.log.levels.WARN)
  end
end

---@param bufnr integer
---@return table? status, string? title of a running rewrite
function M.of(bufnr)
  local client = client_of.of(bufnr)
  if not client then
    return nil, nil
  end
  local _, title = next(running[client.id] or {})
  return statuses[client.id] or {}, title
end

---@param bufnr integer
---@return string
function M.line(bufnr)
  local status, title = M.of(bufnr)
  if not status then
    return ""
  elseif title then
    return title
  end
  local ours = status.dgLsp or {}
  local state = require("dg_lsp.attachment").off() or status.busy and "busy" or ours.state or "starting"
  local parts = { "dg-lsp", state }
  if ours.model and ours.model ~= "" then
    table.insert(parts, ours.model)
  end
  if type(ours.lastMs) == "number" then
    table.insert(parts, ("%.0f ms"):format(ours.lastMs))
  end
  if state == "ready" and status.message and status.message ~= "" then
    table.insert(parts, status.message) -- why a requested completion is missing
  end
  local today = ours.today
  if today and today.usefulEdits > 0 then
    table.insert(parts, ("%d useful today, median %.0f ms"):format(today.usefulEdits, today.medianMs))
  end
  return table.concat(parts, " · ")
end

--- :DgStatus
function M.print()
  local bufnr = vim.api.nvim_get_current_buf()
  if not client_of.running(bufnr) then
    return
  end
  local status = M.of(bufnr)
  local lines, ours = { M.line(bufnr) }, status.dgLsp or {}
  if status.message and status.message ~= "" and ours.state ~= "ready" then
    table.insert(lines, status.message)
  end
  if ours.rewriteModel then
    table.insert(lines, "Rewrites: " .. ours.rewriteModel)
  end
  if ours.shown then
    table.insert(lines, ("%d shown, %d accepted in this session"):format(ours.shown, ours.accepted))
  end
  vim.notify(table.concat(lines, "\n"))
end

--- :DgWhy
function M.explain()
  local bufnr = vim.api.nvim_get_current_buf()
  local client = client_of.running(bufnr)
  if not client then
    return
  end
  local off = require("dg_lsp.attachment").off()
  if off then
    vim.notify(("dg-lsp: ghost text is %s; :DgToggle turns it on"):format(off))
    return
  end
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  client_of.request(client, "dg-lsp/why", params, function(err, found)
    if err then
      vim.notify("dg-lsp: " .. err.message, vim.log.levels.ERROR)
      return
    end
    vim.notify("dg-lsp: " .. found.sentence .. " " .. found.nextEdit .. (found.text ~= "" and "\n" .. found.text or ""))
  end, bufnr)
end

return M
