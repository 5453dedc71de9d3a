-- The options in `vim.g.dg_lsp`, with defaults. Settings of the server are in `init_options`, see docs/settings.md.

local M = {}

---@class dg_lsp.Options
---@field enable boolean whether the server starts automatically
---@field ghost_text "auto"|"native"|"own" drawn by Neovim 0.12's inline completion, or by this plugin
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

--- Whether Neovim draws the ghost text.
function M.is_native()
  local choice = M.get().ghost_text
  return vim.lsp.inline_completion ~= nil and choice ~= "own"
end

return M
