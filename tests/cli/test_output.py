import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.cli.output import coloured_row, excerpt, printable, watch
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import Cell, FillRequest, Frame
from dg_lsp.settings import CompletionSettings, SamplerOptions

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


def test_long_lines_are_cut_around_the_completion():
    lines = shown("x" * 10_000 + "y" * 10_000, 10_000, "FILL", with_carets=False)
    assert len(lines) == 1
    assert "x" * 300 + "FILL" + "y" * 300 in lines[0]
    assert len(lines[0]) < 700


def test_control_characters_are_replaced_by_symbols():
    assert printable("a\tb\x1b[0m\x07\x7f\u202e😋é ") == "a   b␛[0m␇\ufffd\ufffd😋é "


@given(st.text(max_size=60), st.integers(0, 60), st.text(max_size=9).map(printable))
@settings(deadline=None)
def test_any_text_is_shown_without_control_characters(text, at, fill):
    lines = shown(text, min(at, len(text)), fill, with_carets=False)
    assert sum(line.startswith(">") for line in lines) == 1
    assert all(character == " " or character.isprintable() or character == "\ufffd" for character in "".join(lines))


SNAPSHOT = Snapshot("a.py", 0, "def f(x):\n    \n\n\ny = f(1)\n")
OFFSET = 14


UNHURRIED = {"deadline_ms": 60_000, "early_stop_ms": 0}


def frames_of(fill, canvas_length=None, **settings):
    denoiser = ScriptedDenoiser(fill)
    return LocalEngine(denoiser, denoiser.tokenizer, CompletionSettings(**UNHURRIED, **settings)).frames(
        FillRequest(SNAPSHOT, OFFSET, sampler=SamplerOptions(canvas_length=canvas_length))
    )


def watched(fill, *, terminal, width=60, height=30, **settings):
    out = io.StringIO()
    colours = "truecolor" if terminal else None
    console = Console(
        file=out,
        force_terminal=terminal,
        width=width,
        height=height,
        color_system=colours,
        _environ={"TERM": "xterm-256color"},  # independent of the terminal of the test run
    )
    result = watch(frames_of(fill, **settings), SNAPSHOT, OFFSET, console)
    return result, out.getvalue()


FRAME = Frame(
    block=0,
    step=12,
    cells=(
        Cell("ret", 0.99, True, False),
        Cell("urn\n", 0.95, True, False),
        Cell("\t", 0.6, False, False),
        Cell("x", 0.1, False, False),
        Cell("", 0.99, True, True),
    ),
    settled_text="return\n",
)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_coloured_row_fits_into_the_width(width):
    wide = Frame(0, 1, tuple(Cell("long_name", 0.5, False, False) for _ in range(64)), "")
    assert coloured_row(wide, width).cell_len <= width


def test_on_a_terminal_the_code_is_shown_above_the_rows():
    result, out = watched("return x", terminal=True)
    last = out.rpartition("\x1b[?25h")[2]  # after the live part
    assert last.index("def") < last.rindex("∎")
    assert last.count("∎") >= 1
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1  # the cursor is hidden and shown again
    assert "\x1b[2K" in out
    assert result.text == "return x"


def test_a_low_terminal_does_not_scroll():
    """A live part that is higher than the terminal cannot be erased again."""
    result, out = watched("return [" + ", ".join("abcdefghijklmnop") + "]", terminal=True, height=12)
    parts = re.sub(r"\x1b\[[0-9;]*m", "", out).split("\r")
    assert 0 < max(part.count("\x1b[1A") for part in parts) < 12
    assert result.steps > 12
    live = next(part for part in parts if "\x1b[?25h" in part)
    assert re.search(rf"\n +{result.steps}  ", live), "the newest step is not on the screen"
