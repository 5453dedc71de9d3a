"""What Neovim puts on its screen, cell by cell, and a picture of that."""

from dataclasses import dataclass, field
from html import escape

CELL_WIDTH, CELL_HEIGHT, SIZE, MARGIN = 8.4, 19, 14, 12
"""Pixels; a monospaced letter of this size is 0.6 of it wide, and is made to be."""

NO_BREAK = "\u00a0"
"""A space that SVG leaves alone."""


@dataclass
class Screen:
    """A grid of `(text, highlight)`; wide characters are followed by an empty cell."""

    width: int
    height: int
    colours: tuple = (0xFFFFFF, 0)
    highlights: dict = field(default_factory=lambda: {0: {}})
    cursor: tuple = (0, 0)
    cells: list = field(default_factory=list)

    def __post_init__(self):
        self.clear()

    def clear(self):
        self.cells = [[(" ", 0)] * self.width for _ in range(self.height)]

    @classmethod
    def of(cls, nvim, width, height):
        """Attaches to the editor for as long as it takes to draw everything once."""
        screen, is_drawn = cls(width, height), False
        nvim.ui_attach(width, height, rgb=True, ext_linegrid=True)
        while not is_drawn:
            _, name, batches = nvim.next_message()
            for event, *calls in batches if name == "redraw" else ():
                for call in calls:
                    screen.take(event, call)
                is_drawn |= event == "flush" and any(screen.line(row).strip() for row in range(height))
        nvim.ui_detach()
        return screen

    def take(self, event, call):
        """One event of Neovim's `ui-linegrid`."""
        if event == "grid_clear":
            self.clear()
        elif event == "default_colors_set":
            self.colours = tuple(call[:2])
        elif event == "hl_attr_define":
            self.highlights[call[0]] = call[1]
        elif event == "grid_cursor_goto":
            self.cursor = tuple(call[1:3])
        elif event == "grid_line":
            _, row, column, cells, *_ = call
            highlight = 0
            for text, *more in cells:
                highlight = more[0] if more else highlight
                for _ in range(more[1] if len(more) > 1 else 1):
                    self.cells[row][column] = (text, highlight)
                    column += 1

    def line(self, row):
        return "".join(text for text, _ in self.cells[row])

    def runs(self, row):
        """`(column, text, number of cells, highlight)` of neighbours that look the same."""
        found = []
        for column, (text, highlight) in enumerate(self.cells[row]):
            if found and found[-1][3] == highlight:
                start, before, number, _ = found[-1]
                found[-1] = (start, before + text, number + 1, highlight)
            else:
                found.append((column, text, 1, highlight))
        return found

    def svg(self, title):
        """A picture that needs nothing but a monospaced font."""
        fore, back = self.colours
        width, height = self.width * CELL_WIDTH + 2 * MARGIN, self.height * CELL_HEIGHT + 2 * MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="100%" height="100%" rx="6" fill="{_hex(back)}"/>',
            f'<g font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="{SIZE}">',
        ]
        for row in range(self.height):
            for run in self.runs(row):
                parts += self._drawn(row, *run, fore, back)
        row, column = self.cursor
        x, y = MARGIN + column * CELL_WIDTH, MARGIN + row * CELL_HEIGHT
        parts.append(f'<rect x="{x:g}" y="{y:g}" width="2" height="{CELL_HEIGHT}" fill="{_hex(fore)}"/>')
        return "\n".join([*parts, "</g>", "</svg>", ""])

    def _drawn(self, row, column, text, number, highlight, fore, back):
        look = self.highlights.get(highlight, {})
        front, behind = look.get("foreground", fore), look.get("background", back)
        if look.get("reverse"):
            front, behind = behind, front
        x, y = MARGIN + column * CELL_WIDTH, MARGIN + row * CELL_HEIGHT
        width = number * CELL_WIDTH
        if behind != back:
            yield f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{CELL_HEIGHT}" fill="{_hex(behind)}"/>'
        if text.strip():
            style = "".join(
                f' {name}="{value}"'
                for key, name, value in (("italic", "font-style", "italic"), ("bold", "font-weight", "bold"))
                if look.get(key)
            )
            yield (
                f'<text x="{x:g}" y="{y + SIZE:g}" textLength="{width:g}" lengthAdjust="spacingAndGlyphs"'
                f' fill="{_hex(front)}"{style}>{escape(text.replace(" ", NO_BREAK))}</text>'
            )


def _hex(colour):
    return f"#{colour:06x}"
