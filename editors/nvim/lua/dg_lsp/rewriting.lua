-- :DgRewrite, :DgFill, and the question for an instruction. What becomes of it comes from the server as an edit.

local client_of = require("dg_lsp.client")
local positions = require("dg_lsp.positions")

local M = {}

local REWRITE, COMPLETE_BLOCK = "dg-lsp.rewrite", "dg-lsp.completeBlock"

local function client_here(bufnr)
  local client = client_of.of(bufnr)
  if not client then
    vim.notify("dg-lsp is not running in this buffer; :checkhealth dg_lsp says why", vim.log.levels.WARN)
  end
  return client
end

local function line_of(bufnr, row)
  return vim.api.nvim_buf_get_lines(bufnr, row, row + 1, true)[1]
end

--- Rows and bytes of what a command is for: what is selected, character by character where it was selected so, else
--- whole lines.
---@return integer, integer, integer, integer
local function bounds(bufnr, given)
  local first, last = given.line1 - 1, given.line2 - 1
  local from, to = 0, #line_of(bufnr, last)
  local start, stop = vim.fn.getpos("'<"), vim.fn.getpos("'>")
  local is_selection = given.range == 2 and start[2] == given.line1 and stop[2] == given.line2
  if is_selection and vim.fn.visualmode() == "v" then
    from = start[3] - 1
    local line, byte = line_of(bufnr, last), stop[3]
    if vim.o.selection == "exclusive" then
      byte = byte - 1
    elseif byte <= #line then
      byte = byte + vim.str_utf_end(line, byte)
    end
    to = math.min(byte, #line)
  end
  return first, from, last, to
end

local function position(client, bufnr, row, byte)
  return { line = row, character = positions.units(line_of(bufnr, row), byte, client.offset_encoding) }
end

local function place(client, bufnr, given)
  local first, from, last, to = bounds(bufnr, given)
  return {
    uri = vim.uri_from_bufnr(bufnr),
    range = { start = position(client, bufnr, first, from), ["end"] = position(client, bufnr, last, to) },
  }
end

--- Asks for an instruction, then has the place rewritten.
---@param where { uri: string, range: lsp.Range }
---@param client_id integer
function M.ask(where, client_id)
  vim.ui.input({ prompt = "Rewrite: " }, function(instruction)
    local client = vim.lsp.get_client_by_id(client_id)
    if instruction and instruction ~= "" and client then
      local argument = vim.tbl_extend("force", where, { instruction = instruction })
      client_of.execute(client, REWRITE, { argument }, vim.uri_to_bufnr(where.uri))
    end
  end)
end

---@param given table of a user command
function M.rewrite(given)
  local bufnr = vim.api.nvim_get_current_buf()
  local client = client_here(bufnr)
  if not client then
    return
  end
  local where = place(client, bufnr, given)
  if given.args == "" then
    M.ask(where, client.id)
  else
    client_of.execute(client, REWRITE, { vim.tbl_extend("force", where, { instruction = given.args }) }, bufnr)
  end
end

---@param given table of a user command
function M.fill(given)
  local bufnr = vim.api.nvim_get_current_buf()
  local client = client_here(bufnr)
  if not client then
    return
  end
  if given.range > 0 then
    local where = vim.tbl_extend("force", place(client, bufnr, given), { strength = 1.0 })
    client_of.execute(client, REWRITE, { where }, bufnr)
    return
  end
  local row, byte = unpack(vim.api.nvim_win_get_cursor(0))
  local at = position(client, bufnr, row - 1, byte)
  client_of.execute(client, COMPLETE_BLOCK, { { uri = vim.uri_from_bufnr(bufnr), position = at } }, bufnr)
end

return M
