-- When this plugin asks for fills: where Neovim has no inline completion, or is not to use it.

local options = require("dg_lsp.options")
local requests = require("dg_lsp.requests")
local shown = require("dg_lsp.shown")

local M = {}

local AUTOMATIC = 2
local group = vim.api.nvim_create_augroup("dg_lsp_asking", {})
---@type table<integer, uv.uv_timer_t>
local timers = {}

local function stop(bufnr)
  local timer = timers[bufnr]
  timers[bufnr] = nil
  if timer and not timer:is_closing() then
    timer:stop()
    timer:close()
  end
end

local function ask_soon(bufnr)
  stop(bufnr)
  timers[bufnr] = vim.defer_fn(function()
    if vim.api.nvim_get_mode().mode:sub(1, 1) == "i" and vim.api.nvim_get_current_buf() == bufnr then
      requests.ask(bufnr, AUTOMATIC)
    end
  end, options.get().debounce_ms)
end

---@param bufnr integer
function M.start(bufnr)
  vim.api.nvim_clear_autocmds({ group = group, buffer = bufnr })
  vim.api.nvim_create_autocmd({ "InsertEnter", "CursorMovedI", "TextChangedI", "TextChangedP" }, {
    group = group,
    buffer = bufnr,
    callback = function()
      ask_soon(bufnr)
    end,
  })
  vim.api.nvim_create_autocmd({ "InsertLeave", "BufLeave" }, {
    group = group,
    buffer = bufnr,
    callback = function()
      stop(bufnr)
      requests.cancel(bufnr)
    end,
  })
  -- the server may come after the first key
  if vim.api.nvim_get_mode().mode:sub(1, 1) == "i" and vim.api.nvim_get_current_buf() == bufnr then
    ask_soon(bufnr)
  end
end

---@param bufnr integer
function M.stop(bufnr)
  vim.api.nvim_clear_autocmds({ group = group, buffer = bufnr })
  stop(bufnr)
  requests.cancel(bufnr)
  shown.forget(bufnr)
end

return M
