"""Prints completions: as JSON, as code with line numbers, as a patch, and as a canvas step by step."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.live import Live
from rich.syntax import Syntax
from rich.text import Text

from dg_lsp.cli.printing import plural
from dg_lsp.context.document import LINE_END, Snapshot
from dg_lsp.engine.request import Cell, FillResult, Frame, Timings
from dg_lsp.errors import escaped

MASK, RETURN, END = "·", "↵", "∎"
_SHOWN_FROM = 0.2
"""Drafts of a lower confidence are shown as masks."""
_COLOURS = ((0.9, "green"), (0.7, "yellow"), (0.4, "dark_orange"), (0.0, "red"))
"""Least confidence, and its colour."""
_NUM_LINES_AROUND = 3
_MAX_LINE_CHARS = 300
"""Characters of a line shown before and after the completion."""
_FILL = "on grey23"


def fill_object(result: FillResult, load_ms: float) -> dict[str, Any]:
    """What `fill --json` prints, with the keys in the documented order."""
    return {
        "text": result.text,
        "model": result.model,
        "candidates": [{"text": c.text, "score": round(c.score, 4)} for c in result.candidates],
        "rejected": result.reason,
        **costs(result, load_ms),
    }


def costs(result: FillResult, load_ms: float) -> dict[str, Any]:
    """The decoder of a fill or a text, and what it has cost, in JSON values."""
    return {
        "decoder": result.decoder.value,
        "canvas_length": result.canvas_length,
        "steps": result.steps,
        "tokens_per_forward": round(result.tokens_per_forward, 3),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "timings_ms": times(result.timings, load_ms),
    }


def times(timings: Timings, load_ms: float) -> dict[str, float]:
    """Milliseconds of the load, of each part, and in total with the load."""
    listed = {"load": load_ms} | {part: getattr(timings, part) for part in ("prefill", "denoise", "postprocess")}
    listed["total"] = load_ms + timings.total
    return {part: round(ms, 3) for part, ms in listed.items()}


def cost_line(result: FillResult, load_ms: float) -> str:
    """Times and counts on one line."""
    timings = result.timings
    decoder = f"{result.decoder} {result.canvas_length}" if result.canvas_length else result.decoder.value
    return (
        f"{result.model}: {timings.total:.0f} ms"
        f" (prefill {timings.prefill:.0f}, denoise {timings.denoise:.0f}, postprocess {timings.postprocess:.0f});"
        f" load {load_ms:.0f} ms; {decoder}, {plural(result.steps, 'step')},"
        f" {result.tokens_per_forward:.1f} tokens per step;"
        f" prompt {result.prompt_tokens} tokens, {result.cached_tokens} cached"
    )


def show_fill(result: FillResult, snapshot: Snapshot, offset: int, console: Console) -> None:
    """Prints the code around the cursor with the best candidate, if there is one."""
    fill = Text("\n".join(printable(line) for line in result.text.splitlines()), style="bold")
    console.print(excerpt(snapshot, offset, fill), soft_wrap=not console.is_terminal)


def excerpt(snapshot: Snapshot, offset: int, fill: Text) -> Text:
    """The lines around `offset` with `fill` inserted, with line numbers, and `>` at lines of `fill`."""
    before, after = LINE_END.split(snapshot.text[:offset]), LINE_END.split(snapshot.text[offset:])
    first_number = max(len(before) - _NUM_LINES_AROUND, 1)
    head = "\n".join(printable(line)[-_MAX_LINE_CHARS:] for line in before[first_number - 1 :])
    tail = "\n".join(printable(line)[:_MAX_LINE_CHARS] for line in after[: 1 + _NUM_LINES_AROUND])
    code = highlighted(head + fill.plain + tail, snapshot.language)
    start, end = len(head), len(head) + len(fill.plain)
    code.stylize(_FILL, start, end)
    code.stylize(fill.style, start, end)
    for span in fill.spans:
        code.stylize(span.style, start + span.start, start + span.end)
    lines = code.split("\n", allow_blank=True)
    filled = range(len(before), len(before) + fill.plain.count("\n") + 1)
    width = len(str(first_number + len(lines) - 1))
    rows = [
        Text.assemble((f"{'>' if number in filled else ' '} {number:>{width}} │ ", "dim"), line)
        for number, line in enumerate(lines, first_number)
    ]
    return Text("\n").join(rows)


def highlighted(code: str, language: str) -> Text:
    """The code with syntax colours; plain for unknown languages."""
    text = Syntax("", language, theme="ansi_dark", background_color="default").highlight(code)
    if text.plain == code + "\n":  # the lexer adds it
        text.right_crop(1)
    return text if text.plain == code else Text(code)


def printable(line: str) -> str:
    """A line with spaces for tabs and escapes for control characters: a file must not control the terminal."""
    return escaped(line.expandtabs(4))


def for_stream(text: str, stream: TextIO) -> str:
    """Text of a file or a model: a terminal gets no control characters, a pipe gets the text as it is."""
    return "\n".join(map(printable, text.split("\n"))) if stream.isatty() else text


def print_patch(patch: bytes) -> None:
    """Prints a patch: a pipe gets its bytes, a terminal gets colours and no control characters."""
    if not sys.stdout.isatty():
        typer.echo(patch, nl=False)
        return
    text = for_stream(patch.decode("utf-8", "replace").removesuffix("\n"), sys.stdout)
    Console(highlight=False).print(highlighted(text, "diff"), soft_wrap=True)


# canvases


@contextmanager
def canvas_screen(console: Console, drawn: Callable[[Frame], Text]) -> Iterator[Callable[[Frame], None]]:
    """Yields the function that shows one more canvas: on a terminal as a drawing, in a pipe as a row."""
    with Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext() as live:

        def show(frame: Frame) -> None:
            if not frame.cells:  # between two pieces of a prompt, and from a server
                return
            if live is None:
                console.print(plain_row(frame), soft_wrap=True)
                return
            lines = drawn(frame).split("\n", allow_blank=True)
            live.update(Text("\n").join(lines[1 - console.height :]), refresh=True)

        yield show


def drawing(frame: Frame, *, is_marked: bool = False) -> Text:
    """The canvas as code: frozen text as it stands in the buffer, the rest in the colours of its confidence.

    What follows an end token up to the next frozen text is left out. The gaps get a background if `is_marked`.
    """
    background = f" {_FILL}" if is_marked else ""
    code = Text().append(frame.earlier_text, "bold")
    is_ended = False
    for cell in frame.cells:
        is_ended = (is_ended or cell.is_end) and not cell.is_frozen
        if cell.is_frozen:
            code.append("\n".join(printable(line) for line in cell.text.split("\n")))
        elif not is_ended:
            text, style = _styled(cell)
            code.append(text.replace(RETURN, "\n") if cell.is_committed else text, f"{style}{background}")
    return code


def plain_row(frame: Frame) -> Text:
    """Step number and canvas without colours; tokens that are not committed are masks."""
    return Text(f"{frame.step:>4}  " + "".join(_shape(cell) if cell.is_committed else MASK for cell in frame.cells))


def _shape(cell: Cell) -> str:
    return END if cell.is_end else printable(cell.text.replace("\n", RETURN)) or MASK


def _styled(cell: Cell) -> tuple[str, str]:
    if not cell.is_committed and cell.confidence < _SHOWN_FROM:
        return MASK, "dim red"
    colour = next(name for least, name in _COLOURS if cell.confidence >= least or least == 0.0)
    return _shape(cell), f"{'bold' if cell.is_committed else 'dim'} {colour}"
