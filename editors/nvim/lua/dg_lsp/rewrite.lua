-- :DgRewrite, :DgFixTest, :DgFill, and the prompts for an instruction and a test. The server sends the result as an edit.

local client_of = require("dg_lsp.client")
local positions = require("dg_lsp.positions")

local M = {}

local REWRITE, FIX_TEST, COMPLETE_BLOCK = "dg-lsp.rewrite", "dg-lsp.fixTest", "dg-lsp.completeBlock"

local last_test = ""

local function line_of(bufnr, row)
  return vim.api.nvim_buf_get_lines(bufnr, row, row + 1, true)[1]
end

--- Rows and bytes of a command's range: the selected characters, or whole lines.
---@return integer, integer, integer, integer
local function bounds(bufnr, options)
  local first, last = options.line1 - 1, options.line2 - 1
  local from, to = 0, #line_of(bufnr, last)
  local start, stop = vim.fn.getpos("'<"), vim.fn.getpos("'>")
  local is_selection = options.range == 2 and start[2] == options.line1 and stop[2] == options.line2
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

local function target(client, bufnr, options)
  local first, from, last, to = bounds(bufnr, options)
  return {
    uri = vim.uri_from_bufnr(bufnr),
    range = { start = position(client, bufnr, first, from), ["end"] = position(client, bufnr, last, to) },
  }
end

local function request(client, range, instruction)
  local argument = vim.tbl_extend("force", range, { instruction = instruction })
  client_of.execute(client, REWRITE, { argument }, vim.uri_to_bufnr(range.uri))
end

local function request_test(client, range, test)
  last_test = test
  client_of.execute(client, FIX_TEST, { vim.tbl_extend("force", range, { test = test }) }, vim.uri_to_bufnr(range.uri))
end

--- Calls `run` with the client, the range and the text that the user enters.
local function prompt(input, range, client_id, run)
  vim.ui.input(input, function(text)
    local client = vim.lsp.get_client_by_id(client_id)
    if text and text ~= "" and client then
      run(client, range, text)
    end
  end)
end

--- Prompts for an instruction, and requests a rewrite with it.
---@param range { uri: string, range: lsp.Range }
---@param client_id integer
function M.prompt(range, client_id)
  prompt({ prompt = "Rewrite: " }, range, client_id, request)
end

--- Prompts for the command of a test, and requests a rewrite with which it passes.
---@param range { uri: string, range: lsp.Range }
---@param client_id integer
function M.prompt_test(range, client_id)
  prompt({ prompt = "Failing test: ", default = last_test }, range, client_id, request_test)
end

local function run(options, execute, ask)
  local bufnr = vim.api.nvim_get_current_buf()
  local client = client_of.running(bufnr)
  if not client then
    return
  end
  local range = target(client, bufnr, options)
  if options.args == "" then
    ask(range, client.id)
  else
    execute(client, range, options.args)
  end
end

---@param options table arguments of the user command
function M.rewrite(options)
  run(options, request, M.prompt)
end

---@param options table arguments of the user command
function M.fix_test(options)
  run(options, request_test, M.prompt_test)
end

---@param options table arguments of the user command
function M.fill(options)
  local bufnr = vim.api.nvim_get_current_buf()
  local client = client_of.running(bufnr)
  if not client then
    return
  end
  if options.range > 0 then
    local range = vim.tbl_extend("force", target(client, bufnr, options), { strength = 1.0 })
    client_of.execute(client, REWRITE, { range }, bufnr)
    return
  end
  local row, byte = unpack(vim.api.nvim_win_get_cursor(0))
  local cursor = position(client, bufnr, row - 1, byte)
  client_of.execute(client, COMPLETE_BLOCK, { { uri = vim.uri_from_bufnr(bufnr), position = cursor } }, bufnr)
end

return M
