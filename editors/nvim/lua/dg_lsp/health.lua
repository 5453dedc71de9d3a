-- :checkhealth dg_lsp

local client_of = require("dg_lsp.client")
local options = require("dg_lsp.options")

local M = {}

local DOCTOR_MS = 60000
-- the exit code of `vim.system` after that time
local TIMEOUT = 124

--- The command that starts the server, and the part of it before `lsp`.
local function command()
  local config = vim.lsp.config and vim.lsp.config[client_of.NAME]
  local cmd = config and config.cmd or vim.tbl_get(vim.g.dg_lsp or {}, "config", "cmd")
  cmd = type(cmd) == "table" and cmd or { "dg-lsp", "lsp" }
  for index, word in ipairs(cmd) do
    if word == "lsp" then
      return cmd, vim.list_slice(cmd, 1, index - 1)
    end
  end
  return cmd, nil
end

--- Shows what `dg-lsp doctor` printed: it writes problems and warnings, with their solutions, to standard output.
---@param done vim.SystemCompleted
---@param program string
local function report(done, program)
  local num_problems = 0
  for _, line in ipairs(vim.split(vim.trim(done.stdout or ""), "\n", { trimempty = true })) do
    local kind, text = line:match("^(%a+): (.*)")
    if kind == "problem" then
      num_problems = num_problems + 1
      vim.health.error(text, { ("solve it, then run: %s"):format(program) })
    elseif kind == "warning" then
      vim.health.warn(text)
    else
      vim.health.info(line)
    end
  end
  if done.code ~= 0 and num_problems == 0 then
    local reason = done.code == TIMEOUT and ("no result within %d s"):format(DOCTOR_MS / 1000)
      or ("exit code %d\n%s"):format(done.code, vim.trim(done.stderr or ""))
    vim.health.error(("%s: %s"):format(program, reason), { "run it in a terminal" })
  end
end

local function check_program()
  local cmd, program = command()
  if vim.fn.executable(cmd[1]) == 0 then
    vim.health.error(cmd[1] .. " is not on the PATH", {
      "install it, in a clone of its repository: uv tool install . (or pipx install .)",
      'or set its path: vim.lsp.config("dg_lsp", { cmd = { "/path/to/dg-lsp", "lsp", "--stdio" } })',
    })
    return
  end
  vim.health.ok(vim.fn.exepath(cmd[1]))
  if not program then
    vim.health.info("the command is changed, so `dg-lsp doctor` is not run")
    return
  end
  table.insert(program, "doctor")
  local is_done, outcome = pcall(function()
    return vim.system(program, { text = true, cwd = vim.uv.os_homedir() }):wait(DOCTOR_MS)
  end)
  if is_done then
    report(outcome, table.concat(program, " "))
  else
    vim.health.error(outcome)
  end
end

local function check_server()
  local clients = vim.lsp.get_clients({ name = client_of.NAME })
  if #clients == 0 then
    vim.health.warn("the server is not running: it starts with the first file that has a file type")
  end
  for _, client in ipairs(clients) do
    local bufnr = next(client.attached_buffers)
    local line = bufnr and require("dg_lsp.status").line(bufnr) or "no buffer"
    vim.health.ok(("server %d, positions in %s: %s"):format(client.id, client.offset_encoding, line))
    local status = bufnr and require("dg_lsp.status").of(bufnr) or {}
    if status.message and status.message ~= "" then
      vim.health.warn(status.message)
    end
    if not client.server_capabilities.inlineCompletionProvider then
      vim.health.error("it has no inline completion: another server has this name")
    end
  end
end

local function check_options()
  for _, name in ipairs(options.unknown()) do
    vim.health.warn(("vim.g.dg_lsp has an unknown option: %s"):format(name), { "see :help dg_lsp-options" })
  end
end

local function check_keys()
  for action, key in pairs(options.get().keys or {}) do
    if key and key ~= "" and not require("dg_lsp.keys").is_free(key) then
      vim.health.warn(
        ("%s has another mapping: %s has no key"):format(key, action),
        { ('set another one: vim.g.dg_lsp = { keys = { %s = "..." } }'):format(action) }
      )
    end
  end
end

function M.check()
  vim.health.start("dg_lsp")
  if vim.fn.has("nvim-0.10") == 0 then
    vim.health.error("Neovim 0.10 or later is required")
    return
  end
  vim.health.ok("Neovim " .. tostring(vim.version()))
  vim.health.info("ghost text is drawn by " .. (options.is_native() and "Neovim itself" or "this plugin"))
  check_program()
  check_server()
  check_options()
  check_keys()
end

return M
