"""Typing in a real editor: what is shown, what a key takes of it, and what the server hears."""

import time

HELLO = "(name):"
BLOCK = "# later\n# than you think\n# it is"
DEBOUNCE = 0.075
"""Seconds; the plugin's own, which is the shorter of the two."""


def test_ghost_text_is_an_extmark_and_tab_takes_it(editor):
    editor.open("# é😋\n")
    editor.keys("Godef hello")
    editor.wait_ghost(HELLO)
    assert editor.lines == ["# é😋", "def hello"]
    editor.keys("<Tab>")
    editor.wait_lines("# é😋", "def hello(name):")
    assert editor.cursor == (2, 16)
    assert editor.ghosts == []


def test_a_block_is_shown_below_the_line_and_taken_whole(editor):
    editor.open("# It is:\n")
    editor.keys("o")
    editor.wait_ghost(BLOCK)
    editor.keys("<Tab>")
    editor.wait_lines("# It is:", *BLOCK.split("\n"))
    assert editor.cursor == (4, 7)


def test_columns_are_right_after_an_emoji(editor):
    editor.open()
    editor.keys("is = 'é😋' + ")
    editor.wait_ghost("str(3)")
    editor.keys("<Tab>")
    editor.wait_lines("s = 'é😋' + str(3)")


def test_a_word_then_a_word_then_the_rest(editor):
    editor.open()
    editor.keys("idef good")
    editor.wait_ghost("_night(moon, stars):")
    editor.keys("<M-Right>")
    editor.wait_ghost("(moon, stars):")
    assert editor.lines == ["def good_night"]
    editor.keys("<M-Right>")
    editor.wait_ghost("moon, stars):")
    editor.keys("<M-Right><Tab>")
    editor.wait_lines("def good_night(moon, stars):")
    assert editor.ghosts == []


def test_line_by_line(editor):
    editor.open("# It is:\n")
    editor.keys("o")
    editor.wait_ghost(BLOCK)
    editor.hold.touch()
    editor.keys("<M-Down>")
    editor.wait_lines("# It is:", "# later")
    editor.wait_ghost("\n# than you think\n# it is")
    editor.keys("<M-Down>")
    editor.wait_lines("# It is:", "# later", "# than you think")
    editor.keys("<M-Down>")
    editor.wait_lines("# It is:", *BLOCK.split("\n"))
    assert editor.cursor == (4, 7)


def test_the_server_hears_what_was_shown_and_how_much_was_taken(editor):
    editor.open()
    editor.keys("idef hello")
    editor.wait_ghost(HELLO)
    [shown] = editor.wait(lambda: editor.heard("textDocument/didShowCompletion"))
    name = shown["item"]["command"]["arguments"][0]
    editor.keys("<M-Right>")
    [part] = editor.wait(lambda: editor.heard("textDocument/didPartiallyAcceptCompletion"))
    assert (part["item"], part["acceptedLength"]) == (shown["item"], len("("))
    editor.open()
    editor.keys("idef hello")
    editor.wait_ghost(HELLO)
    editor.keys("<Tab>")
    [run] = editor.wait(lambda: editor.heard("workspace/executeCommand"))
    assert run["command"] == "dg-lsp.accepted"
    assert run["arguments"][0] != name


def test_typing_what_it_says_keeps_it_and_anything_else_removes_it_at_once(editor):
    editor.open()
    editor.keys("idef hello")
    editor.wait_ghost(HELLO)
    editor.hold.touch()
    for number in (1, 2):
        editor.keys(HELLO[number - 1])
        editor.wait_ghost(HELLO[number:])
    editor.keys("#")
    editor.wait(lambda: editor.lines == ["def hello(n#"])
    assert editor.ghosts == []


def test_tab_is_a_tab_where_nothing_is_shown(editor):
    editor.open()
    editor.keys("inothing known<Tab>")
    editor.wait(lambda: editor.lines[0].rstrip() == "nothing known" and editor.lines[0] != "nothing known")


def test_leaving_insert_mode_removes_it_and_coming_back_asks_again(editor):
    editor.open()
    editor.keys("idef hello")
    editor.wait_ghost(HELLO)
    editor.keys("<Esc>")
    editor.wait(lambda: not editor.ghosts)
    editor.keys("A")
    editor.wait_ghost(HELLO)


def test_each_state_of_the_buffer_is_asked_for_once(editor):
    editor.open()
    editor.keys("i")
    began = time.monotonic()
    for key in "def hello":
        editor.keys(key.replace(" ", "<Space>"))
    typing = time.monotonic() - began
    editor.wait_ghost(HELLO)
    editor.keys("<Esc>")
    editor.wait(lambda: not editor.ghosts)
    asked, version = [], 0
    for message in editor.messages():
        if message.get("method") == "textDocument/didChange":
            version = message["params"]["textDocument"]["version"]
        elif message.get("method") == "textDocument/inlineCompletion":
            asked.append((version, str(message["params"]["position"])))
    assert len(asked) == len(set(asked))
    assert 1 <= len(asked) <= 3 + typing / DEBOUNCE


def test_a_dos_file_gets_no_carriage_returns(editor):
    path = editor.open("# It is:\r\n")
    editor.keys("o")
    editor.wait_ghost(BLOCK)
    editor.keys("<Tab>")
    editor.wait_lines("# It is:", *BLOCK.split("\n"))
    editor.keys("<Esc>")
    editor.nvim.command("write")
    assert path.read_bytes() == f"# It is:\n{BLOCK}\n".replace("\n", "\r\n").encode()


def test_dismissed_is_gone_until_the_next_key(editor):
    editor.open()
    editor.keys("idef hell")
    editor.wait_ghost("o" + HELLO)
    editor.keys("<C-]>")
    editor.wait(lambda: not editor.ghosts)
    editor.keys("o")
    editor.wait_ghost(HELLO)


def test_what_was_taken_is_undone_by_itself(editor):
    editor.open()
    editor.keys("idef hello")
    editor.wait_ghost(HELLO)
    editor.keys("<Tab>")
    editor.wait_lines("def hello" + HELLO)
    editor.keys("<Esc>u")
    editor.wait_lines("def hello")


def test_toggled_off_nothing_is_asked(editor):
    editor.open()
    editor.nvim.command("DgToggle")
    assert "off" in editor.lua("return require('dg_lsp').status()")
    editor.keys("idef hello")
    # what is asked for is asked for within 200 ms
    editor.lua("rested = false; vim.defer_fn(function() rested = true end, 400)")
    editor.wait(lambda: editor.lua("return rested"))
    asked = editor.heard("textDocument/inlineCompletion")
    editor.open()
    editor.keys("idef hell")
    editor.lua("rested = false; vim.defer_fn(function() rested = true end, 400)")
    editor.wait(lambda: editor.lua("return rested"))
    assert (asked + editor.heard("textDocument/inlineCompletion"), editor.ghosts) == ([], [])
    editor.keys("<Esc>")
    editor.nvim.command("DgToggle")
    editor.keys("Ao")
    editor.wait_ghost(HELLO)
