-- Edits that follow from the user's last ones. After a pause in typing the first one is shown at its place, with a hint at
-- the cursor. The key that accepts ghost text jumps there, and then makes the edit and jumps to the next one.

local client_of = require("dg_lsp.client")
local options = require("dg_lsp.options")
local positions = require("dg_lsp.positions")

local M = {}

local METHOD = "dg-lsp/nextEdit"
local INVOKED, AUTOMATIC = 1, 2
-- after a change; the server waits until the user pauses
local DELAY_MS = 100

local namespace = vim.api.nvim_create_namespace("dg_lsp_next_edit")
local group = vim.api.nvim_create_augroup("dg_lsp_next_edit", {})
vim.api.nvim_set_hl(0, "DgLspNextEdit", { link = "DiffAdd", default = true })
vim.api.nvim_set_hl(0, "DgLspNextEditOld", { link = "DiffDelete", default = true })
vim.api.nvim_set_hl(0, "DgLspNextEditHint", { link = "Comment", default = true })

---@class dg_lsp.NextEdit
---@field client vim.lsp.Client
---@field edit table
---@field row integer
---@field col integer in bytes
---@field tick integer
---@field num_places integer
---@field is_there boolean the user has jumped to it
---@field is_requested boolean the user has requested it, so the ones after it are requested, too

---@type table<integer, dg_lsp.NextEdit> what is shown, by buffer
local shown = {}
---@type table<integer, uv.uv_timer_t>
local timers = {}
---@type table<integer, integer> the number of the newest request or dismissal, by buffer; older answers are not shown
local numbers = {}

--- Removes what is shown in a buffer.
---@param bufnr integer
function M.clear(bufnr)
  shown[bufnr] = nil
  if vim.api.nvim_buf_is_valid(bufnr) then
    vim.api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  end
end

--- What is shown in the current buffer, if it belongs to the text as it is.
---@return dg_lsp.NextEdit?
local function current()
  local bufnr = vim.api.nvim_get_current_buf()
  local state = shown[bufnr]
  return state and state.tick == vim.api.nvim_buf_get_changedtick(bufnr) and state or nil
end

--- The byte of a position of the server.
local function byte_of(bufnr, position, encoding)
  local line = vim.api.nvim_buf_get_lines(bufnr, position.line, position.line + 1, false)[1] or ""
  return positions.bytes(line, position.character, encoding), line
end

--- Whether only blanks precede the cursor of insert mode: there the user indents.
local function is_indenting(state)
  local cursor = vim.api.nvim_win_get_cursor(0)
  local is_at_edit = state.is_there and cursor[1] == state.row + 1 and cursor[2] == state.col
  local is_insert = vim.api.nvim_get_mode().mode:sub(1, 1) == "i"
  return is_insert and not is_at_edit and not vim.api.nvim_get_current_line():sub(1, cursor[2]):find("%S")
end

--- Draws the edit at its place, and a hint at the cursor.
local function draw(bufnr)
  local state = shown[bufnr]
  local edit, encoding = state.edit, state.client.offset_encoding
  local last = edit.range["end"]
  local _, first_line = byte_of(bufnr, edit.range.start, encoding)
  local last_col, last_line = byte_of(bufnr, last, encoding)
  local text = first_line:sub(1, state.col) .. edit.text .. last_line:sub(last_col + 1)
  local lines = vim.tbl_map(function(line)
    return { { line, "DgLspNextEdit" } }
  end, vim.split(text, "\r?\n"))
  vim.api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  vim.api.nvim_buf_set_extmark(bufnr, namespace, last.line, 0, { virt_lines = lines })
  vim.api.nvim_buf_set_extmark(bufnr, namespace, state.row, state.col, {
    end_row = last.line,
    end_col = last_col,
    hl_group = "DgLspNextEditOld",
  })
  local key = (options.get().keys or {}).accept
  if not key or key == "" then
    key = ":DgNextEdit"
  elseif is_indenting(state) then
    return
  end
  local hint = state.is_there and "make this edit" or ("next edit in line %d"):format(state.row + 1)
  local places = state.num_places > 1 and (" (%d places)"):format(state.num_places) or ""
  vim.api.nvim_buf_set_extmark(bufnr, namespace, vim.api.nvim_win_get_cursor(0)[1] - 1, 0, {
    virt_text = { { ("  %s: %s%s"):format(key, hint, places), "DgLspNextEditHint" } },
    virt_text_pos = "eol",
  })
end

local function jump(bufnr)
  local state = shown[bufnr]
  state.is_there = true
  vim.cmd("normal! m'")
  vim.api.nvim_win_set_cursor(0, { state.row + 1, state.col })
  vim.cmd("silent! foldopen!")
  draw(bufnr)
end

