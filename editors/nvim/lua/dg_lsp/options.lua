-- The options in `vim.g.dg_lsp`, with defaults. Settings of the server are in `init_options`, see docs/settings.md.

local M = {}

---@class dg_lsp.Options
---@field enable boolean whether the server starts automatically
---@field ghost_text "auto"|"own" drawn by Neovim 0.12's inline completion, or by this plugin
---@field keys table<string, string>|false keys of insert mode by action
local DEFAULTS = {
  enable = true,
  ghost_text = "auto",
  keys = {
    accept = "<Tab>",
    accept_word = "<M-Right>",
    accept_line = "<M-Down>",
    next = "<M-]>",
    previous = "<M-[>",
    dismiss = "<C-]>",
    trigger = "<M-\\>",
  },
}

---@return dg_lsp.Options
function M.get()
  return vim.tbl_deep_extend("force", DEFAULTS, vim.g.dg_lsp or {})
end

--- The names in `vim.g.dg_lsp` that mean nothing.
---@return string[]
function M.unknown()
  local given = vim.g.dg_lsp or {}
  local names = {}
  for name in pairs(given) do
    if DEFAULTS[name] == nil and name ~= "config" then
      table.insert(names, name)
    end
  end
  for action in pairs(given.keys or {}) do
    if not DEFAULTS.keys[action] then
      table.insert(names, "keys." .. action)
    end
  end
  return names
end

--- Whether Neovim draws the ghost text.
function M.is_native()
  return vim.lsp.inline_completion ~= nil and M.get().ghost_text ~= "own"
end

return M
