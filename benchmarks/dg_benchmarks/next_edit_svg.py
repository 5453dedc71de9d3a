"""Records next edits in Neovim and VS Code as animated SVGs: a name is changed in two lines, and by Tab in two others.

    python -m dg_benchmarks.next_edit_svg FOLDER

Runs the editors that the tests use (`make editors`) in a clone, and writes `neovim-next-edit.svg` and
`vscode-next-edit.svg` into the folder. They show what was on the screens; only the clock is that of the animation.
"""

import argparse
import html
import importlib
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dg_benchmarks.typing_svg import CHAR, LINE, MARGIN, animation, picture

ROOT = Path(__file__).parents[2]
TESTS = [ROOT / "tests/editors/vscode", ROOT / "tests"]
SOURCE = """\
def scale(width, factor):
    if width < 0:
        raise ValueError(width)
    return width * factor
"""
COLUMNS, ROWS = 66, 6
"""Size of Neovim's screen."""
WIDTH, HEIGHT = 720, 150
"""Pixels of VS Code's window that are recorded, below its tabs."""
KEY_MS, STEP_MS = 120.0, 1800.0
"""How long the screen after a key is shown, and one for the reader."""
SERVER = [sys.executable, "-m", "dg_lsp", "lsp", "--stdio"]
INIT = """
vim.o.termguicolors, vim.o.laststatus, vim.o.ruler, vim.o.fillchars = true, 0, false, "eob: "
vim.cmd("syntax on")
vim.lsp.config("dg_lsp", { init_options = { completion = { trigger = "manual" } } })
"""
MARKS = "return #vim.api.nvim_buf_get_extmarks(0, vim.api.nvim_create_namespace('dg_lsp_next_edit'), 0, -1, {})"

Cell = tuple[str, int]
"""A character, and the number of its look."""


@dataclass(slots=True)
class Screen:
    """The screen of a Neovim, drawn by its redraw events (`:help ui-linegrid`)."""

    cells: list[list[Cell]] = field(default_factory=lambda: [[(" ", 0)] * COLUMNS for _ in range(ROWS)])
    looks: dict[int, Mapping[str, Any]] = field(default_factory=lambda: {0: {}})
    colours: tuple[int, int] = (0, 0)  # of text and background
    cursor: tuple[int, int] = (0, 0)

    def redraw(self, name: str, values: Sequence[Any]) -> None:
        """Applies one event."""
        if name == "default_colors_set":
            self.colours = values[0], values[1]
        elif name == "hl_attr_define":
            self.looks[values[0]] = values[1]
        elif name == "grid_cursor_goto":
            self.cursor = values[1], values[2]
        elif name == "grid_clear":
            self.cells = [[(" ", 0)] * COLUMNS for _ in range(ROWS)]
        elif name == "grid_line":
            _, row, column, cells, *_ = values
            look = 0
            for text, *rest in cells:
                look = rest[0] if rest else look
                for _ in range(rest[1] if len(rest) > 1 else 1):
                    self.cells[row][column] = text, look
                    column += 1

    def drawing(self) -> str:
        """The cells of each row that look the same, and the cursor."""
        markup = ""
        for row, cells in enumerate(self.cells):
            column = 0
            for number, group in groupby(cells, key=lambda cell: cell[1]):
                text = "".join(character for character, _ in group)
                markup += self._run(row, column, text, self.looks.get(number, {}))
                column += len(text)
        return markup + _box(*self.cursor, 1, "fill:#fff;fill-opacity:.5")

    def _run(self, row: int, column: int, text: str, look: Mapping[str, Any]) -> str:
        ink, paper = look.get("foreground", self.colours[0]), look.get("background", self.colours[1])
        style = f"fill:#{ink:06x}" + (";font-weight:bold" if look.get("bold") else "")
        place = f'x="{MARGIN + column * CHAR:.1f}" y="{MARGIN + (row + 1) * LINE - 6}"'
        letters = f'<text {place} textLength="{CHAR * len(text):.1f}" style="{style}">{html.escape(text)}</text>'
        background = _box(row, column, len(text), f"fill:#{paper:06x}") if paper != self.colours[1] else ""
        return background + (letters if text.strip() else "")


def _box(row: int, column: int, num_cells: int, style: str) -> str:
    place = f'x="{MARGIN + column * CHAR:.1f}" y="{MARGIN + row * LINE}"'
    return f'<rect {place} width="{CHAR * num_cells:.1f}" height="{LINE}" style="{style}"/>'


