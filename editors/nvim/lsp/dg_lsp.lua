-- The configuration of `vim.lsp.enable("dg_lsp")`; change it with `vim.lsp.config("dg_lsp", { ... })`.

local home = vim.uv.os_homedir()

---@type vim.lsp.Config
return {
  cmd = { "dg-lsp", "lsp", "--stdio" },
  -- outside the workspace, where a `json.py` could be imported in place of Python's own
  cmd_cwd = home and vim.fn.isdirectory(home) == 1 and home or "/",
  -- no `filetypes`: all of them
  root_dir = function(bufnr, on_dir)
    -- Neovim 0.12 would start it for help files, too; a buffer without a name has no URI
    if vim.bo[bufnr].buftype == "" and vim.api.nvim_buf_get_name(bufnr) ~= "" then
      on_dir(nil) -- found by `root_markers`
    end
  end,
  root_markers = { "dg-lsp.toml", "pyproject.toml", ".git" },
  capabilities = {
    -- not declared by Neovim 0.11 and older
    textDocument = { inlineCompletion = { dynamicRegistration = false } },
    experimental = { dgLsp = { commands = { "dg-lsp.askInstruction", "dg-lsp.askTest" } } },
  },
  init_options = {
    editorInfo = { name = "Neovim", version = tostring(vim.version()) },
    editorPluginInfo = { name = "dg-lsp.nvim", version = "1" },
    -- Neovim 0.12 would prompt "Apply all changes?" without showing them, and report them as applied after a no
    rewrite = { preview = false },
  },
  on_exit = function(code, signal)
    require("dg_lsp.attachment").on_exit(code, signal)
  end,
  commands = {
    ["dg-lsp.askInstruction"] = function(command, context)
      require("dg_lsp.rewrite").prompt(command.arguments[1], context.client_id)
    end,
    ["dg-lsp.askTest"] = function(command, context)
      require("dg_lsp.rewrite").prompt_test(command.arguments[1], context.client_id)
    end,
  },
  handlers = {
    didChangeStatus = function(_, status, context)
      require("dg_lsp.status").set(context.client_id, status)
    end,
  },
}
