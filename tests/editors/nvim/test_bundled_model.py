"""The bundled model behind a real Neovim: from the first key to the file on disk."""

import re

import pytest
from installation import PYTHON

SERVER = [PYTHON, "-m", "dg_lsp", "lsp", "--stdio"]
LOOK = (
    'vim.o.termguicolors = true\nvim.o.number = true\nvim.cmd("syntax on")\n'
    'vim.api.nvim_set_hl(0, "ComplHint", { fg = "#8f98a8", italic = true })\n'
)
STATUS = "vim.o.laststatus = 2\nvim.o.statusline = \" %t %m%=%{matchstr(v:lua.require'dg_lsp'.status(), '.*mini')} \"\n"
SAMPLE = '''"""Shelves."""

class Shelf:
    def __init__(self, name, size):
        self.name = name
        self.size =

    def __repr__(self):
        return f"Shelf({self.name!r}, {self.size})"
'''


@pytest.fixture(params=["0.12", "0.11"])
def editor(request, launch):
    fill = "{ deadline_ms = 60000, early_stop_ms = 0, min_confidence = 0 }"
    options = f'vim.lsp.config("dg_lsp", {{ init_options = {{ completion = {fill} }} }})\n'
    editor = launch(request.param, cmd=SERVER, more=LOOK + STATUS + options)
    yield editor
    editor.close()


def test_the_text_on_the_screen_is_the_text_on_disk_after_it_is_accepted(editor):
    path = editor.open(SAMPLE, name="shelf.py")
    before = SAMPLE.splitlines()
    row = before.index("        self.size =")
    editor.keys(f"{row + 1}GA ")
    editor.wait(lambda: editor.ghosts, "ghost text of the bundled model")
    shown = editor.ghost
    screen = editor.screen
    lines = ["".join(text for text, _ in cells) for cells in screen]
    [at] = [number for number, line in enumerate(lines) if re.match(rf" *{row + 1} ", line)]
    assert lines[at].rstrip().endswith("self.size = " + shown.split("\n")[0])
    assert "dg-lsp · ready · dg-mini" in lines[-2]
    equals = lines[at].index("= ")
    assert screen[at][equals + 2][1] != screen[at][equals][1]  # another colour
    editor.keys("<Tab><Esc>")
    editor.nvim.command("write")
    after = [*before[:row], *(before[row] + " " + shown).split("\n"), *before[row + 1 :]]
    assert path.read_text(encoding="utf-8").splitlines() == after
    report = editor.health()
    assert "dg-mini" in report.split("server ")[0]
    assert "ERROR" not in report
