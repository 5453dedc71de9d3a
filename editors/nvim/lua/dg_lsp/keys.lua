-- Keys of insert mode, in buffers that the server has. A key that somebody else has mapped is left alone.

local options = require("dg_lsp.options")

local M = {}

--- What a key does while nothing is shown.
local function otherwise(key)
  if key:lower() == "<tab>" and vim.snippet and vim.snippet.active({ direction = 1 }) then
    vim.snippet.jump(1)
  else
    -- before whatever was typed after it
    vim.api.nvim_feedkeys(vim.keycode(key), "in", false)
  end
end

--- Whether the key is free, or only does what Neovim itself gives it.
local function is_free(key)
  local map = vim.fn.maparg(key, "i", false, true)
  return vim.tbl_isempty(map)
    or (map.desc or ""):find("dg-lsp", 1, true) ~= nil
    or (map.desc or ""):find("vim.snippet", 1, true) ~= nil
end

---@param bufnr integer
function M.map(bufnr)
  local wanted = options.get().keys
  vim.api.nvim_buf_call(bufnr, function()
    for action, key in pairs(wanted or {}) do
      if key and key ~= "" and is_free(key) then
        vim.keymap.set("i", key, function()
          if not require("dg_lsp")[action]() then
            otherwise(key)
          end
        end, { buffer = bufnr, desc = "dg-lsp: " .. action:gsub("_", " ") })
      end
    end
  end)
end

return M
