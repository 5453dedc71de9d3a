"""A fill as the JSON object that the documentation promises, and as one line for a person."""

import re
from collections.abc import Generator
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import drain
from dg_lsp.engine.result import Cell, FillResult, Frame


def fill_object(result: FillResult, load_ms: float) -> dict[str, Any]:
    """Keys in the documented order; times in milliseconds, `total` with the load in it."""
    timings = result.timings
    return {
        "text": result.text,
        "model": result.model,
        "candidates": [{"text": c.text, "score": round(c.score, 4)} for c in result.candidates],
        "rejected": rejected(result),
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


def rejected(result: FillResult) -> str | None:
    """Why there is nothing to show; None when there is something."""
    if result.candidates or not result.rejections:
        return None
    return result.rejections[0].reason.value


def timing_line(result: FillResult, load_ms: float) -> str:
    """What the fill cost, for a person."""
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
_LONGEST = 300
"""Characters of a line that are shown before and after the fill."""

_LINE_END = re.compile(r"\r\n|\r|\n")
_FILL = Style(bgcolor="grey23")
_GUTTER = Style(dim=True)


def excerpt(text: str, offset: int, fill: Text, *, language: str, with_carets: bool) -> Text:
    """The lines around `offset` with `fill` there, line numbers in front, `>` at lines of the fill.

    With carets, a line of `^` under each filled stretch shows without colours what was filled.
    """
    before = _LINE_END.split(text[:offset])
    after = _LINE_END.split(text[offset:])
    head, tail = before[-1 - NUM_LINES_AROUND :], after[: 1 + NUM_LINES_AROUND]
    head[-1], tail[0] = head[-1][-_LONGEST:], tail[0][:_LONGEST]
    lines_before = "\n".join(printable(line)[-_LONGEST:] for line in head)
    code = highlighted(lines_before + fill.plain + "\n".join(printable(line)[:_LONGEST] for line in tail), language)
    start, end = len(lines_before), len(lines_before) + len(fill.plain)
    code.stylize(_FILL, start, end)
    code.stylize(fill.style, start, end)
    for span in fill.spans:
        code.stylize(span.style, start + span.start, start + span.end)
    return _numbered(code, start, end, len(before) - len(head) + 1, with_carets=with_carets)


def highlighted(code: str, language: str) -> Text:
    """Syntax colours; unknown languages stay plain."""
    text = Syntax("", language, theme="ansi_dark", background_color="default").highlight(code)
    if text.plain == code + "\n":  # added by the lexer
        text.right_crop(1)
    return text if text.plain == code else Text(code)


def printable(line: str) -> str:
    """Tabs as spaces, and control characters as pictures: a file must not steer the terminal."""
    return "".join(_picture(character) for character in line.expandtabs(4))


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return character if character == " " or character.isprintable() else "\N{REPLACEMENT CHARACTER}"


def _numbered(code: Text, start: int, end: int, first_number: int, *, with_carets: bool) -> Text:
    """Gutter before each line; positions are offsets into `code`."""
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
"""Confidence under which a draft says nothing yet and stays a mask on the screen."""

_COLOURS = ((0.9, "green"), (0.7, "yellow"), (0.4, "dark_orange"), (0.0, "red"))


def watch(frames: Frames, snapshot: Snapshot, offset: int, console: Console) -> FillResult:
    """Shows every frame as it comes, and the filled code at the end; in a pipe one plain line per frame."""
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
    """The code around the cursor with the best candidate in place; the code alone when there is none."""
    fill = Text("\n".join(printable(line) for line in result.text.splitlines()), style="bold")
    console.print(_place(snapshot, offset, fill, console), soft_wrap=not console.is_terminal)


def plain_row(frame: Frame) -> Text:
    """Step number and canvas without colours: what is not committed is a mask."""
    return Text(f"{frame.step:>4}  " + "".join(_shape(cell) if cell.is_committed else MASK for cell in frame.cells))


def coloured_row(frame: Frame, width: int) -> Text:
    """Step number and canvas on one line of the terminal: drafts dim, committed tokens bold."""
    row = Text.assemble((f"{frame.step:>4}  ", "dim"), *(_cell(cell) for cell in frame.cells), no_wrap=True)
    row.truncate(width, overflow="ellipsis")
    return row


def _place(snapshot: Snapshot, offset: int, fill: Text, console: Console) -> Text:
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
    """What stands on the terminal after each frame: the code with the draft in it, and the rows so far."""

    def __init__(self, snapshot: Snapshot, offset: int, console: Console) -> None:
        self._snapshot = snapshot
        self._offset = offset
        self._console = console
        self._block = 0
        self._settled = ""
        self._earlier = ""
        self.rows: list[Text] = []

    def after(self, frame: Frame) -> Group:
        """The screen with one more frame; the oldest rows leave a terminal that is too low."""
        if frame.block != self._block:
            self._block, self._earlier = frame.block, self._settled
        self._settled = frame.settled_text
        self.rows.append(coloured_row(frame, self._console.width))
        place = _place(self._snapshot, self._offset, self._draft(frame), self._console)
        free = self._console.height - place.plain.count("\n") - 3  # and a line where the cursor rests
        return Group(place, *self.rows[-max(free, 1) :])

    def _draft(self, frame: Frame) -> Text:
        """Earlier canvases and this one up to its first end token, line ends as they will be."""
        draft = Text().append(self._earlier, "bold")
        for cell in frame.cells:
            if cell.is_end:
                break
            is_line_end = cell.is_committed and "\n" in cell.text
            text, style = _cell(cell)
            draft.append(text.replace(LINE_END, "\n") if is_line_end else text, style)
        return draft
