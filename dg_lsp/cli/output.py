"""Prints completions: as a JSON object, as code with line numbers, and as a canvas step by step."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self, TextIO

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress, ProgressColumn, TextColumn
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from dg_lsp.cli import STARTED
from dg_lsp.context.document import LINE_END, Snapshot
from dg_lsp.engine.decoders.base import Progress as Step
from dg_lsp.engine.engine import drain
from dg_lsp.engine.result import Cell, FillResult, Frame, RewriteResult, Timings

Frames = Generator[Frame, None, FillResult]

MASK, RETURN, END = "·", "↵", "∎"
_SHOWN_FROM = 0.2
"""Drafts of a lower confidence are shown as masks."""
_COLOURS = ((0.9, "green"), (0.7, "yellow"), (0.4, "dark_orange"), (0.0, "red"))
"""Least confidence, and its colour."""
_NUM_LINES_AROUND = 3
_MAX_LINE_CHARS = 300
"""Characters of a line shown before and after the completion."""
_FILL = Style(bgcolor="grey23")


@contextmanager
def progress(*columns: ProgressColumn) -> Iterator[Progress]:
    """Progress bars on standard error, with a description; a pipe gets nothing."""
    console = Console(stderr=True)
    description = TextColumn("{task.description}")
    with Progress(description, *columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield bars


def fill_object(result: FillResult, load_ms: float) -> dict[str, Any]:
    """Keys in the documented order."""
    return {
        "text": result.text,
        "model": result.model,
        "candidates": [{"text": c.text, "score": round(c.score, 4)} for c in result.candidates],
        "rejected": result.reason,
        "decoder": result.decoder.value,
        "canvas_length": result.canvas_length,
        "steps": result.steps,
        "tokens_per_forward": round(result.tokens_per_forward, 3),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "timings_ms": times(result.timings, load_ms, "prefill", "denoise", "postprocess"),
    }


def times(timings: Timings, load_ms: float, *parts: str) -> dict[str, float]:
    """Milliseconds of the load, of each part, and in total with the load."""
    listed = {"load": load_ms, **{part: getattr(timings, part) for part in parts}, "total": load_ms + timings.total}
    return {part: round(ms, 3) for part, ms in listed.items()}


def timing_line(result: FillResult, load_ms: float) -> str:
    """Times and counts on one line."""
    timings = result.timings
    decoder = f"{result.decoder} {result.canvas_length}" if result.canvas_length else result.decoder.value
    return (
        f"{result.model}: {timings.total:.0f} ms"
        f" (prefill {timings.prefill:.0f}, denoise {timings.denoise:.0f}, postprocess {timings.postprocess:.0f});"
        f" {start_text(load_ms)}; {decoder}, {plural(result.steps, 'step')},"
        f" {result.tokens_per_forward:.1f} tokens per step;"
        f" prompt {result.prompt_tokens} tokens, {result.cached_tokens} cached"
    )


def plural(num: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{num} {noun}{'s' * (num != 1)}"


def start_text(load_ms: float) -> str:
    """The time to load the model, and of the whole command up to now."""
    return f"load {load_ms:.0f} ms, {time.monotonic() - STARTED:.1f} s in all"


def excerpt(snapshot: Snapshot, offset: int, fill: Text, *, with_carets: bool) -> Text:
    """The lines around `offset` with `fill` inserted, with line numbers, and `>` at lines of `fill`.

    With carets, `^` under the inserted text marks it without colours.
    """
    before, after = LINE_END.split(snapshot.text[:offset]), LINE_END.split(snapshot.text[offset:])
    first_number = max(len(before) - _NUM_LINES_AROUND, 1)
    last, first = slice(-_MAX_LINE_CHARS, None), slice(_MAX_LINE_CHARS)
    head = "\n".join(printable(line[last])[last] for line in before[first_number - 1 :])
    tail = "\n".join(printable(line[first])[first] for line in after[: 1 + _NUM_LINES_AROUND])
    code = highlighted(head + fill.plain + tail, snapshot.language)
    start, end = len(head), len(head) + len(fill.plain)
    code.stylize(_FILL, start, end)
    code.stylize(fill.style, start, end)
    for span in fill.spans:
        code.stylize(span.style, start + span.start, start + span.end)
    return _numbered(code, start, end, first_number, with_carets=with_carets)


def highlighted(code: str, language: str) -> Text:
    """The code with syntax colours; plain for unknown languages."""
    text = Syntax("", language, theme="ansi_dark", background_color="default").highlight(code)
    if text.plain == code + "\n":  # the lexer adds it
        text.right_crop(1)
    return text if text.plain == code else Text(code)


def printable(line: str) -> str:
    """Replaces tabs by spaces and control characters by symbols: a file must not control the terminal."""
    return "".join(_symbol(character) for character in line.expandtabs(4))


def for_stream(text: str, stream: TextIO) -> str:
    """Text of a file or a model: a terminal gets no control characters, a pipe gets the text as it is."""
    return "\n".join(map(printable, text.split("\n"))) if stream.isatty() else text


def _symbol(character: str) -> str:
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    return character if character == " " or character.isprintable() else "\N{REPLACEMENT CHARACTER}"


def _numbered(code: Text, start: int, end: int, first_number: int, *, with_carets: bool) -> Text:
    """Adds line numbers; `start` and `end` are offsets into `code`."""
    lines, at, rows = code.split("\n", allow_blank=True), 0, []
    width = len(str(first_number + len(lines) - 1))
    for number, line in enumerate(lines, first_number):
        left, right = max(start - at, 0), min(end - at, len(line))
        is_filled = left <= right and start <= at + len(line) and at <= end
        rows.append(Text.assemble((f"{'>' if is_filled else ' '} {number:>{width}} │ ", "dim"), line))
        shown = line.plain[left:right] if with_carets and is_filled else ""
        if shown.strip():
            indent = cell_len(line.plain[:left]) + len(shown) - len(shown.lstrip())
            rows.append(Text(f"  {'':>{width}} │ " + " " * indent + "^" * cell_len(shown.strip())))
        at += len(line) + 1
    return Text("\n").join(rows)


class Screen:
    """Canvases step by step: on a terminal a drawing and a row for each step, in a pipe only rows."""

    def __init__(self, console: Console, drawn: Callable[[Frame, int], Text]) -> None:
        """`drawn` makes the drawing of a frame from the number of lines of the terminal."""
        self.is_live = console.is_terminal
        self._console, self._drawn, self._rows = console, drawn, list[Text]()
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_live:
            self._live.stop()

    def add(self, frame: Frame) -> None:
        """Shows one more pass. If the terminal is too low, the oldest rows are left out."""
        if not self.is_live:
            self._console.print(plain_row(frame), soft_wrap=True)
            return
        self._rows.append(coloured_row(frame, self._console.width))
        drawing = self._drawn(frame, self._console.height)
        free = self._console.height - drawing.plain.count("\n") - 3  # and a line for the cursor
        self._live.update(Group(drawing, *self._rows[-max(free, 1) :]), refresh=True)

    def print_rows(self) -> None:
        """The rows again, at the end: with the drawing they went."""
        for row in self._rows:
            self._console.print(row)


def watch(frames: Frames, snapshot: Snapshot, offset: int, console: Console) -> FillResult:
    """Shows every frame, then the code with the completion."""

    def code(frame: Frame, _height: int) -> Text:
        return excerpt(snapshot, offset, draft_text(frame), with_carets=not _has_colours(console))

    with Screen(console, code) as screen:
        result = drain(frames, screen.add)
    show_fill(result, snapshot, offset, console)
    screen.print_rows()
    return result


def watch_gaps(
    steps: Generator[Step, None, RewriteResult], frame: Callable[[Step], Frame], *, is_json: bool
) -> RewriteResult:
    """Shows every canvas of a fill of gaps: on a terminal as code, with the gaps coloured."""
    with Screen(Console(highlight=False, stderr=is_json), lambda one, _height: canvas_code(one)) as screen:
        result = drain(steps, lambda step: screen.add(frame(step)))
    screen.print_rows()
    return result


def canvas_code(frame: Frame) -> Text:
    """The canvas as code: what is frozen as it stands in the buffer, the gaps in the colours of their confidence."""
    code = Text()
    for cell in frame.cells:
        text, style = _styled(cell)
        if cell.is_frozen:
            code.append("\n".join(printable(line) for line in cell.text.split("\n")))
        elif not cell.is_end:
            code.append(text.replace(RETURN, "\n") if cell.is_committed else text, f"{style} on grey23")
    return code


def show_fill(result: FillResult, snapshot: Snapshot, offset: int, console: Console) -> None:
    """Prints the code around the cursor with the best candidate, if there is one."""
    fill = Text("\n".join(printable(line) for line in result.text.splitlines()), style="bold")
    code = excerpt(snapshot, offset, fill, with_carets=not _has_colours(console))
    console.print(code, soft_wrap=not console.is_terminal)


def plain_row(frame: Frame) -> Text:
    """Step number and canvas without colours; tokens that are not committed are masks."""
    return Text(f"{frame.step:>4}  " + "".join(_shape(cell) if cell.is_committed else MASK for cell in frame.cells))


def coloured_row(frame: Frame, width: int) -> Text:
    """Step number and canvas on one line; drafts are dim, committed tokens bold."""
    row = Text.assemble((f"{frame.step:>4}  ", "dim"), *(_styled(cell) for cell in frame.cells), no_wrap=True)
    row.truncate(width, overflow="ellipsis")
    return row


def _has_colours(console: Console) -> bool:
    return console.is_terminal and console.color_system is not None and not console.no_color


def _shape(cell: Cell) -> str:
    return END if cell.is_end else printable(cell.text.replace("\n", RETURN)) or MASK


def _styled(cell: Cell) -> tuple[str, str]:
    if cell.is_frozen:
        return _shape(cell), ""
    if not cell.is_committed and cell.confidence < _SHOWN_FROM:
        return MASK, "dim red"
    colour = next(name for least, name in _COLOURS if cell.confidence >= least or least == 0.0)
    return _shape(cell), f"{'bold' if cell.is_committed else 'dim'} {colour}"


def draft_text(frame: Frame) -> Text:
    """The text of earlier canvases and of this one up to its first end token."""
    draft = Text().append(frame.earlier_text, "bold")
    for cell in frame.cells:
        if cell.is_end:
            break
        is_line_end = cell.is_committed and "\n" in cell.text
        text, style = _styled(cell)
        draft.append(text.replace(RETURN, "\n") if is_line_end else text, style)
    return draft
