-- `vim.g.dg_lsp` over the defaults. How the server fills is not here: that is `init_options`, see docs/settings.md.

local M = {}

---@class dg_lsp.Options
---@field enable boolean whether the server starts by itself
---@field ghost_text "auto"|"native"|"own" who draws: Neovim 0.12's own inline completion, or this plugin
---@field debounce_ms integer how long typing has to rest until this plugin asks; Neovim's own has 200 of its own
---@field keys table<string, string>|false keys of insert mode, by the name of what they do
local DEFAULTS = {
  enable = true,
  ghost_text = "auto",
  debounce_ms = 75,
  keys = {
    accept = "<Tab>",
    accept_word = "<M-Right>",
    accept_line = "<M-Down>",
    next = "<M-]>",
    previous = "<M-[>",
    dismiss = "<C-]>",
  },
}

---@return dg_lsp.Options
function M.get()
  return vim.tbl_deep_extend("force", DEFAULTS, vim.g.dg_lsp or {})
end

--- Whether Neovim draws the ghost text.
function M.is_native()
  local wanted = M.get().ghost_text
  return vim.lsp.inline_completion ~= nil and wanted ~= "own"
end

return M
