-- One fill at its place: what of it is still to come, now that the user has typed on.

local positions = require("dg_lsp.positions")

local M = {}

---@class dg_lsp.Place where a fill was asked for
---@field bufnr integer
---@field row integer 0-based
---@field col integer bytes
---@field line string
---@field num_lines integer

---@class dg_lsp.Item
---@field client vim.lsp.Client
---@field lsp table the item as the server sent it
---@field bufnr integer
---@field row integer where `text` begins, 0-based
---@field col integer where `text` begins, bytes
---@field text string what is put there, lines ending in a mere newline
---@field after string the line after the cursor, as it was
---@field tail integer bytes after the cursor that the fill takes the place of
---@field num_lines integer of the buffer, as it was
---@field before string what was taken of the fill until `text` begins

---@param bufnr integer
---@return dg_lsp.Place? none where the buffer is not the one with the cursor
function M.place(bufnr)
  if vim.api.nvim_get_current_buf() ~= bufnr then
    return nil
  end
  local row, col = unpack(vim.api.nvim_win_get_cursor(0))
  return {
    bufnr = bufnr,
    row = row - 1,
    col = col,
    line = vim.api.nvim_get_current_line(),
    num_lines = vim.api.nvim_buf_line_count(bufnr),
  }
end

---@param client vim.lsp.Client
---@param lsp table
---@param place dg_lsp.Place
---@return dg_lsp.Item? none where the item is for another line, or no plain text
function M.new(client, lsp, place)
  local text, from, to = lsp.insertText, place.col, place.col
  if type(text) ~= "string" then
    return nil
  end
  local range = lsp.range
  if range then
    if range.start.line ~= place.row or range["end"].line ~= place.row then
      return nil
    end
    from = positions.bytes(place.line, range.start.character, client.offset_encoding)
    to = positions.bytes(place.line, range["end"].character, client.offset_encoding)
  end
  if from > place.col or to < place.col then
    return nil
  end
  return {
    client = client,
    lsp = lsp,
    bufnr = place.bufnr,
    row = place.row,
    col = from,
    -- Neovim's lines do not hold the \r of a DOS file
    text = text:gsub("\r\n", "\n"),
    after = place.line:sub(place.col + 1),
    tail = to - place.col,
    num_lines = place.num_lines,
    before = "",
  }
end

--- What is still to come of it at the cursor; none when the user has typed something else, or elsewhere.
---@param item dg_lsp.Item
---@return string? rest never empty
---@return dg_lsp.Place?
function M.rest(item)
  local place = M.place(item.bufnr)
  if not place or place.row ~= item.row or place.col < item.col or place.num_lines ~= item.num_lines then
    return nil
  end
  local typed = place.line:sub(item.col + 1, place.col)
  local rest = item.text:sub(#typed + 1)
  if rest == "" or item.text:sub(1, #typed) ~= typed or place.line:sub(place.col + 1) ~= item.after then
    return nil
  end
  return rest, place
end

--- The part of a rest that is taken at once.
---@param rest string
---@param how "all"|"word"|"line"
---@return string
function M.part(rest, how)
  if how == "word" then
    return rest:match("^%s*[%w_\128-\255]+") or rest:match("^%s*[^%w_%s\128-\255]+") or rest
  elseif how == "line" then
    return rest:match("^\n*[^\n]+") or rest
  end
  return rest
end

--- Puts a part of the rest into the buffer; the item goes on after it.
---@param item dg_lsp.Item
---@param how "all"|"word"|"line"
---@return boolean is_done nothing is left of it
function M.take(item, how)
  local rest, place = M.rest(item)
  if not rest then
    return true
  end
  local part = M.part(rest, how)
  local is_done = #part == #rest
  local lines = vim.split(part, "\n", { plain = true })
  local row, col = place.row + #lines - 1, #lines[#lines] + (#lines == 1 and place.col or 0)
  -- a step of its own for `u`
  vim.cmd("let &undolevels = &undolevels")
  local past = place.col + (is_done and item.tail or 0)
  vim.api.nvim_buf_set_text(item.bufnr, place.row, place.col, place.row, past, lines)
  vim.api.nvim_win_set_cursor(0, { row + 1, col })
  item.before = item.before .. item.text:sub(1, #item.text - #rest) .. part
  item.text = rest:sub(#part + 1)
  item.row, item.col, item.num_lines = row, col, vim.api.nvim_buf_line_count(item.bufnr)
  return is_done
end

return M
