"""The canvas settling step by step: one row of cells per denoising step.

Driven by the engine's frames; changes nothing of the result.
"""

from collections.abc import Generator

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dg_lsp.cli.excerpt import excerpt, printable
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.engine.drain import drain
from dg_lsp.engine.result import Cell, FillResult, Frame

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
