"""Answers that come when the user has gone on: never shown where they do not belong, never taken twice."""

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
    """Opens a file, types, and waits until that was asked for."""

    def make(text, keys):
        editor.open(text, wait=False)
        editor.lua("late.asked, late.cancelled = {}, {}; late.start()")
        editor.wait(lambda: editor.lua("return #vim.lsp.get_clients({ name = 'dg_lsp', bufnr = 0 }) == 1"))
        editor.keys(keys)
        wait_asked(editor, 1)
        return editor

    return make


def wait_asked(editor, number):
    editor.wait(lambda: editor.lua("return #late.asked") >= number, f"request {number}")


def answer(editor, number, *texts):
    editor.lua("late.answer(...)", number, *texts)


def test_an_answer_that_does_not_fit_any_longer_is_dropped(typed):
    editor = typed("", "ire")
    editor.keys("d")
    editor.wait(lambda: editor.lines == ["red"])
    answer(editor, 1, "turn 1")
    assert editor.ghosts == []
    wait_asked(editor, 2)
    answer(editor, 2, "uce()")
    editor.wait_ghost("uce()")


def test_an_answer_that_says_what_was_typed_meanwhile_is_shown_where_the_cursor_is_now(typed):
    editor = typed("", "ire")
    editor.keys("t")
    editor.wait(lambda: editor.lines == ["ret"])
    answer(editor, 1, "turn 1")
    editor.wait_ghost("urn 1")
    editor.keys("<Tab>")
    editor.wait_lines("return 1")


def test_the_key_that_takes_it_knows_what_was_typed_since(typed):
    editor = typed("", "ire")
    answer(editor, 1, "turn 1")
    editor.wait_ghost("turn 1")
    editor.keys("tu<Tab>")
    editor.wait_lines("return 1")


def test_an_answer_for_a_line_that_was_left_is_dropped(typed):
    editor = typed("\nx = 1\n", "ire")
    editor.keys("<Down>")
    editor.wait(lambda: editor.cursor[0] == 2)
    answer(editor, 1, "turn 1")
    assert editor.ghosts == []


def test_an_answer_after_insert_mode_is_dropped(typed):
    editor = typed("", "ire")
    editor.keys("<Esc>")
    editor.wait(lambda: editor.nvim.api.get_mode()["mode"] == "n")
    answer(editor, 1, "turn 1")
    assert editor.ghosts == []


def test_text_that_came_after_the_cursor_makes_it_useless(typed):
    editor = typed("", "ifoo")
    answer(editor, 1, "(a, b)")
    editor.wait_ghost("(a, b)")
    editor.keys("()<Left>")
    editor.wait(lambda: editor.lines == ["foo()"])
    editor.wait(lambda: editor.cursor == (1, 4))
    assert editor.ghosts == []
    wait_asked(editor, 2)
    answer(editor, 2, "a, b")
    editor.wait_ghost("a, b")
    editor.keys("<Tab>")
    editor.wait_lines("foo(a, b)")


def test_the_newest_request_cancels_the_one_before(typed):
    editor = typed("", "ire")
    editor.keys("t")
    wait_asked(editor, 2)
    first, second = editor.lua("return vim.tbl_map(function(one) return one.id end, late.asked)")
    assert editor.lua("return late.cancelled") == [first]
    answer(editor, 1, "turn 1")
    assert editor.ghosts == []
    answer(editor, 2, "urn 2")
    editor.wait_ghost("urn 2")
    assert second != first


def test_the_same_place_is_not_asked_for_twice_at_a_time(typed):
    editor = typed("", "ire")
    editor.lua("for _ = 1, 3 do vim.api.nvim_exec_autocmds('CursorMovedI', { buffer = 0 }) end")
    editor.lua("late_seen = false; vim.defer_fn(function() late_seen = true end, 400)")
    editor.wait(lambda: editor.lua("return late_seen"))
    assert editor.lua("return { #late.asked, #late.cancelled }") == [1, 0]


def test_nothing_is_shown_where_nothing_came(typed):
    editor = typed("", "ire")
    answer(editor, 1, "turn 1")
    editor.wait_ghost("turn 1")
    editor.keys("t")
    wait_asked(editor, 2)
    answer(editor, 2)
    editor.wait(lambda: editor.ghosts == [])
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines[0].rstrip() == "ret" and editor.lines[0] != "ret")


def test_another_fill_is_asked_for_and_they_are_gone_through(typed):
    editor = typed("", "ire")
    answer(editor, 1, "turn 1")
    editor.wait_ghost("turn 1")
    editor.keys("<M-]>")
    wait_asked(editor, 2)
    assert editor.lua("return { late.asked[1].kind, late.asked[2].kind }") == [2, 1]
    answer(editor, 2, "turn 1", "turn 2", "turn 3")
    editor.wait_ghost("turn 2 (2/3)")
    editor.keys("<M-]>")
    editor.wait_ghost("turn 3 (3/3)")
    editor.keys("<M-]>")
    editor.wait_ghost("turn 1 (1/3)")
    editor.keys("<M-[><Tab>")
    editor.wait_lines("return 3")
    assert editor.ghosts == []


def test_a_key_of_ones_own_that_may_change_nothing_takes_it_all_the_same(typed):
    editor = typed("", "ire")
    mapping = """vim.keymap.set("i", "<Right>", function()
      return require("dg_lsp").accept() and "" or "<Right>"
    end, { expr = true, buffer = 0 })"""
    assert mapping.replace("\n    ", "\n").replace(", buffer = 0", "") in re.sub(
        r"\n {4}", "\n", (HERE.parents[2] / "editors/nvim/doc/dg_lsp.txt").read_text()
    )
    editor.lua(mapping)
    answer(editor, 1, "turn 1")
    editor.wait_ghost("turn 1")
    editor.keys("<Right>")
    editor.wait_lines("return 1")
    assert editor.ghosts == []
