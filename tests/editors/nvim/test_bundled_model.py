"""The bundled model behind a real Neovim: from the first key to the file on disk, and the picture in the page.

With DG_LSP_PICTURES set, docs/img/neovim.svg is drawn anew.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from hostile import executed, make_hostile
from neovim_screen import Screen

ROOT = Path(__file__).parents[3]
PICTURE = ROOT / "docs" / "img" / "neovim.svg"
SERVER = [sys.executable, "-m", "dg_lsp", "lsp", "--stdio"]
LOOK = (
    'vim.o.termguicolors = true\nvim.o.number = true\nvim.cmd("syntax on")\n'
    'vim.api.nvim_set_hl(0, "ComplHint", { fg = "#8f98a8", italic = true })\n'
)
STATUS = "vim.o.laststatus = 2\nvim.o.statusline = \" %t %m%=%{matchstr(v:lua.require'dg_lsp'.status(), '.*mini')} \"\n"
SAMPLE = '''"""What is where."""

class Shelf:
    def __init__(self, name, size):
        self.name = name
        self.size =

    def __repr__(self):
        return f"Shelf({self.name!r}, {self.size})"
'''
WIDTH, HEIGHT = 66, 12


@pytest.fixture(params=["0.12", "0.11"])
def editor(request, launch):
    fill = "{ deadline_ms = 60000, early_stop_ms = 0, min_confidence = 0 }"
    options = f'vim.lsp.config("dg_lsp", {{ init_options = {{ completion = {fill} }} }})\n'
    editor = launch(request.param, cmd=SERVER, more=LOOK + STATUS + options)
    yield editor
    editor.close()


def test_what_is_shown_is_what_is_on_disk_once_it_is_taken(editor):
    path = editor.open(SAMPLE, name="shelf.py")
    before = SAMPLE.splitlines()
    row = before.index("        self.size =")
    editor.keys(f"{row + 1}GA ")
    editor.wait(lambda: editor.ghosts, "ghost text of the bundled model")
    shown = editor.ghost
    screen = Screen.of(editor.nvim, WIDTH, HEIGHT)
    lines = [screen.line(number) for number in range(HEIGHT)]
    [at] = [number for number, line in enumerate(lines) if re.match(rf" *{row + 1} ", line)]
    assert lines[at].rstrip().endswith("self.size = " + shown.split("\n")[0])
    assert "dg-lsp · ready · dg-mini" in lines[HEIGHT - 2]
    look = screen.highlights[screen.cells[at][lines[at].index("= ") + 2][1]]
    assert look["foreground"] != screen.colours[0]
    picture = screen.svg("Neovim, the end of a line as ghost text")
    assert picture.count("<text") > HEIGHT
    if "DG_LSP_PICTURES" in os.environ and editor.lua("return vim.lsp.inline_completion ~= nil"):
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(picture, encoding="utf-8")
    editor.keys("<Tab><Esc>")
    editor.nvim.command("write")
    after = [*before[:row], *(before[row] + " " + shown).split("\n"), *before[row + 1 :]]
    assert path.read_text(encoding="utf-8").splitlines() == after
    editor.nvim.command("checkhealth dg_lsp")
    report = "\n".join(editor.lines)
    assert "dg-mini" in report.split("server ")[0]
    assert "ERROR" not in report


@pytest.mark.parametrize("kind", ["0.12", "0.11", "0.10"])
def test_python_files_of_the_folder_are_not_executed(launch, tmp_path, kind):
    editor = launch(kind, cmd=SERVER)
    make_hostile(editor.directory, tmp_path / "marks")
    editor.open(SAMPLE)
    assert executed(tmp_path / "marks") == []
    editor.close()


def test_the_page_has_its_picture():
    page = (ROOT / "docs/editors/neovim.md").read_text(encoding="utf-8")
    assert f"](../img/{PICTURE.name})" in page
    assert "Shelf" in PICTURE.read_text(encoding="utf-8")
