-- The running server, with the calls of all supported Neovim versions.

local M = {}

M.NAME = "dg_lsp"

local HAS_METHODS = vim.fn.has("nvim-0.11") == 1

---@param bufnr integer
---@return vim.lsp.Client?
function M.of(bufnr)
  return vim.lsp.get_clients({ name = M.NAME, bufnr = bufnr })[1]
end

--- The running server; without one a warning names the command that shows the reason.
---@param bufnr integer
---@return vim.lsp.Client?
function M.running(bufnr)
  local client = M.of(bufnr)
  if not client then
    vim.notify("dg-lsp is not running in this buffer; :checkhealth dg_lsp shows the reason", vim.log.levels.WARN)
  end
  return client
end

--- Calls a function of a client: `client.notify(...)` up to 0.10, `client:notify(...)` later.
local function call(client, name, ...)
  if HAS_METHODS then
    return client[name](client, ...)
  end
  return client[name](...)
end

---@return integer? id
function M.request(client, method, params, handler, bufnr)
  local is_sent, id = call(client, "request", method, params, handler, bufnr)
  return is_sent and id or nil
end

function M.notify(client, method, params)
  call(client, "notify", method, params)
end

--- Runs a command of the server; the event `User DgLspDone` has the result, also if the server ends before.
---@param client vim.lsp.Client
---@param command string
---@param arguments any[]
---@param bufnr integer
function M.execute(client, command, arguments, bufnr)
  local ended = { applied = false, reason = "the server has ended" }
  local watch ---@type integer?
  local function done(data)
    if watch then
      vim.api.nvim_del_autocmd(watch)
      watch = nil
      vim.api.nvim_exec_autocmds("User", { pattern = "DgLspDone", modeline = false, data = data })
    end
  end
  watch = vim.api.nvim_create_autocmd("LspDetach", {
    callback = function(event)
      if event.data.client_id == client.id and call(client, "is_stopped") then
        done(ended)
      end
    end,
  })
  local params = { command = command, arguments = arguments }
  local id = M.request(client, "workspace/executeCommand", params, function(err, outcome)
    if err then
      vim.notify("dg-lsp: " .. err.message, vim.log.levels.ERROR)
      outcome = { applied = false, reason = err.message }
    end
    done(type(outcome) == "table" and outcome or {})
  end, bufnr)
  if not id then
    done(ended)
  end
end

--- Runs a command of the server and ignores the result.
---@param client vim.lsp.Client
---@param command lsp.Command
---@param bufnr integer
function M.run(client, command, bufnr)
  local params = { command = command.command, arguments = command.arguments }
  M.request(client, "workspace/executeCommand", params, function() end, bufnr)
end

--- Reports the document that the user edits, and the cursor.
---@param bufnr integer the current buffer
function M.focus(bufnr)
  local client = M.of(bufnr)
  if client then
    M.notify(client, "textDocument/didFocus", vim.lsp.util.make_position_params(0, client.offset_encoding))
  end
end

return M
