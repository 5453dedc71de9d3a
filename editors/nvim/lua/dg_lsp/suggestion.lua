-- One completion at its position, and the part of it that remains after further typing.

local positions = require("dg_lsp.positions")

local M = {}

---@class dg_lsp.Position where a completion was requested
---@field bufnr integer
---@field row integer 0-based
---@field col integer bytes
---@field line string
---@field num_lines integer

---@class dg_lsp.Suggestion
---@field client vim.lsp.Client
---@field lsp table the item as the server sent it
---@field bufnr integer
---@field row integer start of `text`, 0-based
---@field col integer start of `text`, bytes
---@field text string the text to insert, with "\n" between lines
---@field after string the line after the cursor at the time of the request
---@field tail integer bytes after the cursor that are replaced
---@field num_lines integer of the buffer at the time of the request
---@field before string the accepted part before `text`

---@param bufnr integer
---@return dg_lsp.Position? nil if the cursor is in another buffer
function M.position(bufnr)
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
---@param position dg_lsp.Position
---@return dg_lsp.Suggestion? nil if the item is for another line, or not plain text
function M.new(client, lsp, position)
  local text, from, to = lsp.insertText, position.col, position.col
  if type(text) ~= "string" then
    return nil
  end
  local range = lsp.range
  if range then
    if range.start.line ~= position.row or range["end"].line ~= position.row then
      return nil
    end
    from = positions.bytes(position.line, range.start.character, client.offset_encoding)
    to = positions.bytes(position.line, range["end"].character, client.offset_encoding)
  end
  if from > position.col or to < position.col then
    return nil
  end
  return {
    client = client,
    lsp = lsp,
    bufnr = position.bufnr,
    row = position.row,
    col = from,
    -- lines in Neovim do not contain the \r of a DOS file
    text = text:gsub("\r\n", "\n"),
    after = position.line:sub(position.col + 1),
    tail = to - position.col,
    num_lines = position.num_lines,
    before = "",
  }
end

--- The remaining text at the cursor; nil if the user typed other text, or moved the cursor.
---@param item dg_lsp.Suggestion
---@return string? rest not empty
---@return dg_lsp.Position?
function M.rest(item)
  local position = M.position(item.bufnr)
  if not position or position.row ~= item.row or position.col < item.col or position.num_lines ~= item.num_lines then
    return nil
  end
  local typed = position.line:sub(item.col + 1, position.col)
  local rest = item.text:sub(#typed + 1)
  if rest == "" or item.text:sub(1, #typed) ~= typed or position.line:sub(position.col + 1) ~= item.after then
    return nil
  end
  return rest, position
end

--- The part of the remaining text to accept.
---@param rest string
---@param unit "all"|"word"|"line"
---@return string
local function part_of(rest, unit)
  if unit == "word" then
    return rest:match("^%s*[%w_\128-\255]+") or rest:match("^%s*[^%w_%s\128-\255]+") or rest
  elseif unit == "line" then
    return rest:match("^\n*[^\n]+") or rest
  end
  return rest
end

--- Inserts a part of the remaining text into the buffer.
---@param item dg_lsp.Suggestion
---@param unit "all"|"word"|"line"
---@return boolean is_done whether nothing remains
function M.accept(item, unit)
  local rest, position = M.rest(item)
  if not rest then
    return true
  end
  local part = part_of(rest, unit)
  local is_done = #part == #rest
  local lines = vim.split(part, "\n", { plain = true })
  local row, col = position.row + #lines - 1, #lines[#lines] + (#lines == 1 and position.col or 0)
  -- a separate step for `u`
  vim.cmd("let &g:undolevels = &g:undolevels")
  local to = position.col + (is_done and item.tail or 0)
  vim.api.nvim_buf_set_text(item.bufnr, position.row, position.col, position.row, to, lines)
  vim.api.nvim_win_set_cursor(0, { row + 1, col })
  item.before = item.before .. item.text:sub(1, #item.text - #rest) .. part
  item.text = rest:sub(#part + 1)
  item.row, item.col, item.num_lines = row, col, vim.api.nvim_buf_line_count(item.bufnr)
  return is_done
end

return M