@dataclass(slots=True)
class Recording:
    """Drawings, and how long each is shown."""

    drawn: list[str] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)

    def add(self, drawing: str, milliseconds: float) -> None:
        """Adds a drawing."""
        self.drawn.append(drawing)
        self.durations.append(milliseconds)

    def svg(self, background: str, width: int, height: int, editor: str) -> str:
        """The animation on a background."""
        *at_ms, total_ms = accumulate(self.durations, initial=0.0)
        shown = background + animation(self.drawn, at_ms, total_ms)
        caption = f"{editor}: a name is changed in two lines, then Tab, Tab, Tab"
        return picture(shown, width + 2 * MARGIN, height + 2 * MARGIN + LINE, caption)


def neovim(folder: Path) -> str:
    """The recording of Neovim 0.12."""
    tests = importlib.import_module("neovim")
    screen, recording = Screen(), Recording()
    editor = tests.Editor(tests.program("0.12"), folder, cmd=SERVER, more=INIT)

    def take(milliseconds: float) -> None:
        editor.lua("vim.cmd.redraw() vim.rpcnotify(..., 'taken')", editor.nvim.channel_id)
        while (message := editor.nvim.next_message())[1] != "taken":
            for name, *calls in message[2]:
                for values in calls:
                    screen.redraw(name, values)
        recording.add(screen.drawing(), milliseconds)

    with closing(editor):
        editor.nvim.ui_attach(COLUMNS, ROWS, rgb=True, ext_linegrid=True)
        editor.open(SOURCE, name="scale.py")
        take(STEP_MS)
        for key in ["fw", "cw", *"length", "<Esc>", "j0fw", "cw", *"length", "<Esc>"]:
            editor.keys(key)
            time.sleep(KEY_MS / 1e3)
            take(KEY_MS)
        for row in (2, 3, 4):
            editor.wait(lambda row=row: editor.lua(MARKS) and editor.cursor[0] == row, f"no edit, cursor in {row}")
            take(STEP_MS)
            editor.keys("<Tab>")
        editor.wait_lines(*SOURCE.replace("width", "length").splitlines())
        take(2 * STEP_MS)
    background = "".join(_box(row, 0, COLUMNS, f"fill:#{screen.colours[1]:06x}") for row in range(ROWS))
    return recording.svg(background, round(COLUMNS * CHAR), ROWS * LINE, "Neovim")


def vscode(folder: Path) -> str:
    """The recording of VS Code."""
    tests, steps = importlib.import_module("conftest"), importlib.import_module("test_next_edit")
    recording = Recording()
    with ExitStack() as stack:
        places = [folder / name for name in ("browser", "code-server")]
        for place in places:
            place.mkdir()
        browser = stack.enter_context(closing(tests.start_browser(places[0])))
        server = stack.enter_context(closing(tests.CodeServer(places[1])))
        settings = {**steps.MANUAL, "dg-lsp.model.name": "dg-mini"}
        window = tests.opened(server, browser, folder / "project", SOURCE, name="scale.py", settings=settings)

        def take(milliseconds: float) -> None:
            top = window.run(f"document.querySelector('{window.EDITOR}').getBoundingClientRect().top")
            clip = {"x": 0, "y": top, "width": WIDTH, "height": HEIGHT, "scale": 1}
            data = browser.call("Page.captureScreenshot", format="webp", quality=80, clip=clip)["data"]
            size = f'x="{MARGIN}" y="{MARGIN}" width="{WIDTH}" height="{HEIGHT}"'
            recording.add(f'<image {size} href="data:image/webp;base64,{data}"/>', milliseconds)

        take(STEP_MS)
        for line, column in ((1, len("def scale(")), (2, len("if "))):
            window.to_line(line)
            for _ in range(column):
                window.press("ArrowRight", 39)
            for _ in "width":
                window.press("Delete", 46)
            window.type("length")
            take(STEP_MS / 2)
        for line in (2, 3, 4):
            steps.until_shown(window, line)
            take(STEP_MS)
            window.press("Tab", 9)
        window.until_saved(SOURCE.replace("width", "length"))
        take(2 * STEP_MS)
    return recording.svg("", WIDTH, HEIGHT, "VS Code")


def main(arguments: list[str] | None = None) -> None:
    """Records both editors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--editor", choices=["neovim", "vscode"], help="only this one")
    given = parser.parse_args(arguments)
    sys.path[:0] = map(str, TESTS)
    for name, record in (("neovim", neovim), ("vscode", vscode)):
        if given.editor in (None, name):
            with TemporaryDirectory() as folder:
                path = given.folder / f"{name}-next-edit.svg"
                path.write_text(record(Path(folder)), encoding="utf-8")
                print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
