"""The last edits are repeated by a command: the next place is shown, the edit is made, all are made."""

import pytest

SOURCE = "a = load(x, mode)\nb = load(x, mode)\nc = 1\nd = load(x, mode)\n"
CHANGED = SOURCE.replace(", mode)", ", mode, strict=True)").splitlines()
VIRTUAL_LINES = """
local namespace = vim.api.nvim_get_namespaces()["dg_lsp_next_edit"]
local marks = namespace and vim.api.nvim_buf_get_extmarks(0, namespace, 0, -1, { details = true }) or {}
return vim.tbl_map(function(mark) return { mark[2], mark[4].virt_lines[1][1][1] } end, marks)
"""


@pytest.fixture
def edited(editor):
    """An editor in which the first call has got an argument."""
    editor.open(SOURCE)
    editor.keys("f)i, strict=True<Esc>")
    editor.wait_lines(CHANGED[0], *SOURCE.splitlines()[1:])
    return editor


def wait_shown(editor, row):
    """Waits until the edit of a row is shown, and the cursor is there."""
    editor.wait(lambda: editor.lua(VIRTUAL_LINES) == [[row, CHANGED[row]]], "the edit is not shown")
    assert editor.cursor[0] == row + 1


def test_the_edits_are_made_one_by_one(edited):
    edited.nvim.command("DgNextEdit")
    wait_shown(edited, 1)
    edited.nvim.command("DgNextEdit")
    edited.wait(lambda: edited.lines[1] == CHANGED[1], "the edit is not made")
    wait_shown(edited, 3)
    edited.nvim.command("DgNextEdit")
    edited.wait_lines(*CHANGED)
    edited.wait(lambda: "no next edit" in "".join(edited.notifications), "there is no message")
    assert edited.lua(VIRTUAL_LINES) == []


def test_all_edits_are_made_and_undone_as_one_step(edited):
    edited.nvim.command("DgNextEdit!")
    edited.wait_lines(*CHANGED)
    edited.keys("u")
    edited.wait_lines(CHANGED[0], *SOURCE.splitlines()[1:])


@pytest.mark.parametrize("keys", ["gg", "x", "ix"], ids=["another line", "a change", "insert mode"])
def test_what_is_shown_disappears_when_the_user_goes_on(edited, keys):
    edited.nvim.command("DgNextEdit")
    wait_shown(edited, 1)
    edited.keys(keys)
    edited.wait(lambda: edited.lua(VIRTUAL_LINES) == [], "the edit is still shown")
    assert CHANGED[1] not in edited.lines


def test_without_an_edit_the_reason_is_shown(editor):
    editor.open(SOURCE)
    editor.nvim.command("DgNextEdit")
    editor.wait(lambda: "was not edited lately" in "".join(editor.notifications), "there is no message")
