"""Typing in a real editor: the ghost text, the keys that accept it, and the messages that the server receives."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from shared_daemon import kill

from dg_lsp.daemon.endpoint import Endpoint

HELLO = "(name):"
BLOCK = "# later\n# than you think\n# it is"
SHARED = Path(__file__).parents[2] / "e2e/scripted_daemon.py"


def test_tab_accepts_ghost_text_after_an_emoji_and_undo_removes_it(editor):
    editor.show("Gos = 'é😋' + ", "str(3)", "# é😋\n")
    assert editor.lines == ["# é😋", "s = 'é😋' + "]
    editor.keys("<Tab>")
    editor.wait_lines("# é😋", "s = 'é😋' + str(3)")
    assert editor.ghosts == []
    editor.keys("<Esc>u")
    editor.wait_lines("# é😋", "s = 'é😋' + ")


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["unix", "dos"])
def test_a_block_is_shown_below_the_line_and_accepted_whole(editor, newline):
    path = editor.open(f"# It is:{newline}")
    editor.keys("o")
    editor.wait_ghost(BLOCK)
    editor.keys("<Tab>")
    editor.wait_lines("# It is:", *BLOCK.split("\n"))
    assert editor.cursor == (4, 7)
    editor.keys("<Esc>")
    editor.nvim.command("write")
    assert path.read_bytes() == f"# It is:\n{BLOCK}\n".replace("\n", newline).encode()


def test_a_word_is_accepted_then_another_then_the_rest_and_no_option_is_changed(editor):
    editor.show("idef good", "_night(moon, stars):")
    editor.nvim.command("setlocal undolevels=-1")
    editor.keys("<M-Right>")
    editor.wait_ghost("(moon, stars):")
    assert editor.lines == ["def good_night"]
    editor.keys("<M-Right>")
    editor.wait_ghost("moon, stars):")
    editor.keys("<M-Right><Tab>")
    editor.wait_lines("def good_night(moon, stars):")
    assert editor.ghosts == []
    assert editor.lua("return { vim.go.undolevels, vim.bo.undolevels }") == [1000, -1]


def test_ghost_text_is_accepted_line_by_line(editor):
    editor.show("o", BLOCK, "# It is:\n")
    editor.hold.touch()
    editor.keys("<M-Down>")
    editor.wait_lines("# It is:", "# later")
    editor.wait_ghost("\n# than you think\n# it is")
    editor.keys("<M-Down>")
    editor.wait_lines("# It is:", "# later", "# than you think")
    editor.keys("<M-Down>")
    editor.wait_lines("# It is:", *BLOCK.split("\n"))
    assert editor.cursor == (4, 7)


def test_the_server_receives_what_was_shown_and_how_much_was_accepted(editor):
    editor.show("idef hello", HELLO)
    [shown] = editor.wait(lambda: editor.received("textDocument/didShowCompletion"))
    name = shown["item"]["command"]["arguments"][0]
    editor.keys("<M-Right>")
    [part] = editor.wait(lambda: editor.received("textDocument/didPartiallyAcceptCompletion"))
    assert (part["item"], part["acceptedLength"]) == (shown["item"], len("("))
    editor.show("idef hello", HELLO)
    editor.keys("<Tab>")
    [run] = editor.wait(lambda: editor.received("workspace/executeCommand"))
    assert run["command"] == "dg-lsp.accepted"
    assert run["arguments"][0] != name


def test_the_server_learns_the_cursor_before_the_first_key(editor):
    editor.open("a = 1\nb = 2\nc = 3")
    editor.keys(":set updatetime=10<CR>jjl")
    place = {"line": 2, "character": 1}
    editor.wait(lambda: place in [focus["position"] for focus in editor.received("textDocument/didFocus")])


@pytest.mark.parametrize(("remove", "typed"), [("<Esc>", "Ao"), ("<C-]>", "o")], ids=["normal mode", "dismissed"])
def test_removed_ghost_text_is_back_after_the_next_key(editor, remove, typed):
    editor.show("idef hell", "o" + HELLO)
    editor.keys(remove)
    editor.wait(lambda: not editor.ghosts)
    editor.keys(typed)
    editor.wait_ghost(HELLO)


def test_no_completion_is_requested_while_completions_are_off(editor):
    editor.open()
    editor.nvim.command("DgToggle")
    assert "off" in editor.status
    for _ in range(2):
        editor.open()
        editor.keys("idef hell")
        editor.rest()
        assert (editor.received("textDocument/inlineCompletion"), editor.ghosts) == ([], [])
    editor.keys("<Esc>")
    editor.nvim.command("DgToggle")
    editor.keys("Ao")
    editor.wait_ghost(HELLO)


@pytest.mark.parametrize("key", ["<M-Bslash>", "<C-g>"], ids=["default key", "own key"])
def test_the_status_line_has_the_reason_why_a_completion_that_a_key_requests_is_missing(editor, key):
    editor.open()
    editor.nvim.command("imap <buffer> <C-g> <Plug>(dg-lsp-trigger)")
    editor.keys("ix = ")
    editor.rest()  # the automatic request of the last key comes before the requested one
    assert "the result is empty" not in editor.status
    editor.keys(key)
    editor.wait(lambda: "There is no completion: the result is empty." in editor.status, "no reason")
    editor.keys("<CR>def hell")
    editor.wait_ghost("o" + HELLO)
    assert "the result is empty" not in editor.status


def test_snoozed_ghost_text_is_back_after_the_pause(editor):
    editor.show("idef hell", "o" + HELLO)
    editor.nvim.command("DgSnooze 30")
    assert editor.ghosts == []
    assert re.search(r"off until \d\d:\d\d", editor.status)
    editor.nvim.command("DgStatus")
    assert "off until" in editor.notifications[-1]
    before = len(editor.received("textDocument/inlineCompletion"))
    editor.keys("o")
    editor.rest()
    assert (len(editor.received("textDocument/inlineCompletion")), editor.ghosts) == (before, [])
    editor.lua("require('dg_lsp').snooze(0.001)")  # replaces the longer pause
    editor.wait_ghost(HELLO)
    assert "off" not in editor.status


def test_toggle_ends_a_snooze_and_other_arguments_are_rejected(editor):
    editor.open()
    editor.nvim.command("DgSnooze")
    editor.nvim.command("DgToggle")
    editor.keys("idef hello")
    editor.wait_ghost(HELLO)
    for bad in ("soon", "0", "-1", "1e9"):
        editor.nvim.command(f"DgSnooze {bad}")
        assert f"{bad} is not a number of minutes" in editor.notifications[-1].replace("1000000000", bad)
    assert editor.ghost == HELLO
    editor.keys("<Esc>")
    editor.nvim.command("DgToggle")
    editor.nvim.command("DgSnooze 1")
    assert ":DgToggle turns it on" in editor.notifications[-1]
    editor.nvim.command("DgToggle")


@pytest.mark.parametrize("kind", ["0.12", "0.10"])
def test_a_mapping_that_has_the_key_to_accept_is_reported_once(launch, kind):
    editor = launch(kind, more="vim.keymap.set('i', '<Tab>', function() tabs = (tabs or 0) + 1 end)\n")
    use_key = "vim.g.dg_lsp = vim.tbl_extend('force', vim.g.dg_lsp, { keys = { accept = ... } })"
    for key, num_warnings in ((False, 0), ("<Tab>", 1), ("<Tab>", 0)):
        editor.lua(use_key, key)
        editor.show("idef hello", HELLO)
        assert sum('keys = { accept = "<C-y>" }' in message for message in editor.notifications) == num_warnings
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lua("return tabs") == 1)
    editor.close()


@pytest.mark.parametrize(("kind", "is_project"), [("0.12", True), ("0.12-own", False), ("0.11", False), ("0.10", True)])
def test_ghost_text_is_back_after_the_daemon_was_killed(launch, kind, is_project):
    """Of the text that was typed without a server; no other key is needed."""
    editor = launch(kind, cmd=[sys.executable, SHARED, "count", "lsp", "--daemon", "start"])
    endpoint = Endpoint(editor.directory / "no-daemon")
    if is_project:
        (editor.directory / "pyproject.toml").touch()
    editor.show("is = ", "total(0)")
    for number in (1, 2):
        kill(endpoint)
        editor.keys(f"{number} + ")
        editor.wait_ghost(f"total({number})")
    editor.keys("<Tab>")
    editor.wait_lines("s = 1 + 2 + total(2)")
    assert sum("started again" in message for message in editor.notifications) == 1
    editor.close()
    os.kill(endpoint.read().pid, signal.SIGTERM)
