-- :DgNextEdit jumps to a place where the last edits are likely to be repeated, and shows what it would become; called
-- again there, it makes the edit and jumps to the next place. :DgNextEdit! makes the edits of all places.

local client_of = require("dg_lsp.client")
local positions = require("dg_lsp.positions")

local M = {}

local METHOD = "dg-lsp/nextEdit"

local namespace = vim.api.nvim_create_namespace("dg_lsp_next_edit")
local group = vim.api.nvim_create_augroup("dg_lsp_next_edit", {})
vim.api.nvim_set_hl(0, "DgLspNextEdit", { link = "DiffAdd", default = true })

---@type table<integer, { edit: table, row: integer, tick: integer }> what is shown, by buffer
local shown = {}

--- Removes what is shown in a buffer.
---@param bufnr integer
function M.clear(bufnr)
  shown[bufnr] = nil
  if vim.api.nvim_buf_is_valid(bufnr) then
    vim.api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
    vim.api.nvim_clear_autocmds({ group = group, buffer = bufnr })
  end
end

--- The line of an edit as it would become, and the byte at which the edit begins.
local function changed_line(client, bufnr, edit)
  local row = edit.range.start.line
  local line = vim.api.nvim_buf_get_lines(bufnr, row, row + 1, true)[1]
  local from = positions.bytes(line, edit.range.start.character, client.offset_encoding)
  local to = positions.bytes(line, edit.range["end"].character, client.offset_encoding)
  return line:sub(1, from) .. edit.text .. line:sub(to + 1), from
end

--- Jumps to the place of an edit and shows it.
local function show(client, bufnr, edit, num_places)
  local row = edit.range.start.line
  local line, byte = changed_line(client, bufnr, edit)
  M.clear(bufnr)
  vim.cmd("normal! m'")
  vim.api.nvim_win_set_cursor(0, { row + 1, byte })
  vim.api.nvim_buf_set_extmark(bufnr, namespace, row, 0, { virt_lines = { { { line, "DgLspNextEdit" } } } })
  shown[bufnr] = { edit = edit, row = row, tick = vim.api.nvim_buf_get_changedtick(bufnr) }
  vim.api.nvim_create_autocmd({ "CursorMoved", "TextChanged", "InsertEnter", "BufLeave" }, {
    group = group,
    buffer = bufnr,
    callback = function(event)
      local is_same_line = vim.api.nvim_win_get_cursor(0)[1] == row + 1
      if event.event ~= "CursorMoved" or not is_same_line then
        M.clear(bufnr)
      end
    end,
  })
  client_of.notify(client, "textDocument/didShowInlineEdit", { item = edit })
  local hint = num_places > 1 and (" of %d places; :DgNextEdit! changes all"):format(num_places) or ""
  vim.notify("dg-lsp: :DgNextEdit makes this edit" .. hint)
end

--- Requests the edits of a buffer; `use` gets them if the buffer has not changed meanwhile.
local function request(client, bufnr, use)
  local tick = vim.api.nvim_buf_get_changedtick(bufnr)
  client_of.request(client, METHOD, { textDocument = { uri = vim.uri_from_bufnr(bufnr) } }, function(err, result)
    if err or type(result) ~= "table" then
      vim.notify("dg-lsp: " .. (err and err.message or "no answer"), vim.log.levels.ERROR)
    elseif not vim.api.nvim_buf_is_valid(bufnr) or vim.api.nvim_buf_get_changedtick(bufnr) ~= tick then
      return
    elseif #result.edits == 0 then
      vim.notify("dg-lsp: no next edit: " .. result.reason)
    else
      use(result.edits)
    end
  end, bufnr)
end

local function apply(client, bufnr, edits)
  local text_edits = vim.tbl_map(function(edit)
    return { range = edit.range, newText = edit.text }
  end, edits)
  vim.lsp.util.apply_text_edits(text_edits, bufnr, client.offset_encoding)
  for _, edit in ipairs(edits) do
    client_of.run(client, edit.command, bufnr)
  end
end

---@param options { bang: boolean }
function M.run(options)
  local bufnr = vim.api.nvim_get_current_buf()
  local client = client_of.running(bufnr)
  if not client then
    return
  end
  local current = shown[bufnr]
  M.clear(bufnr)
  if options.bang then
    request(client, bufnr, function(edits)
      apply(client, bufnr, edits)
      vim.notify(("dg-lsp: changed %d places"):format(#edits))
    end)
    return
  end
  if current and current.tick == vim.api.nvim_buf_get_changedtick(bufnr) then
    apply(client, bufnr, { current.edit })
  end
  request(client, bufnr, function(edits)
    if vim.api.nvim_get_current_buf() == bufnr then
      show(client, bufnr, edits[1], #edits)
    end
  end)
end

return M
