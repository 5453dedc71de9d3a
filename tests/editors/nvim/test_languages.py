"""Files of other types than Python, and buffers that are no files."""

import sys

SERVER = [sys.executable, "-m", "dg_lsp", "lsp", "--stdio"]
REASON = "dg-mini knows Python only; choose another model: dg-lsp setup"
NUM_CLIENTS = "return #vim.lsp.get_clients({ name = 'dg_lsp', bufnr = 0 })"
STATE = "local status = require('dg_lsp.status').of(0); return status and status.dgLsp and status.dgLsp.state"


def test_files_get_ghost_text_without_a_setting_and_other_buffers_have_no_server(editor):
    for name in ("a.ts", "COMMIT_EDITMSG"):
        editor.show("is =", " 'é😋' + str(3)", name=name)
    editor.keys("<Esc>")
    for command in ("help", "copen", "new | setlocal buftype=nofile filetype=markdown"):
        editor.nvim.command(f"{command} | only")
        editor.lua("vim.wait(50)")  # the server is attached after the event
        assert editor.lua(NUM_CLIENTS) == 0


def test_the_status_names_why_the_bundled_model_completes_no_typescript(launch):
    editor = launch("0.12", cmd=SERVER)
    editor.open("const total = 1;\n", name="a.ts", wait=False)
    editor.wait(lambda: editor.lua(STATE) == "unsupported", "no such status")
    assert editor.status == "dg-lsp · unsupported · dg-mini"
    editor.keys("Goconst sum = ")
    editor.rest()
    assert editor.ghosts == []
    editor.keys("<Esc>")
    editor.nvim.command("DgStatus")
    assert editor.notifications == [f"dg-lsp · unsupported · dg-mini\n{REASON}\n0 shown, 0 accepted in this session"]
    assert REASON in editor.health()
    editor.open("total = 1\n", name="a.py")  # its status is `ready`
    editor.close()
