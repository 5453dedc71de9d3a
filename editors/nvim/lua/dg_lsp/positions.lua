-- Converts between byte offsets of Neovim and units of the server's encoding; the functions changed in Neovim 0.11.

local M = {}

local IS_NEW = vim.fn.has("nvim-0.11") == 1

---@param line string
---@param byte integer
---@param encoding string
---@return integer
function M.units(line, byte, encoding)
  byte = math.min(byte, #line)
  if IS_NEW then
    return vim.str_utfindex(line, encoding, byte, false)
  end
  return vim.lsp.util._str_utfindex_enc(line, byte, encoding)
end

---@param line string
---@param units integer
---@param encoding string
---@return integer
function M.bytes(line, units, encoding)
  if IS_NEW then
    return vim.str_byteindex(line, encoding, units, false)
  end
  return vim.lsp.util._str_byteindex_enc(line, units, encoding)
end

--- UTF-16 units of a text with one or more lines.
---@param text string
---@return integer
function M.utf16_length(text)
  return M.units(text, #text, "utf-16")
end

return M
