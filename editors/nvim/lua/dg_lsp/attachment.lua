-- Attaches the plugin to buffers of the server, and restarts a server that ended.

local client_of = require("dg_lsp.client")
local ghost_text = require("dg_lsp.ghost_text")
local keys = require("dg_lsp.keys")
local next_edit = require("dg_lsp.next_edit")
local options = require("dg_lsp.options")
local requests = require("dg_lsp.requests")

local M = {}

local SIGTERM = 15
-- seconds before the first, second, ... restart within WITHIN_S
local PAUSES_S, WITHIN_S = { 0, 0, 0, 1, 2, 5, 15, 30 }, 180

local SNOOZE_MINUTES = 5
-- in typing before a request, as in VS Code; the server adds `completion.debounce_ms`
local PAUSE_MS = 50

M.is_on = true
---@type { timer: uv.uv_timer_t, until_s: integer }? the end of a pause of ghost text
local snooze
---@type integer[] seconds
local exits = {}

local request_group = vim.api.nvim_create_augroup("dg_lsp_requests", {})
---@type table<integer, uv.uv_timer_t>
local timers = {}

local function close(timer)
  if timer and not timer:is_closing() then
    timer:stop()
    timer:close()
  end
end

local function stop_timer(bufnr)
  close(timers[bufnr])
  timers[bufnr] = nil
end

local function request_soon(bufnr)
  stop_timer(bufnr)
  timers[bufnr] = vim.defer_fn(function()
    if vim.api.nvim_get_mode().mode:sub(1, 1) == "i" and vim.api.nvim_get_current_buf() == bufnr then
      requests.send(bufnr)
    end
  end, PAUSE_MS)
end

--- Requests completions while the user types.
---@param bufnr integer
local function start_requests(bufnr)
  vim.api.nvim_clear_autocmds({ group = request_group, buffer = bufnr })
  vim.api.nvim_create_autocmd({ "InsertEnter", "CursorMovedI", "TextChangedI", "TextChangedP" }, {
    group = request_group,
    buffer = bufnr,
    callback = function()
      request_soon(bufnr)
    end,
  })
  vim.api.nvim_create_autocmd({ "InsertLeave", "BufLeave" }, {
    group = request_group,
    buffer = bufnr,
    callback = function()
      stop_timer(bufnr)
      requests.cancel(bufnr)
    end,
  })
  -- the server may start after the first key
  if vim.api.nvim_get_mode().mode:sub(1, 1) == "i" and vim.api.nvim_get_current_buf() == bufnr then
    request_soon(bufnr)
  end
end

---@param bufnr integer
local function stop_requests(bufnr)
  vim.api.nvim_clear_autocmds({ group = request_group, buffer = bufnr })
  stop_timer(bufnr)
  requests.cancel(bufnr)
  ghost_text.forget(bufnr)
  next_edit.hide(bufnr)
end

---@param client_id integer
---@param bufnr integer
function M.attach(client_id, bufnr)
  local client = vim.lsp.get_client_by_id(client_id)
  if not client or client.name ~= client_of.NAME then
    return
  end
  requests.wrap(client)
  keys.map(bufnr)
  next_edit.attach(bufnr)
  if options.is_native() then
    vim.lsp.inline_completion.enable(M.is_on, { bufnr = bufnr })
  elseif vim.lsp.inline_completion then
    vim.lsp.inline_completion.enable(false, { client_id = client_id })
  end
  -- Neovim adds the buffer to the client only after this event
  vim.schedule(function()
    if M.is_on and vim.api.nvim_buf_is_valid(bufnr) then
      start_requests(bufnr)
    end
    if bufnr == vim.api.nvim_get_current_buf() then
      client_of.focus(bufnr)
    end
  end)
end

local function set_on(is_on)
  M.is_on = is_on
  close(snooze and snooze.timer)
  snooze = nil
  for _, client in ipairs(vim.lsp.get_clients({ name = client_of.NAME })) do
    for bufnr in pairs(client.attached_buffers) do
      if options.is_native() then
        vim.lsp.inline_completion.enable(is_on, { bufnr = bufnr })
      end
      local change = is_on and start_requests or stop_requests
      change(bufnr)
    end
  end
  vim.cmd.redrawstatus()
