import io
import re

import pytest
from rich.console import Console

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.cli.output import coloured_row, plain_row, watch
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import LocalEngine, drain
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import Cell, Frame
from dg_lsp.settings import CompletionSettings

SNAPSHOT = Snapshot("a.py", 0, "def f(x):\n    \n\n\ny = f(1)\n")
OFFSET = 14


UNHURRIED = {"deadline_ms": 60_000, "early_stop_ms": 0}


def frames_of(fill, **settings):
    denoiser = ScriptedDenoiser(fill)
    return LocalEngine(denoiser, denoiser.tokenizer, CompletionSettings(**UNHURRIED, **settings)).frames(
        FillRequest(SNAPSHOT, OFFSET)
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


def test_a_plain_row_shows_masks_line_ends_and_the_end():
    assert plain_row(FRAME).plain == "  12  return↵··∎"


def test_committed_tokens_and_drafts_have_different_styles():
    row = coloured_row(FRAME, 80)
    assert row.plain == "  12  return↵    ·∎"
    assert [str(span.style) for span in row.spans[1:]] == [
        "bold green",
        "bold green",
        "dim dark_orange",
        "dim red",
        "bold green",
    ]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_coloured_row_fits_into_the_width(width):
    wide = Frame(0, 1, tuple(Cell("long_name", 0.5, False, False) for _ in range(64)), "")
    assert coloured_row(wide, width).cell_len <= width


def test_on_a_terminal_the_code_is_shown_above_the_rows():
    result, out = watched("return x", terminal=True)
    last = out.rpartition("\x1b[?25h")[2]  # after the live part
    assert last.index("def") < last.rindex("∎")
    assert last.count("∎") >= 1
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1
    assert result.text == "return x"


def test_a_low_terminal_does_not_scroll():
    """A live part that is higher than the terminal cannot be erased again."""
    result, out = watched("return [" + ", ".join("abcdefghijklmnop") + "]", terminal=True, height=12)
    parts = re.sub(r"\x1b\[[0-9;]*m", "", out).split("\r")
    assert 0 < max(part.count("\x1b[1A") for part in parts) < 12
    assert result.steps > 12
    live = next(part for part in parts if "\x1b[?25h" in part)
    assert re.search(rf"\n +{result.steps}  ", live), "the newest step is not on the screen"


def test_the_text_of_earlier_canvases_is_kept():
    fill = "if x:\n        return 'a long text'\n    return 'another long text'\n"
    result, out = watched(fill, terminal=True, height=200, canvas_length=8, max_tokens=200)
    assert result.text.startswith("if x:")
    frames = []
    assert drain(frames_of(fill, canvas_length=8, max_tokens=200), frames.append).text == result.text
    assert frames[-1].block > 0
    live = re.sub(r"\x1b\[[0-9;]*m", "", out.partition("\x1b[?25h")[0])
    last = live[live.rindex("def f(x)") :]
    assert "return 'a long text'\n" in last
    assert "return 'another long text'\n" in last
