-- Draws the rest of a fill after the cursor.

local M = {}

local NAMESPACE = vim.api.nvim_create_namespace("dg_lsp")
M.HIGHLIGHT = "DgLspGhost"

vim.api.nvim_set_hl(
  0,
  M.HIGHLIGHT,
  { default = true, link = vim.fn.hlexists("ComplHint") == 1 and "ComplHint" or "Comment" }
)

---@param place dg_lsp.Place
---@param rest string
---@param hint? string which of several it is
function M.draw(place, rest, hint)
  local lines = vim.split(rest, "\n", { plain = true })
  local chunks = vim.tbl_map(function(line)
    return { { line, M.HIGHLIGHT } }
  end, lines)
  if hint then
    table.insert(chunks[#chunks], { hint, "NonText" })
  end
  M.clear(place.bufnr)
  vim.api.nvim_buf_set_extmark(place.bufnr, NAMESPACE, place.row, place.col, {
    virt_text = chunks[1],
    virt_text_pos = "inline",
    virt_lines = #chunks > 1 and vim.list_slice(chunks, 2) or nil,
    hl_mode = "combine",
  })
end

---@param bufnr integer
function M.clear(bufnr)
  vim.api.nvim_buf_clear_namespace(bufnr, NAMESPACE, 0, -1)
end

return M
