-- Keys of insert mode in buffers of the server. A key with another mapping is not changed.

local options = require("dg_lsp.options")

local M = {}

--- Runs the normal action of a key while no ghost text is shown.
local function run_default(key)
  if key:lower() == "<tab>" and vim.snippet and vim.snippet.active({ direction = 1 }) then
    vim.snippet.jump(1)
  else
    -- before the keys that were typed after it
    vim.api.nvim_feedkeys(vim.keycode(key), "in", false)
  end
end

--- Whether the key has no mapping, or only a default mapping of Neovim.
local function is_free(key)
  local map = vim.fn.maparg(key, "i", false, true)
  return vim.tbl_isempty(map)
    or (map.desc or ""):find("dg-lsp", 1, true) ~= nil
    or (map.desc or ""):find("vim.snippet", 1, true) ~= nil
end

---@param bufnr integer
function M.map(bufnr)
  local keys = options.get().keys
  vim.api.nvim_buf_call(bufnr, function()
    for action, key in pairs(keys or {}) do
      if key and key ~= "" and is_free(key) then
        vim.keymap.set("i", key, function()
          if not require("dg_lsp")[action]() then
            run_default(key)
          end
        end, { buffer = bufnr, desc = "dg-lsp: " .. action:gsub("_", " ") })
      end
    end
  end)
end

return M
