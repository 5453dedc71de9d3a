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

--- The mapping of a key in the current buffer, in insert mode or another one; empty without one.
local function mapping(key, mode)
  return vim.fn.maparg(key, mode or "i", false, true)
end

local function is_ours(map)
  return (map.desc or ""):find("dg-lsp", 1, true) ~= nil
end

--- Whether the key has no mapping, or only ours or a default mapping of Neovim.
---@param key string
---@param mode? string
function M.is_free(key, mode)
  local map = mapping(key, mode)
  return vim.tbl_isempty(map) or is_ours(map) or (map.desc or ""):find("vim.snippet", 1, true) ~= nil
end

---@param bufnr integer
function M.map(bufnr)
  local keys = options.get().keys
  vim.api.nvim_buf_call(bufnr, function()
    for action, key in pairs(keys or {}) do
      if key and key ~= "" and require("dg_lsp")[action] and M.is_free(key) then
        vim.keymap.set("i", key, function()
          if not require("dg_lsp")[action]() then
            run_default(key)
          end
        end, { buffer = bufnr, desc = "dg-lsp: " .. action:gsub("_", " ") })
      end
    end
    -- next edits are shown in normal mode, too; without one the key keeps its meaning
    for _, action in ipairs({ "accept", "dismiss" }) do
      local key = (keys or {})[action]
      if key and key ~= "" and M.is_free(key, "n") then
        vim.keymap.set("n", key, function()
          return require("dg_lsp.next_edit")[action]() and "" or key
        end, { buffer = bufnr, expr = true, desc = "dg-lsp: " .. action .. " the next edit" })
      end
    end
  end)
end

local has_warned = false

--- Warns once a session if another mapping of the current buffer has the key that accepts ghost text. Called when ghost
--- text is shown, as some plugins map the key at the start of insert mode.
function M.warn_if_taken()
  local keys = options.get().keys
  local key = keys and keys.accept
  if has_warned or not key or key == "" or is_ours(mapping(key)) then
    return
  end
  has_warned = true
  vim.notify(
    ("dg-lsp: %s has another mapping, so it may not accept ghost text. "):format(key)
      .. 'Choose another key: vim.g.dg_lsp = { keys = { accept = "<C-y>" } }; '
      .. 'or accept = false, if your mapping calls require("dg_lsp").accept()',
    vim.log.levels.WARN
  )
end

return M
