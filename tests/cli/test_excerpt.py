import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from dg_lsp.cli.output import excerpt, printable
from dg_lsp.context.document import Snapshot

CODE = "".join(f"line_{number} = {number}\n" for number in range(1, 21))


def shown(text, offset, fill, *, with_carets=True, language="python"):
    snapshot = Snapshot("a.py", 0, text, language)
    return excerpt(snapshot, offset, Text(fill), with_carets=with_carets).plain.splitlines()


def test_three_lines_before_and_after_are_shown_with_numbers():
    offset = CODE.index("line_10 = ") + len("line_10 = ")
    assert shown(CODE, offset, "9 + ") == [
        "   7 │ line_7 = 7",
        "   8 │ line_8 = 8",
        "   9 │ line_9 = 9",
        "> 10 │ line_10 = 9 + 10",
        "     │           ^^^",
        "  11 │ line_11 = 11",
        "  12 │ line_12 = 12",
        "  13 │ line_13 = 13",
    ]


def test_every_line_of_a_completion_is_marked():
    assert shown("def f():\n    \nx\n", 13, "if y:\n        return\n    z") == [
        "  1 │ def f():",
        "> 2 │     if y:",
        "    │     ^^^^^",
        "> 3 │         return",
        "    │         ^^^^^^",
        "> 4 │     z",
        "    │     ^",
        "  5 │ x",
        "  6 │ ",
    ]


def test_without_a_completion_the_cursors_line_is_marked():
    assert shown("a\nb\nc", 3, "") == ["  1 │ a", "> 2 │ b", "  3 │ c"]
    assert shown("", 0, "") == ["> 1 │ "]


def test_carets_account_for_wide_characters():
    assert shown("s = '😋é' + ", 11, "x")[1] == "    │             ^"


@pytest.mark.parametrize("newline", ["\r\n", "\r", "\n"])
def test_all_line_ends_are_counted(newline):
    lines = shown(newline.join(["a", "b", "c = "]), len(f"a{newline}b{newline}c = "), "1", with_carets=False)
    assert lines == ["  1 │ a", "  2 │ b", "> 3 │ c = 1"]


def test_long_lines_are_cut_around_the_completion():
    lines = shown("x" * 10_000 + "y" * 10_000, 10_000, "FILL", with_carets=False)
    assert len(lines) == 1
    assert "x" * 300 + "FILL" + "y" * 300 in lines[0]
    assert len(lines[0]) < 700


def test_the_completion_is_highlighted():
    text = excerpt(Snapshot("a.py", 0, "x = \n"), 4, Text("1 + 2", style="bold"), with_carets=False)
    bold = [text.plain[span.start : span.end] for span in text.spans if "bold" in str(span.style)]
    assert bold == ["1 + 2"]


def test_control_characters_are_replaced_by_symbols():
    assert printable("a\tb\x1b[0m\x07\x7f\u202e😋é ") == "a   b␛[0m␇\ufffd\ufffd😋é "


@given(st.text(max_size=60), st.integers(0, 60), st.text(max_size=9).map(printable))
@settings(deadline=None)
def test_any_text_is_shown_without_control_characters(text, at, fill):
    lines = shown(text, min(at, len(text)), fill, with_carets=False)
    assert sum(line.startswith(">") for line in lines) == 1
    assert all(character == " " or character.isprintable() or character == "\ufffd" for character in "".join(lines))
