"""Prints completions and texts: as JSON, as code with line numbers, as a stream, and as a canvas step by step."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import FrameType
from typing import Any, Self, TextIO

import typer
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress, ProgressColumn, TextColumn
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from dg_lsp.cli import INTERRUPTED, STARTED
from dg_lsp.cli.options import TextOptions
from dg_lsp.cli.printing import plural, print_json, print_line
from dg_lsp.context.document import LINE_END, Snapshot
from dg_lsp.engine.decoders.base import Progress as Step
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import Cell, ChatRequest, FillResult, Frame, RewriteResult, Timings

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
    with Screen(Console(highlight=False, stderr=is_json), lambda canvas, _height: canvas_code(canvas)) as screen:
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


# texts and answers


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; a second Ctrl-C raises KeyboardInterrupt. Only the main thread can catch them."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def catch(_number: int, _frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, catch)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def show_text(
    engine: Engine, request: ChatRequest, options: TextOptions, load_ms: float, *, hides_thought: bool = False
) -> tuple[int, str]:
    """Runs a request; prints the text on standard output, the thought, the canvas and the costs beside it.

    Returns the exit code and the text. After Ctrl-C the text is what is settled.
    """
    stream = None if options.as_json else TextStream(hides_thought=hides_thought)
    screen = Screen(Console(stderr=True, highlight=False), _end_of) if options.visual else None

    def show(progress: Step) -> None:
        frame = engine.frame(progress)
        if screen is not None:
            screen.add(frame)
        if stream is not None and not (screen and screen.is_live):  # the text is printed when the screen is gone
            stream.add(frame)

    with stop_on_interrupt() as stop, screen or nullcontext():
        request = replace(request, is_stopped=stop.is_set)
        result = drain(engine.chat(request, deadline=options.end()), show)
    if screen is not None:
        screen.print_rows()
    ended_by = "interrupted" if stop.is_set() else result.ending.value
    if stream is None:
        print_json(_text_object(result, ended_by, load_ms))
    else:
        stream.finish(result)
        print_line(summary_line(result, ended_by, load_ms), err=True)
    return INTERRUPTED if stop.is_set() else 0 if result.text else 1, result.text


class TextStream:
    """Prints the settled text as it grows, one frame late: the result may leave out a part of the last one."""

    def __init__(self, *, hides_thought: bool) -> None:
        self._hides_thought = hides_thought
        self._thought = self._text = self._newest = ""

    def add(self, frame: Frame) -> None:
        """Prints what one more pass has settled."""
        self._add_thought(frame.thought)
        settled, self._newest = self._newest, frame.settled_text
        self._add_text(settled.rstrip("\ufffd"))

    def finish(self, result: FillResult) -> None:
        """Prints the rest, and the end of the line."""
        self._add_thought(result.thought)
        if not result.text.startswith(self._text):  # settled tokens have changed, which uniform noise allows
            self._write("\n")
            self._text = ""
        self._add_text(result.text)
        if not self._text.endswith("\n"):
            self._write("\n")

    def _add_thought(self, thought: str) -> None:
        thought = thought.rstrip("\ufffd\n")
        if self._hides_thought or not thought.startswith(self._thought) or thought == self._thought:
            return
        typer.secho(for_stream(thought[len(self._thought) :], sys.stderr), dim=True, nl=False, err=True)
        self._thought = thought

    def _add_text(self, text: str) -> None:
        if not text.startswith(self._text) or text == self._text:
            return
        if self._thought and not self._text:
            typer.echo("\n", err=True)
        self._write(text[len(self._text) :])
        self._text = text

    def _write(self, text: str) -> None:
        typer.echo(for_stream(text, sys.stdout), nl=False)
        sys.stdout.flush()


def _end_of(frame: Frame, height: int) -> Text:
    """The last lines of the text that fit."""
    return Text("\n").join(draft_text(frame).split("\n", allow_blank=True)[-max(1, height // 2) :])


def summary_line(result: FillResult, ended_by: str, load_ms: float) -> str:
    """Speed and costs on one line."""
    seconds, timings = result.timings.denoise / 1e3, result.timings
    steps = plural(result.steps, "step")
    canvases = steps
    if result.num_blocks:
        blocks = f"{result.num_blocks} canvas{'es' * (result.num_blocks != 1)} of {result.canvas_length} tokens"
        speed = f"{_rate(result.canvas_tokens, seconds):.0f} canvas tokens/s"
        canvases = f"{blocks}, {steps}, {result.tokens_per_forward:.1f} tokens per step, {speed}"
    return (
        f"{result.model}: {result.output_tokens} tokens in {seconds:.2f} s,"
        f" {_rate(result.output_tokens, seconds):.1f} tokens/s; {result.decoder.value}, {canvases};"
        f" prompt {result.prompt_tokens} tokens, {result.cached_tokens} cached, {timings.prefill:.0f} ms;"
        f" {load_ms:.0f} ms load; ended by {ended_by}"
    )


def _text_object(result: FillResult, ended_by: str, load_ms: float) -> dict[str, Any]:
    """Keys in the documented order."""
    seconds = result.timings.denoise / 1e3
    return {
        "text": result.text,
        "thought": result.thought,
        "model": result.model,
        "ended_by": ended_by,
        "decoder": result.decoder.value,
        "canvas_length": result.canvas_length,
        "blocks": result.num_blocks,
        "canvas_tokens": result.canvas_tokens,
        "steps": result.steps,
        "tokens": result.output_tokens,
        "tokens_per_forward": round(result.tokens_per_forward, 3),
        "tokens_per_second": round(_rate(result.output_tokens, seconds), 3),
        "canvas_tokens_per_second": round(_rate(result.canvas_tokens, seconds), 3),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "timings_ms": times(result.timings, load_ms, "prefill", "denoise"),
    }


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0
