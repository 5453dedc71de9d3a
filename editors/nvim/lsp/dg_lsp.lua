-- What `vim.lsp.enable("dg_lsp")` starts; change any of it with `vim.lsp.config("dg_lsp", { ... })`.

local home = vim.uv.os_homedir()

---@type vim.lsp.Config
return {
  cmd = { "dg-lsp", "lsp", "--stdio" },
  -- not the folder that is edited: a `json.py` there could be imported in place of Python's own
  cmd_cwd = home and vim.fn.isdirectory(home) == 1 and home or "/",
  -- the bundled model knows Python; name more for a model that knows more
  filetypes = { "python" },
  root_markers = { "dg-lsp.toml", "pyproject.toml", ".git" },
  capabilities = {
    -- Neovim 0.11 and older do not say this on their own
    textDocument = { inlineCompletion = { dynamicRegistration = false } },
    experimental = { dgLsp = { commands = { "dg-lsp.askInstruction" } } },
  },
  init_options = {
    editorInfo = { name = "Neovim", version = tostring(vim.version()) },
    editorPluginInfo = { name = "dg-lsp.nvim", version = "1" },
    -- Neovim 0.12 would ask "Apply all changes?" without showing them, and report them as done after a no
    rewrite = { preview = false },
  },
  on_exit = function(code, signal)
    require("dg_lsp.attaching").on_exit(code, signal)
  end,
  commands = {
    ["dg-lsp.askInstruction"] = function(command, context)
      require("dg_lsp.rewriting").ask(command.arguments[1], context.client_id)
    end,
  },
  handlers = {
    didChangeStatus = function(_, status, context)
      require("dg_lsp.status").set(context.client_id, status)
    end,
  },
}
