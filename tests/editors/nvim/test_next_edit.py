"""The last edits are repeated: an edit is shown after a pause, <Tab> jumps there and makes it, <C-]> dismisses it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = "a = load(x, mode)\nb = load(x, mode)\nc = 1\nd = load(x, mode)\n"
CHANGED = SOURCE.replace(", mode)", ", mode, strict=True)").splitlines()
REST = SOURCE.splitlines()[1:]
DRAWN = """
local namespace = vim.api.nvim_get_namespaces()["dg_lsp_next_edit"]
local lines, hints = {}, {}
for _, mark in ipairs(namespace and vim.api.nvim_buf_get_extmarks(0, namespace, 0, -1, { details = true }) or {}) do
  if mark[4].virt_lines then table.insert(lines, { mark[2], mark[4].virt_lines[1][1][1] }) end
  if mark[4].virt_text then table.insert(hints, { mark[2], vim.trim(mark[4].virt_text[1][1]) }) end
end
return { lines, hints }
"""


@pytest.fixture(params=["0.12", "0.10"])
def shared(request, shared_of):
    """Neovim before 0.11 has other functions for messages and positions; the code is the same otherwise."""
    return shared_of(request.param)


@pytest.fixture
def edited(editor):
    """An editor in which the first call has got an argument, in normal mode."""
    editor.open(SOURCE)
    editor.keys("f)i, strict=True<Esc>")
    editor.wait_lines(CHANGED[0], *REST)
    return editor


def wait_shown(editor, row, cursor_row=None):
    """Waits until the edit of a row is shown, with the cursor there or in another row."""
    editor.wait(lambda: editor.lua(DRAWN)[0] == [[row, CHANGED[row]]], f"not shown: {editor.lua(DRAWN)}")
    editor.wait(lambda: editor.cursor[0] == (row if cursor_row is None else cursor_row) + 1, "the cursor is elsewhere")


def wait_hidden(editor):
    editor.wait(lambda: editor.lua(DRAWN) == [[], []], f"still shown: {editor.lua(DRAWN)}")


def test_tab_jumps_and_makes_one_edit_after_the_other(edited):
    wait_shown(edited, 1, cursor_row=0)
    assert edited.lua(DRAWN)[1] == [[0, "<Tab>: next edit in line 2 (2 places)"]]
    edited.keys("<Tab>")
    wait_shown(edited, 1)
    assert edited.lua(DRAWN)[1] == [[1, "<Tab>: make this edit (2 places)"]]
    edited.keys("<Tab>")
    edited.wait(lambda: edited.lines[1] == CHANGED[1], "the edit is not made")
    wait_shown(edited, 3)
    edited.keys("<Tab>")
    edited.wait_lines(*CHANGED)
    wait_hidden(edited)
    assert edited.notifications == []
    edited.keys("u")
    edited.wait_lines(*CHANGED[:3], REST[2])


def test_tab_works_in_insert_mode_behind_code_and_changes_no_option(edited):
    wait_shown(edited, 1, cursor_row=0)
    edited.nvim.command("setlocal undolevels=-1")
    edited.keys("a")
    edited.keys("<Tab>")
    wait_shown(edited, 1)
    edited.keys("<Tab>")
    edited.wait(lambda: edited.lines[1] == CHANGED[1], "the edit is not made")
    assert edited.lua("return { vim.go.undolevels, vim.bo.undolevels }") == [1000, -1]


def test_tab_opens_the_folds_around_the_edit(edited):
    edited.nvim.command("2,3fold | 2,4fold")
    wait_shown(edited, 1, cursor_row=0)
    edited.keys("<Tab>")
    wait_shown(edited, 1)
    assert edited.lua("return vim.fn.foldclosed('.')") == -1


@pytest.mark.parametrize("command", ["DgToggle", "DgSnooze"])
def test_the_edit_is_hidden_while_ghost_text_is_off(edited, command):
    wait_shown(edited, 1, cursor_row=0)
    edited.nvim.command(command)
    is_hidden = edited.lua(DRAWN) == [[], []]
    edited.nvim.command("DgToggle")
    assert is_hidden


def test_tab_indents_where_only_blanks_precede_the_cursor(edited):
    edited.nvim.command("setlocal expandtab shiftwidth=4 softtabstop=4")
    wait_shown(edited, 1, cursor_row=0)
    edited.keys("0i")
    edited.wait(lambda: edited.lua(DRAWN)[1] == [], "the hint is still at the cursor")
    edited.keys("<Tab>")
    edited.wait_lines("    " + CHANGED[0], *REST)


def test_tab_keeps_its_meaning_without_an_edit(editor):
    editor.open(SOURCE)
    editor.keys("G<C-o><Tab>")
    editor.wait(lambda: editor.cursor[0] == 4, "<Tab> does not go back to the newer place")


@pytest.mark.parametrize("command", ["<C-]>", ":lua require('dg_lsp').dismiss()<CR>"])
def test_a_dismissed_edit_is_not_shown_again(edited, command):
    wait_shown(edited, 1, cursor_row=0)
    edited.keys(command)
    wait_hidden(edited)
    edited.nvim.command("silent write")
    wait_shown(edited, 3, cursor_row=0)


def test_the_edits_are_made_by_commands(edited):
    edited.nvim.command("DgNextEdit")
    wait_shown(edited, 1)
    edited.nvim.command("DgNextEdit")
    edited.wait(lambda: edited.lines[1] == CHANGED[1], "the edit is not made")
    wait_shown(edited, 3)
    edited.nvim.command("DgNextEdit")
    edited.wait_lines(*CHANGED)
    reason = "dg-lsp: no next edit: no recent edit is likely to be repeated elsewhere"
    edited.wait(lambda: reason in "".join(edited.notifications), "there is no message")
    wait_hidden(edited)


def test_all_edits_are_made_and_undone_as_one_step(edited):
    edited.nvim.command("DgNextEdit!")
    edited.wait_lines(*CHANGED)
    edited.keys("u")
    edited.wait_lines(CHANGED[0], *REST)


@pytest.mark.parametrize("keys", ["gg", "x", "ix"], ids=["another line", "a change", "insert mode"])
def test_what_is_shown_disappears_when_the_user_goes_on(edited, keys):
    edited.nvim.command("DgNextEdit")
    wait_shown(edited, 1)
    edited.keys(keys)
    edited.wait(lambda: [1, CHANGED[1]] not in edited.lua(DRAWN)[0], "the edit is still shown")
    assert CHANGED[1] not in edited.lines


PARAMETER = """\
def scale(width, factor):
    if width < 0:
        raise ValueError(width)
    return width * factor
"""


def test_the_recording_in_the_documentation_is_what_the_screen_shows(launch):
    """A parameter is renamed in its signature and in its first use, then <Tab> three times."""
    page = (ROOT / "docs/editors/neovim.md").read_text(encoding="utf-8")
    frames = re.findall(r"```text\n(.*?)\n```", page, re.DOTALL)
    editor = launch("0.12", more="vim.o.laststatus = 0\nvim.o.fillchars = 'eob: '\n")
    editor.nvim.ui_attach(72, 8)
    editor.open(PARAMETER)
    editor.keys("fwcwlength<Esc>j0fwcwlength<Esc>")

    def visible_text():
        rows = ("".join(text for text, _ in cells).rstrip() for cells in editor.screen[:6])
        return "\n".join(row for row in rows if row not in ("", "~"))

    assert len(frames) == 4
    for number, frame in enumerate(frames):
        if number:
            editor.keys("<Tab>")
        editor.wait(lambda frame=frame: visible_text() == frame, f"the screen is not frame {number + 1}")
