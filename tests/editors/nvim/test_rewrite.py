"""Commands that change code: the request, the changed buffer, and the message to the user."""

import json
import re

import pytest

SOURCE = "def f(a):\n    total = a + 1\n    return total\n"
REWRITTEN = SOURCE.replace("a + 1", "2 * a")


@pytest.fixture(params=["0.12", "0.10"])
def shared(request, shared_of):
    """Neovim before 0.11 has other functions for messages and positions; the code is the same otherwise."""
    return shared_of(request.param)


def done(editor):
    [outcome] = editor.wait(lambda: editor.lua("return outcomes"), "a command is done")
    return outcome


def command_of(editor):
    [command] = editor.received("workspace/executeCommand")
    return command["command"], command["arguments"][0]


def test_a_line_is_rewritten_and_one_undo_restores_it(editor):
    editor.open(SOURCE)
    editor.nvim.command("2DgRewrite double it")
    assert done(editor)["applied"]
    assert editor.lines == REWRITTEN.splitlines()
    name, argument = command_of(editor)
    assert (name, argument["instruction"]) == ("dg-lsp.rewrite", "double it")
    assert argument["range"] == {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 17}}
    editor.keys("u")
    editor.wait_lines(*SOURCE.splitlines())


def test_a_selection_is_rewritten_character_by_character(editor):
    editor.open(SOURCE.replace("total = a", "total = 'é😋' * a"))
    editor.keys("jfévf😋:DgFill<CR>")
    done(editor)
    name, argument = command_of(editor)
    start, end = (argument["range"][side]["character"] for side in ("start", "end"))
    encoding = editor.lua("return vim.lsp.get_clients({ name = 'dg_lsp' })[1].offset_encoding")
    line = "    total = 'é😋' * a + 1"
    codec, width = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2)}[encoding]
    assert (name, argument["strength"]) == ("dg-lsp.rewrite", 1)
    assert line.encode(codec)[start * width : end * width].decode(codec) == "é😋"


CODE_ACTION = (
    "lua vim.lsp.buf.code_action({ apply = true, range = { start = { 2, 4 }, ['end'] = { 2, 17 } },"
    " filter = function(one) return one.title == 'Rewrite selection…' end })"
)


@pytest.mark.parametrize("command", ["2DgRewrite", CODE_ACTION], ids=["command", "code action"])
def test_the_editor_prompts_for_the_instruction(editor, command):
    editor.open(SOURCE)
    editor.lua("vim.ui.input = function(options, answer) prompt = options.prompt; answer('double it') end")
    editor.nvim.command(command)
    assert done(editor)["applied"]
    assert editor.lua("return prompt") == "Rewrite: "
    assert command_of(editor)[1]["instruction"] == "double it"
    assert editor.lines == REWRITTEN.splitlines()


@pytest.mark.parametrize("way", ["argument", "prompt", "code action"])
def test_the_command_of_a_failing_test_is_an_argument_or_entered(editor, way):
    editor.open(SOURCE)
    editor.lua("local test = ...; vim.ui.input = function(options, answer) asked = options; answer(test) end", "make x")
    commands = {"argument": "2DgFixTest make x", "prompt": "2DgFixTest"}
    editor.nvim.command(commands.get(way, CODE_ACTION.replace("Rewrite selection…", "Fix the failing test…")))
    assert "no saved file in a folder of the workspace" in done(editor)["reason"]
    name, argument = command_of(editor)
    assert (name, argument["test"], argument["range"]["start"]["line"]) == ("dg-lsp.fixTest", "make x", 1)
    if way != "argument":
        assert editor.lua("return asked.prompt") == "Failing test: "


def test_without_an_instruction_nothing_is_rewritten(editor):
    editor.open(SOURCE)
    editor.lua("vim.ui.input = function(_, answer) answer(nil) end")
    editor.nvim.command("2DgRewrite")
    editor.nvim.command("2DgRewrite x")
    done(editor)
    assert len(editor.received("workspace/executeCommand")) == 1


