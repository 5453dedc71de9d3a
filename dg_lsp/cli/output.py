"""Prints completions: as a JSON object, as code with line numbers, and as a canvas step by step."""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress, ProgressColumn, TextColumn
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import drain
from dg_lsp.engine.result import Cell, FillResult, Frame


@contextmanager
def progress(*columns: ProgressColumn) -> Iterator[Progress]:
    """Progress bars on standard error, with a description; a pipe gets nothing."""
    console = Console(stderr=True)
    description = TextColumn("{task.description}")
    with Progress(description, *columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield bars


def fill_object(result: FillResult, load_ms: float) -> dict[str, Any]:
    """Keys in the documented order; times in milliseconds, `total` includes loading."""
    timings = result.timings
    return {
        "text": result.text,
        "model": result.model,
        "candidates": [{"text": c.text, "score": round(c.score, 4)} for c in result.candidates],
        "rejected": rejection_reason(result),
        "decoder": result.decoder.value,
        "canvas_length": result.canvas_length,
        "steps": result.steps,
        "tokens_per_forward": round(result.tokens_per_forward, 3),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "timings_ms": {
            "load": round(load_ms, 3),
            "prefill": round(timings.prefill, 3),
            "denoise": round(timings.denoise, 3),
            "postprocess": round(timings.postprocess, 3),
            "total": round(load_ms + timings.total, 3),
        },
    }


def rejection_reason(result: FillResult) -> str | None:
    """The reason why there is no completion, or None."""
    if result.candidates or not result.rejections:
        return None
    return result.rejections[0].reason.value


def timing_line(result: FillResult, load_ms: float) -> str:
    """Times and counts on one line."""
    timings = result.timings
    return (
        f"{result.model}: {timings.total:.0f} ms"
        f" (prefill {timings.prefill:.0f}, denoise {timings.denoise:.0f}, postprocess {timings.postprocess:.0f})"
        f" after {load_ms:.0f} ms load; {_decoder(result)}, {result.steps} steps,"
        f" {result.tokens_per_forward:.1f} tokens per step;"
        f" prompt {result.prompt_tokens} tokens, {result.cached_tokens} cached"
    )


def _decoder(result: FillResult) -> str:
    return f"{result.decoder} {result.canvas_length}" if result.canvas_length else result.decoder.value


NUM_LINES_AROUND = 3
_MAX_LINE_CHARS = 300
"""Characters of a line shown before and after the completion."""

_LINE_END = re.compile(r"\r\n|\r|\n")
_FILL = Style(bgcolor="grey23")
_GUTTER = Style(dim=True)


def excerpt(text: str, offset: int, fill: Text, *, language: str, with_carets: bool) -> Text:
    """The lines around `offset` with `fill` inserted, with line numbers, and `>` at lines of `fill`.

    With carets, `^` under the inserted text marks it without colours.
    """
    before = _LINE_END.split(text[:offset])
    after = _LINE_END.split(text[offset:])
    head, tail = before[-1 - NUM_LINES_AROUND :], after[: 1 + NUM_LINES_AROUND]
    head[-1], tail[0] = head[-1][-_MAX_LINE_CHARS:], tail[0][:_MAX_LINE_CHARS]
    lines_before = "\n".join(printable(line)[-_MAX_LINE_CHARS:] for line in head)
    code = highlighted(
        lines_before + fill.plain + "\n".join(printable(line)[:_MAX_LINE_CHARS] for line in tail), language
    )
    start, end = len(lines_before), len(lines_before) + len(fill.plain)
    code.stylize(_FILL, start, end)
    code.stylize(fill.style, start, end)
    for span in fill.spans:
        code.stylize(span.style, start + span.start, start + span.end)
    return _numbered(code, start, end, len(before) - len(head) + 1, with_carets=with_carets)


def highlighted(code: str, language: str) -> Text:
    """The code with syntax colours; plain for unknown languages."""
    text = Syntax("", language, theme="ansi_dark", background_color="default").highlight(code)
    if text.plain == code + "\n":  # the lexer adds it
        text.right_crop(1)
    return text if text.plain == code else Text(code)


def printable(line: str) -> str:
    """Replaces tabs by spaces and control characters by symbols: a file must not control the terminal."""
    return "".join(_symbol(character) for character in line.expandtabs(4))


def _symbol(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return character if character == " " or character.isprintable() else "\N{REPLACEMENT CHARACTER}"


def _numbered(code: Text, start: int, end: int, first_number: int, *, with_carets: bool) -> Text:
    """Adds line numbers; `start` and `end` are offsets into `code`."""
    lines, at, rows = code.split("\n", allow_blank=True), 0, []
    width = len(str(first_number + len(lines) - 1))
    for number, line in enumerate(lines, first_number):
        left, right = max(start - at, 0), min(end - at, len(line))
        is_filled = left <= right and start <= at + len(line) and at <= end
        rows.append(Text.assemble((f"{'>' if is_filled else ' '} {number:>{width}} ", _GUTTER), ("│ ", _GUTTER), line))
        if with_carets and is_filled and line.plain[left:right].strip():
            shown = line.plain[left:right]
            indent = cell_len(line.plain[:left]) + len(shown) - len(shown.lstrip())
            rows.append(Text(f"  {'':>{width}} │ " + " " * indent + "^" * cell_len(shown.strip())))
        at += len(line) + 1
    return Text("\n").join(rows)


Frames = Generator[Frame, None, FillResult]

MASK, LINE_END, END = "·", "↵", "∎"
_SHOWN_FROM = 0.2
"""Drafts of a lower confidence are shown as masks."""

_COLOURS = ((0.9, "green"), (0.7, "yellow"), (0.4, "dark_orange"), (0.0, "red"))


def watch(frames: Frames, snapshot: Snapshot, offset: int, console: Console) -> FillResult:
    """Shows every frame, then the code with the completion; in a pipe, one plain line a frame."""
    if not console.is_terminal:
        result = drain(frames, lambda frame: console.print(plain_row(frame), soft_wrap=True))
        show_fill(result, snapshot, offset, console)
        return result
    screen = _Screen(snapshot, offset, console)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        result = drain(frames, lambda frame: live.update(screen.after(frame), refresh=True))
    show_fill(result, snapshot, offset, console)
    for row in screen.rows:
        console.print(row)
    return result


def show_fill(result: FillResult, snapshot: Snapshot, offset: int, console: Console) -> None:
    """Prints the code around the cursor with the best candidate, if there is one."""
    fill = Text("\n".join(printable(line) for line in result.text.splitlines()), style="bold")
    console.print(_excerpt_at(snapshot, offset, fill, console), soft_wrap=not console.is_terminal)


def plain_row(frame: Frame) -> Text:
    """Step number and canvas without colours; tokens that are not committed are masks."""
    return Text(f"{frame.step:>4}  " + "".join(_shape(cell) if cell.is_committed else MASK for cell in frame.cells))


def coloured_row(frame: Frame, width: int) -> Text:
    """Step number and canvas on one line; drafts are dim, committed tokens bold."""
    row = Text.assemble((f"{frame.step:>4}  ", "dim"), *(_cell(cell) for cell in frame.cells), no_wrap=True)
    row.truncate(width, overflow="ellipsis")
    return row


def _excerpt_at(snapshot: Snapshot, offset: int, fill: Text, console: Console) -> Text:
    has_colours = console.is_terminal and console.color_system is not None and not console.no_color
    return excerpt(snapshot.text, offset, fill, language=snapshot.language, with_carets=not has_colours)


def _shape(cell: Cell) -> str:
    if cell.is_end:
        return END
    return printable(cell.text.replace("\n", LINE_END)) or MASK


def _style(cell: Cell) -> str:
    colour = next(name for least, name in _COLOURS if cell.confidence >= least or least == 0.0)
    return f"bold {colour}" if cell.is_committed else f"dim {colour}"


def _cell(cell: Cell) -> tuple[str, str]:
    if not cell.is_committed and cell.confidence < _SHOWN_FROM:
        return MASK, "dim red"
    return _shape(cell), _style(cell)


class _Screen:
    """Content of the terminal after each frame: the code with the draft, and one row a step."""

    def __init__(self, snapshot: Snapshot, offset: int, console: Console) -> None:
        self._snapshot = snapshot
        self._offset = offset
        self._console = console
        self._block = 0
        self._settled = ""
        self._earlier = ""
        self.rows: list[Text] = []

    def after(self, frame: Frame) -> Group:
        """Content after this frame. If the terminal is too low, the oldest rows are left out."""
        if frame.block != self._block:
            self._block, self._earlier = frame.block, self._settled
        self._settled = frame.settled_text
        self.rows.append(coloured_row(frame, self._console.width))
        code = _excerpt_at(self._snapshot, self._offset, self._draft(frame), self._console)
        free = self._console.height - code.plain.count("\n") - 3  # and a line for the cursor
        return Group(code, *self.rows[-max(free, 1) :])

    def _draft(self, frame: Frame) -> Text:
        """The text of earlier canvases and of this one up to its first end token."""
        draft = Text().append(self._earlier, "bold")
        for cell in frame.cells:
            if cell.is_end:
                break
            is_line_end = cell.is_committed and "\n" in cell.text
            text, style = _cell(cell)
            draft.append(text.replace(LINE_END, "\n") if is_line_end else text, style)
        return draft
