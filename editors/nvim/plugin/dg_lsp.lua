-- Starts the language server, attaches ghost text, and defines the :Dg commands. See :help dg_lsp.

if vim.g.loaded_dg_lsp or vim.fn.has("nvim-0.10") == 0 then
  return
end
vim.g.loaded_dg_lsp = true

local group = vim.api.nvim_create_augroup("dg_lsp", {})

vim.api.nvim_create_autocmd("LspAttach", {
  group = group,
  callback = function(event)
    require("dg_lsp.attachment").attach(event.data.client_id, event.buf)
  end,
})
vim.api.nvim_create_autocmd("LspProgress", {
  group = group,
  callback = function(event)
    require("dg_lsp.status").progress(event.data)
  end,
})
-- where the cursor rests, the server prepares the first completion
vim.api.nvim_create_autocmd({ "BufEnter", "CursorHold" }, {
  group = group,
  callback = function(event)
    require("dg_lsp.client").focus(event.buf)
  end,
})

local commands = {
  DgRewrite = {
    function(options)
      require("dg_lsp.rewrite").rewrite(options)
    end,
    { range = true, nargs = "*", desc = "Rewrite the range with an instruction" },
  },
  DgFixTest = {
    function(options)
      require("dg_lsp.rewrite").fix_test(options)
    end,
    { range = true, nargs = "*", complete = "shellcmd", desc = "Rewrite the range so that a test passes" },
  },
  DgFill = {
    function(options)
      require("dg_lsp.rewrite").fill(options)
    end,
    { range = true, desc = "Complete the range, or the block at the cursor" },
  },
  DgNextEdit = {
    function(options)
      require("dg_lsp.next_edit").run(options)
    end,
    { bang = true, desc = "Repeat the last edits at the next place; with !, at all places" },
  },
  DgCancel = {
    function()
      require("dg_lsp.status").cancel()
    end,
    { desc = "Stop the running rewrite" },
  },
  DgToggle = {
    function()
      require("dg_lsp").toggle()
    end,
    { desc = "Turn ghost text on or off" },
  },
  DgSnooze = {
    function(options)
      require("dg_lsp").snooze(options.args ~= "" and (tonumber(options.args) or options.args) or nil)
    end,
    { nargs = "?", desc = "Turn ghost text off for some minutes" },
  },
  DgWhy = {
    function()
      require("dg_lsp.status").explain()
    end,
    { desc = "Show why there is no ghost text at the cursor" },
  },
  DgStatus = {
    function()
      require("dg_lsp.status").print()
    end,
    { desc = "Show the status of the language server" },
  },
}
for name, command in pairs(commands) do
  vim.api.nvim_create_user_command(name, command[1], command[2])
end

for name, action in pairs({
  accept = "Accept the ghost text",
  ["accept-word"] = "Accept the ghost text's next word",
  ["accept-line"] = "Accept the ghost text's next line",
  next = "Next suggestion",
  previous = "Previous suggestion",
  dismiss = "Hide the ghost text",
  trigger = "Request a completion",
}) do
  vim.keymap.set("i", "<Plug>(dg-lsp-" .. name .. ")", function()
    require("dg_lsp")[name:gsub("-", "_")]()
  end, { desc = action })
end

if require("dg_lsp.options").get().enable then
  require("dg_lsp.attachment").enable()
end
