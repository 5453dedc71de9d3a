-- Starts the language server, shows its fills, and defines the :Dg commands. See :help dg_lsp.

if vim.g.loaded_dg_lsp or vim.fn.has("nvim-0.10") == 0 then
  return
end
vim.g.loaded_dg_lsp = true

local group = vim.api.nvim_create_augroup("dg_lsp", {})

vim.api.nvim_create_autocmd("LspAttach", {
  group = group,
  callback = function(event)
    require("dg_lsp.attaching").attach(event.data.client_id, event.buf)
  end,
})
vim.api.nvim_create_autocmd("LspProgress", {
  group = group,
  callback = function(event)
    require("dg_lsp.status").progress(event.data)
  end,
})
vim.api.nvim_create_autocmd("BufEnter", {
  group = group,
  callback = function(event)
    require("dg_lsp.client").focus(event.buf)
  end,
})

local commands = {
  DgRewrite = {
    function(given)
      require("dg_lsp.rewriting").rewrite(given)
    end,
    { range = true, nargs = "*", desc = "Write the range anew as the instruction says" },
  },
  DgFill = {
    function(given)
      require("dg_lsp.rewriting").fill(given)
    end,
    { range = true, desc = "Fill the range, or as many lines as belong at the cursor" },
  },
  DgCancel = {
    function()
      require("dg_lsp.status").cancel()
    end,
    { desc = "Stop the rewrite that is under way" },
  },
  DgToggle = {
    function()
      require("dg_lsp").toggle()
    end,
    { desc = "Ghost text on or off" },
  },
  DgStatus = {
    function()
      require("dg_lsp.status").print()
    end,
    { desc = "What the language server is doing" },
  },
}
for name, command in pairs(commands) do
  vim.api.nvim_create_user_command(name, command[1], command[2])
end

for name, action in pairs({
  accept = "Take the ghost text",
  ["accept-word"] = "Take the ghost text's next word",
  ["accept-line"] = "Take the ghost text's next line",
  next = "Another fill",
  previous = "The fill before",
  dismiss = "Hide the ghost text",
}) do
  vim.keymap.set("i", "<Plug>(dg-lsp-" .. name .. ")", function()
    require("dg_lsp")[name:gsub("-", "_")]()
  end, { desc = action })
end

if require("dg_lsp.options").get().enable then
  require("dg_lsp.attaching").enable()
end
