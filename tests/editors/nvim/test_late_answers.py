"""Answers that arrive after the user has typed on: an answer that does not fit is not shown."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=["0.12", "0.12-own", "0.11", "0.10"])
def editor(request, launch):
    """An editor whose server is part of it."""
    off = "vim.g.dg_lsp = vim.tbl_extend('force', vim.g.dg_lsp, { enable = false })\n"
    return launch(request.param, more=off + f"dofile({str(HERE / 'late_answers.lua')!r})\n")


@pytest.fixture
def typed(editor):
    def make(text, keys):
        editor.open(text, wait=False)
        editor.lua("late.requests, late.cancelled, late.edits = {}, {}, {}; late.start()")
        editor.wait(lambda: editor.lua("return #vim.lsp.get_clients({ name = 'dg_lsp', bufnr = 0 }) == 1"))
        editor.keys(keys)
        wait_requests(editor, 1)
        return editor

    return make


@pytest.fixture
def shown(typed):
    """An editor that shows `turn 1` after `re`."""
    editor = typed("", "ire")
    answer(editor, 1, "turn 1")
    editor.wait_ghost("turn 1")
    return editor


def wait_requests(editor, number):
    editor.wait(lambda: editor.lua("return #late.requests") >= number, f"request {number}")


def answer(editor, number, *texts):
    editor.lua("late.answer(...)", number, *texts)


def test_an_answer_that_does_not_fit_the_typed_text_is_dropped(typed):
    editor = typed("", "ire")
    editor.keys("d")
    editor.wait(lambda: editor.lines == ["red"])
    answer(editor, 1, "turn 1")
    assert editor.ghosts == []
    wait_requests(editor, 2)
    answer(editor, 2, "uce()")
    editor.wait_ghost("uce()")


def test_the_rest_of_an_answer_that_begins_with_the_typed_text_is_shown_and_accepted_behind_another_key(typed):
    editor = typed("", "ire")
    editor.keys("t")
    editor.wait(lambda: editor.lines == ["ret"])
    answer(editor, 1, "turn 1")
    editor.wait_ghost("urn 1")
    editor.keys("u<Tab>")
    editor.wait_lines("return 1")


@pytest.mark.parametrize(
    ("key", "has_moved"),
    [
        pytest.param("<Down>", lambda editor: editor.cursor[0] == 2, id="another line"),
        pytest.param("<Esc>", lambda editor: editor.nvim.api.get_mode()["mode"] == "n", id="normal mode"),
    ],
)
def test_an_answer_is_dropped_after_the_cursor_has_moved(typed, key, has_moved):
    editor = typed("\nx = 1\n", "ire")
    editor.keys(key)
    editor.wait(lambda: has_moved(editor))
    answer(editor, 1, "turn 1")
    assert editor.ghosts == []


def test_text_inserted_after_the_cursor_removes_the_ghost_text(typed):
    editor = typed("", "ifoo")
    answer(editor, 1, "(a, b)")
    editor.wait_ghost("(a, b)")
    editor.keys("()<Left>")
    editor.wait(lambda: editor.lines == ["foo()"])
    editor.wait(lambda: editor.cursor == (1, 4))
    assert editor.ghosts == []
    wait_requests(editor, 2)
    answer(editor, 2, "a, b")
    editor.wait_ghost("a, b")
    editor.keys("<Tab>")
    editor.wait_lines("foo(a, b)")


def test_the_newest_request_cancels_the_one_before(typed):
    editor = typed("", "ire")
    editor.keys("t")
    wait_requests(editor, 2)
    assert editor.lua("return #late.cancelled == 1 and late.cancelled[1] == late.requests[1].id")
    answer(editor, 1, "turn 1")
    assert editor.ghosts == []
    answer(editor, 2, "urn 2")
    editor.wait_ghost("urn 2")


def test_an_empty_answer_removes_the_ghost_text_and_tab_inserts_a_tab(shown):
    shown.keys("t")
    wait_requests(shown, 2)
    answer(shown, 2)
    shown.wait(lambda: shown.ghosts == [])
    shown.keys("<Tab>")
    shown.wait(lambda: shown.lines[0].rstrip() == "ret" and shown.lines[0] != "ret")


def test_other_candidates_are_requested_and_shown_one_after_another(shown):
    shown.keys("<M-]>")
    wait_requests(shown, 2)
    assert shown.lua("return { late.requests[1].kind, late.requests[2].kind }") == [2, 1]
    answer(shown, 2, "turn 1", "turn 2", "turn 3")
    shown.wait_ghost("turn 2 (2/3)")
    shown.keys("<M-]>")
    shown.wait_ghost("turn 3 (3/3)")
    shown.keys("<M-]>")
    shown.wait_ghost("turn 1 (1/3)")
    shown.keys("<M-[><Tab>")
    shown.wait_lines("return 3")
    assert shown.ghosts == []


def test_an_expression_mapping_of_the_user_accepts_ghost_text(shown):
    mapping = """vim.keymap.set("i", "<Right>", function()
      return require("dg_lsp").accept() and "" or "<Right>"
    end, { expr = true, buffer = 0 })"""
    assert mapping.replace("\n    ", "\n").replace(", buffer = 0", "") in re.sub(
        r"\n {4}", "\n", (HERE.parents[2] / "editors/nvim/doc/dg_lsp.txt").read_text()
    )
    shown.lua(mapping)
    shown.keys("<Right>")
    shown.wait_lines("return 1")
    assert shown.ghosts == []


NEXT_EDITS = "return #vim.api.nvim_buf_get_extmarks(0, vim.api.nvim_create_namespace('dg_lsp_next_edit'), 0, -1, {})"


def test_a_dismissed_next_edit_does_not_come_back_with_an_older_answer(typed):
    editor = typed("\nb\n", "ia")
    for number, keys in ((1, "<Esc>"), (2, "i<Esc>")):
        editor.keys(keys)
        editor.wait(lambda number=number: editor.lua("return #late.edits") == number, f"request {number}")
    editor.lua("late.edit(2)")
    editor.wait(lambda: editor.lua(NEXT_EDITS), "no edit is shown")
    editor.keys("<C-]>")
    editor.wait(lambda: not editor.lua(NEXT_EDITS), "the edit is still shown")
    editor.lua("late.edit(1)")
    editor.rest()
    assert not editor.lua(NEXT_EDITS)