end

--- Turns ghost text, and next edits that are not requested, on or off in all buffers.
function M.toggle()
  set_on(not M.is_on)
  vim.notify("dg-lsp: ghost text is " .. (M.off() or "on"))
end

--- Turns ghost text off in all buffers for some minutes; `toggle` turns it on earlier.
---@param minutes? number 5 by default
function M.snooze(minutes)
  minutes = minutes or SNOOZE_MINUTES
  if type(minutes) ~= "number" or not (minutes > 0 and minutes <= 24 * 60) then
    vim.notify(("dg-lsp: %s is not a number of minutes, up to 1440"):format(minutes), vim.log.levels.ERROR)
    return
  elseif not M.is_on and not snooze then
    vim.notify("dg-lsp: ghost text is off; :DgToggle turns it on", vim.log.levels.WARN)
    return
  end
  set_on(false)
  local pause = { until_s = os.time() + math.ceil(60 * minutes) }
  pause.timer = vim.defer_fn(function()
    if snooze == pause then
      set_on(true)
    end
  end, math.ceil(60000 * minutes))
  snooze = pause
  vim.notify("dg-lsp: ghost text is " .. M.off())
end

--- Why automatic ghost text is off; nil if it is on.
---@return string?
function M.off()
  if snooze then
    return "off until " .. os.date("%H:%M", snooze.until_s)
  end
  return not M.is_on and "off" or nil
end

--- Starts the server for named buffers with a file type, or with one of its `filetypes` where the user sets these.
function M.enable()
  -- a buffer has no file type yet when it is added, unless `:write NAME` has named it; `:file NAME` is BufFilePost
  vim.api.nvim_create_autocmd({ "BufAdd", "BufFilePost" }, {
    group = vim.api.nvim_create_augroup("dg_lsp_name", {}),
    callback = function(event)
      if vim.bo[event.buf].filetype ~= "" and not client_of.of(event.buf) then
        M.enable()
      end
    end,
  })
  if vim.lsp.enable then
    vim.lsp.enable(client_of.NAME)
    return
  end
  local file = vim.api.nvim_get_runtime_file("lsp/dg_lsp.lua", false)[1]
  local config = vim.tbl_deep_extend("force", dofile(file), (vim.g.dg_lsp or {}).config or {})
  config.name = client_of.NAME
  config.on_exit = M.on_exit
  config.capabilities = vim.tbl_deep_extend("force", vim.lsp.protocol.make_client_capabilities(), config.capabilities)
  -- Neovim 0.10 would start a server for each file outside a project, and would reuse one that has just ended
  local function is_same(client, requested)
    return client.name == requested.name and client.config.root_dir == requested.root_dir and not client.is_stopped()
  end
  vim.api.nvim_create_autocmd("FileType", {
    group = vim.api.nvim_create_augroup("dg_lsp_enable", {}),
    pattern = config.filetypes,
    callback = function(event)
      if vim.bo[event.buf].buftype ~= "" or vim.api.nvim_buf_get_name(event.buf) == "" then
        return
      end
      config.root_dir = vim.fs.root(event.buf, config.root_markers)
      vim.lsp.start(config, { bufnr = event.buf, reuse_client = is_same })
    end,
  })
  if vim.v.vim_did_enter == 1 then
    vim.cmd("doautoall dg_lsp_enable FileType")
  end
end

--- Restarts a server that ended by itself, after growing pauses if it ends repeatedly.
---@param code integer
---@param signal integer
function M.on_exit(code, signal)
  if (code == 0 and signal == 0) or signal == SIGTERM or vim.v.exiting ~= vim.NIL then
    return
  end
  vim.schedule(function()
    requests.forget()
    for _, bufnr in ipairs(vim.api.nvim_list_bufs()) do
      ghost_text.forget(bufnr)
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
      vim.notify("dg-lsp ends repeatedly; :checkhealth dg_lsp shows the reason", vim.log.levels.ERROR)
    end
    vim.defer_fn(function()
      if not vim.lsp.is_enabled or vim.lsp.is_enabled(client_of.NAME) then
        M.enable()
      end
    end, 1000 * pause)
  end)
end

return M