--- Requests edits for a buffer as it is, and shows the first one. A missing one is explained if the user requested it.
local function request(client, bufnr, is_requested, jumps)
  local number = (numbers[bufnr] or 0) + 1
  numbers[bufnr] = number
  local tick = vim.api.nvim_buf_get_changedtick(bufnr)
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  params.textDocument.version = vim.lsp.util.buf_versions[bufnr]
  params.context = { triggerKind = is_requested and INVOKED or AUTOMATIC }
  client_of.request(client, METHOD, params, function(err, result)
    if numbers[bufnr] ~= number then
      return
    elseif err or type(result) ~= "table" then
      return is_requested and vim.notify("dg-lsp: " .. (err and err.message or "no answer"), vim.log.levels.ERROR)
    elseif vim.api.nvim_get_current_buf() ~= bufnr or vim.api.nvim_buf_get_changedtick(bufnr) ~= tick then
      return
    elseif #result.edits == 0 then
      return is_requested and vim.notify("dg-lsp: no next edit: " .. result.reason)
    end
    local edit = result.edits[1]
    shown[bufnr] = {
      client = client,
      edit = edit,
      row = edit.range.start.line,
      col = (byte_of(bufnr, edit.range.start, client.offset_encoding)),
      tick = tick,
      num_places = edit.places,
      is_there = false,
      is_requested = is_requested,
    }
    client_of.notify(client, "textDocument/didShowInlineEdit", { item = edit })
    if jumps then
      jump(bufnr)
    else
      draw(bufnr)
    end
  end, bufnr)
end

--- Jumps to the edit that is shown, or makes it there and jumps to the next one.
local function step(bufnr)
  local state = current()
  if not state then
    return
  elseif not state.is_there then
    jump(bufnr)
    return
  end
  M.clear(bufnr)
  vim.cmd("let &g:undolevels = &g:undolevels") -- a separate step for `u`
  local text_edit = { range = state.edit.range, newText = state.edit.text }
  vim.lsp.util.apply_text_edits({ text_edit }, bufnr, state.client.offset_encoding)
  client_of.run(state.client, state.edit.command, bufnr)
  request(state.client, bufnr, state.is_requested, true)
end

--- Takes the key of an `expr` mapping if an edit is shown and the user does not indent.
---@return boolean is_taken
function M.accept()
  local state = current()
  if not state or is_indenting(state) then
    return false
  end
  local bufnr = vim.api.nvim_get_current_buf()
  vim.schedule(function()
    step(bufnr)
  end)
  return true
end

--- Hides the edit that is shown; it is not proposed again. Works in `expr` mappings.
---@return boolean was_shown
function M.dismiss()
  local state = current()
  if not state then
    return false
  end
  local bufnr = vim.api.nvim_get_current_buf()
  numbers[bufnr] = numbers[bufnr] + 1
  client_of.notify(state.client, "dg-lsp/didDismissEdit", { item = state.edit })
  vim.schedule_wrap(M.clear)(bufnr)
  return true
end

--- Hides the edit that is shown, and one that is requested; it may be proposed again.
---@param bufnr integer
function M.hide(bufnr)
  numbers[bufnr] = (numbers[bufnr] or 0) + 1
  M.clear(bufnr)
end

--- Proposes an edit once the user pauses.
local function propose_soon(bufnr)
  if timers[bufnr] and not timers[bufnr]:is_closing() then
    timers[bufnr]:close()
  end
  timers[bufnr] = vim.defer_fn(function()
    local client = client_of.of(bufnr)
    local is_current = vim.api.nvim_get_current_buf() == bufnr and not current()
    if client and is_current and not require("dg_lsp.attachment").off() then
      request(client, bufnr, false, false)
    end
  end, DELAY_MS)
end

--- Proposes edits in a buffer of the server.
---@param bufnr integer
function M.attach(bufnr)
  vim.api.nvim_clear_autocmds({ group = group, buffer = bufnr })
  vim.api.nvim_create_autocmd({ "TextChanged", "TextChangedI", "TextChangedP", "InsertLeave", "BufWritePost" }, {
    group = group,
    buffer = bufnr,
    callback = function()
      if not current() then
        M.clear(bufnr)
        propose_soon(bufnr)
      end
    end,
  })
  vim.api.nvim_create_autocmd({ "CursorMoved", "CursorMovedI", "InsertEnter", "BufLeave" }, {
    group = group,
    buffer = bufnr,
    callback = function(event)
      local state = current()
      local has_left = state and state.is_there and vim.api.nvim_win_get_cursor(0)[1] ~= state.row + 1
      if not state or has_left or event.event == "BufLeave" then
        M.clear(bufnr)
        return
      end
      -- the mode changes after InsertEnter
      vim.schedule(function()
        if current() == state then
          draw(bufnr)
        end
      end)
    end,
  })
end

--- :DgNextEdit
---@param command { bang: boolean }
function M.run(command)
  local bufnr = vim.api.nvim_get_current_buf()
  local client = client_of.running(bufnr)
  if not client then
    return
  elseif command.bang then
    M.clear(bufnr)
    client_of.execute(client, "dg-lsp.applyNextEdits", { { uri = vim.uri_from_bufnr(bufnr) } }, bufnr)
  elseif current() then
    step(bufnr)
  else
    request(client, bufnr, true, true)
  end
end

return M
