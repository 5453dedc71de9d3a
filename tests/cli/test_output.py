import io
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from scripted import ScriptedDenoiser, engine_for

from dg_lsp.cli.output import canvas_screen, drawing, excerpt, printable, show_fill
from dg_lsp.cli.printing import print_facts, progress_bar
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import FillRequest


def shown(text, offset, fill):
    return excerpt(Snapshot("a.py", text, "python"), offset, Text(fill)).plain.splitlines()


def test_every_line_of_a_completion_is_marked_and_long_lines_are_cut():
    lines = shown("def f():\n    \nx\n", 13, "if y:\n    z")
    assert lines == ["  1 │ def f():", "> 2 │     if y:", "> 3 │     z", "  4 │ x", "  5 │ "]
    assert shown("x" * 999 + "y" * 999, 999, "FILL") == [f"> 1 │ {'x' * 300}FILL{'y' * 300}"]


@given(st.text(max_size=60), st.integers(0, 60), st.text(max_size=9).map(printable))
@settings(max_examples=30)
def test_any_text_is_shown_without_control_characters(text, at, fill):
    lines = shown(text, min(at, len(text)), fill)
    assert sum(line.startswith(">") for line in lines) == 1
    assert all(character.isprintable() or character == "\N{NO-BREAK SPACE}" for character in "".join(lines))


@pytest.mark.parametrize("height", [30, 5])
def test_a_terminal_shows_the_code_with_the_draft_until_the_completion_is_there(height):
    """A live part that is higher than the terminal cannot be erased again."""
    snapshot = Snapshot("a.py", "def f(x):\n    \n\n\ny = f(1)\n")
    denoiser = ScriptedDenoiser("return [" + ", ".join("abcdefghijklmnop") + "]")
    engine = engine_for(denoiser, deadline_ms=60_000, early_stop_ms=0)
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=True,
        width=60,
        height=height,
        color_system="truecolor",
        _environ={"TERM": "xterm-256color"},  # independent of the terminal of the test run
    )
    with canvas_screen(console, lambda frame: excerpt(snapshot, 14, drawing(frame))) as show:
        steps = FillRequest(snapshot, 14).run(engine, float("inf"))
        result = drain(steps, lambda progress: show(progress.frame()))
    show_fill(result, snapshot, 14, console)
    live, _, last = out.getvalue().rpartition("\x1b[?25h")
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1  # the cursor is hidden and shown
    parts = re.sub(r"\x1b\[[0-9;]*m", "", live).split("\r")
    assert 0 < max(part.count("\x1b[1A") for part in parts) < height
    assert "def" in last
    assert result.text.startswith("return [")


def test_only_numbers_of_bytes_are_printed_as_sizes(capsys):
    print_facts({"pid": 2_345_678, "seconds": 123456.7, "weights_bytes": 2_345_678, "gpus": [{"memory": 24e9}]})
    rows = ["pid      2345678", "seconds  123457", "weights  2 MB", "gpus     memory: 24.0 GB"]
    assert capsys.readouterr().out.splitlines() == rows


def test_a_name_does_not_control_the_terminal_by_a_progress_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("[/a]\x1b]0;x", 2) as advance:
        advance(1)
    shown = capsys.readouterr().err
    assert r"[/a]\x1b]0;x" in shown
    assert "\x1b]" not in shown


NAME = "a\x1b]0;x\x07\nb\u202e"
ESCAPED = r"a\x1b]0;x\x07\nb\u202e"


@pytest.mark.parametrize("command", ["fill a.py:1", "doctor", "why a.py:1", "bench cut . -o c"])
def test_the_name_of_a_folder_is_printed_with_escapes(command, dg_lsp, script, tmp_path, monkeypatch):
    """It does not control the terminal."""
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "a.py").write_text("x = \n" + "y = 1  # a line of a longer file\n" * 20)
    (folder / "dg-lsp.toml").write_text('[model]\nname = "other.gguf"\n')
    monkeypatch.chdir(folder)
    outcome = dg_lsp(*command.split())
    assert ESCAPED in outcome.out + outcome.err
    assert not re.search("[\x1b\x07\u202e]|^b", outcome.out + outcome.err, re.MULTILINE)


def test_every_command_prints_by_the_functions_that_escape():
    """The others print JSON in ASCII, a question of their own, or text as `for_stream` and `printable` change it."""
    allowed = re.compile(r'json|nl=False|for_stream|printable|get_help|echo\("(\\n)?"')
    paths = (Path(__file__).parents[2] / "dg_lsp/cli").glob("*.py")
    lines = [line.strip() for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    printed = [line for line in lines if re.search(r"typer\.s?echo\(", line)]
    assert [line for line in printed if not allowed.search(line)] == ["typer.echo(escaped(str(line)), err=err)"]
