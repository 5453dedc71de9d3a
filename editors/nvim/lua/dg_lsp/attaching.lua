-- Attaches the plugin to buffers of the server, and starts a server that ended again.

local asking = require("dg_lsp.asking")
local client_of = require("dg_lsp.client")
local keys = require("dg_lsp.keys")
local options = require("dg_lsp.options")
local requests = require("dg_lsp.requests")
local shown = require("dg_lsp.shown")

local M = {}

local SIGTERM = 15
-- seconds before the first, second, ... restart within WITHIN_S
local PAUSES_S, WITHIN_S = { 0, 0, 0, 1, 2, 5, 15, 30 }, 180

M.is_on = true
---@type integer[] seconds
local exits = {}

---@param client_id integer
---@param bufnr integer
function M.attach(client_id, bufnr)
  local client = vim.lsp.get_client_by_id(client_id)
  if not client or client.name ~= client_of.NAME then
    return
  end
  requests.wrap(client)
  keys.map(bufnr)
  if options.is_native() then
    vim.lsp.inline_completion.enable(M.is_on, { bufnr = bufnr })
  else
    if vim.lsp.inline_completion then
      vim.lsp.inline_completion.enable(false, { client_id = client_id })
    end
    if M.is_on then
      asking.start(bufnr)
    end
  end
  -- Neovim counts the buffer among the client's only after this
  vim.schedule(function()
    if bufnr == vim.api.nvim_get_current_buf() then
      client_of.focus(bufnr)
      -- and asks after a key only: a server that comes while its user types would wait for the next one
      vim.schedule(function()
        shown.wake(bufnr)
      end)
    end
  end)
end

--- Ghost text on or off, in all buffers.
function M.toggle()
  M.is_on = not M.is_on
  for _, client in ipairs(vim.lsp.get_clients({ name = client_of.NAME })) do
    for bufnr in pairs(client.attached_buffers) do
      if options.is_native() then
        vim.lsp.inline_completion.enable(M.is_on, { bufnr = bufnr })
        shown.forget(bufnr)
      elseif M.is_on then
        asking.start(bufnr)
      else
        asking.stop(bufnr)
      end
    end
  end
  vim.notify("dg-lsp: ghost text is " .. (M.is_on and "on" or "off"))
end

--- Has the server start wherever one of its file types is edited.
function M.enable()
  if vim.lsp.enable then
    vim.lsp.enable(client_of.NAME)
    return
  end
  local file = vim.api.nvim_get_runtime_file("lsp/dg_lsp.lua", false)[1]
  local config = vim.tbl_deep_extend("force", dofile(file), (vim.g.dg_lsp or {}).config or {})
  config.name = client_of.NAME
  config.on_exit = M.on_exit
  config.capabilities = vim.tbl_deep_extend("force", vim.lsp.protocol.make_client_capabilities(), config.capabilities)
  -- Neovim 0.10 by itself has a server for each file that is in no project, and takes one that has just died
  local function is_same(client, wanted)
    return client.name == wanted.name and client.config.root_dir == wanted.root_dir and not client.is_stopped()
  end
  vim.api.nvim_create_autocmd("FileType", {
    group = vim.api.nvim_create_augroup("dg_lsp_enable", {}),
    pattern = config.filetypes,
    callback = function(event)
      config.root_dir = vim.fs.root(event.buf, config.root_markers)
      vim.lsp.start(config, { bufnr = event.buf, reuse_client = is_same })
    end,
  })
  if vim.v.vim_did_enter == 1 then
    vim.cmd("doautoall dg_lsp_enable FileType")
  end
end

--- Starts a server again that was not asked to leave; later and later if it ends again and again.
---@param code integer
---@param signal integer
function M.on_exit(code, signal)
  if (code == 0 and signal == 0) or signal == SIGTERM or vim.v.exiting ~= vim.NIL then
    return
  end
  vim.schedule(function()
    requests.forget()
    for _, bufnr in ipairs(vim.api.nvim_list_bufs()) do
      shown.forget(bufnr)
    end
    local now = os.time()
    exits = vim.tbl_filter(function(time)
      return now - time < WITHIN_S
    end, exits)
    table.insert(exits, now)
    local pause = PAUSES_S[math.min(#exits, #PAUSES_S)]
    if #exits == 1 then
      vim.notify(("dg-lsp ended (code %d, signal %d) and is started again"):format(code, signal), vim.log.levels.WARN)
    elseif #exits == #PAUSES_S then
      vim.notify("dg-lsp ends again and again; :checkhealth dg_lsp", vim.log.levels.ERROR)
    end
    vim.defer_fn(function()
      if not vim.lsp.is_enabled or vim.lsp.is_enabled(client_of.NAME) then
        M.enable()
      end
    end, 1000 * pause)
  end)
end

return M