def test_a_block_is_completed_at_the_cursor(editor):
    editor.open("# It is:\n\n")
    editor.keys("j")
    editor.nvim.command("DgFill")
    assert done(editor)["applied"]
    assert editor.lines[:4] == ["# It is:", "# later", "# than you think", "# it is"]


def test_a_rewrite_can_be_cancelled(editor):
    editor.open(SOURCE)
    editor.hold.touch()
    editor.nvim.command("2DgRewrite double it")
    editor.wait(lambda: "double it" in editor.status)
    editor.nvim.command("DgCancel")
    editor.wait(lambda: editor.received("window/workDoneProgress/cancel"))
    editor.hold.unlink()
    assert not done(editor)["applied"]
    assert editor.lines == SOURCE.splitlines()
    assert "double it" not in editor.status
    editor.nvim.command("DgCancel")
    assert editor.notifications[-1] == "dg-lsp: no rewrite is running"


@pytest.mark.parametrize("kind", ["0.12", "0.11", "0.10"])
def test_a_rewrite_is_done_when_its_server_is_killed(kind, launch):
    editor = launch(kind)
    editor.open(SOURCE)
    editor.hold.touch()
    editor.nvim.command("2DgRewrite double it")
    editor.wait(lambda: "double it" in editor.status)
    editor.lua("vim.lsp.get_clients({ name = 'dg_lsp' })[1].rpc.terminate()")
    assert done(editor) == {"applied": False, "reason": "the server has ended"}
    editor.close()


def test_a_command_without_a_server_is_an_error_message(editor):
    editor.open("x\n", wait=False)
    editor.nvim.command("enew | setlocal buftype=nofile")
    for command in ("DgRewrite x", "DgFill", "DgStatus"):
        editor.nvim.command(command)
    assert ["not running" in message for message in editor.notifications] == [True] * 3


def test_the_reason_for_ghost_text_at_the_cursor_and_for_none(editor):
    editor.open()
    editor.keys("idef hello<Esc>")
    for where, part in (("A", "(name):"), ("0i", "")):
        editor.keys(where)
        editor.lua("notifications = {}")
        editor.nvim.command("DgWhy")
        [message] = editor.wait(lambda: editor.notifications)
        assert message.startswith("dg-lsp: ")
        assert part in message
        editor.keys("<Esc>")
    editor.nvim.command("DgToggle")
    editor.nvim.command("DgWhy")
    editor.nvim.command("DgToggle")
    assert "dg-lsp: ghost text is off; :DgToggle turns it on" in editor.notifications


def test_the_status_has_model_time_counts_and_the_useful_edits_of_the_day(editor):
    editor.show("idef hello", "(name):")
    editor.wait(lambda: " ms" in editor.status)
    editor.wait(
        lambda: editor.lua("return require('dg_lsp.status').of(0).dgLsp.shown") >= 1, "no shown completion is counted"
    )
    editor.nvim.command("DgStatus")
    [message] = editor.notifications
    assert message.startswith("dg-lsp · ready · scripted · ")
    assert json.loads(message.split("\n")[1].split(" ")[0]) >= 1
    editor.keys("<Tab>")
    editor.wait_lines("def hello(name):")
    editor.wait(lambda: editor.received("workspace/executeCommand"))
    editor.open()  # a closed document is judged at once
    pattern = re.compile(r"dg-lsp · ready · scripted · .*\d+ useful today, median \d+ ms")
    editor.wait(lambda: pattern.fullmatch(editor.status))


def test_a_status_line_executes_no_text_of_a_file(editor):
    """lualine evaluates what the function returns once more; a title can quote the message of a diagnostic."""
    editor.open(SOURCE)
    editor.nvim.command("set laststatus=2 statusline=%{%v:lua.require'dg_lsp'.status()%}")
    editor.hold.touch()
    editor.nvim.command("2DgRewrite %{execute('let g:executed=1')} x")
    editor.wait(lambda: "executed" in editor.status)
    editor.nvim.command("redrawstatus!")
    editor.hold.unlink()
    done(editor)
    assert not editor.nvim.eval("exists('g:executed')")
