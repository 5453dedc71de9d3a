"""Code of a notebook's cells: their languages, the magics of IPython, and the cells around one of them as one text."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from dg_lsp.context.document import LINE_END, Snapshot, TextStyle, line_start
from dg_lsp.context.languages import PLAIN_TEXT, language_of

PYTHON_CELLS = frozenset(
    ("capture", "debug", "memit", "mprun", "prun", "px", "pypy", "python", "python3", "time", "timeit")
)
"""Cell magics whose cells contain Python."""
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_REST = r"(?:\\\r?\n|[^\r\n])*"  # of a line, which a backslash continues
_MAGIC = re.compile(
    rf"^[ \t]*(?:%%?[A-Za-z]|!(?!=)|\?){_REST}"
    rf"|^(?P<target>[\w.,\[\] \t]+=[ \t]*)(?:%[A-Za-z]|![^\s=]){_REST}"
    r"|^[ \t]*[\w.%*]+\?\??[ \t]*(?=\r?$)",
    re.MULTILINE,
)
_LONG_STRING = re.compile(r"(\"\"\"|''').*?(?:\1|\Z)", re.DOTALL)
_BLANK_START = re.compile(r"(?:[ \t]*[\r\n])+")
RESULT = "[]"
"""Stands for a magic whose result is assigned: it is a list of lines."""


@dataclass(frozen=True, slots=True)
class CellCode:
    """The code of one cell: `text` is as long as the cell's own text and has blanks for magics."""

    cell: str
    text: str
    language: str  # LSP language id

    @classmethod
    def of(cls, cell: str, language_id: str) -> Self:
        """The code of a cell. Only Python has magics; `%%bash` and its like change the language of a cell."""
        if language_of(language_id).id != "python" or not any(mark in cell for mark in "%!?"):
            return cls(cell, cell, language_id)
        if (magic := _CELL_MAGIC.match(cell)) and magic[1] not in PYTHON_CELLS:
            _, end = _whole_lines(cell, magic.start(), magic.end())
            return cls(cell, _blank(cell[:end]) + cell[end:], language_of(magic[1]).id)
        strings = [match.span() for match in _LONG_STRING.finditer(cell)]

        def without_magic(match: re.Match[str]) -> str:
            if any(start < match.start() < end for start, end in strings):
                return match[0]
            shown = match["target"] + RESULT if match["target"] else ""
            return shown + _blank(match[0][len(shown) :])

        return cls(cell, _MAGIC.sub(without_magic, cell), language_id)

    def with_lines(self, start: int, end: int) -> Self:
        """The code with all lines that `[start, end)` touches as they are in the cell."""
        start, end = _whole_lines(self.cell, start, end)
        return replace(self, text=self.text[:start] + self.cell[start:end] + self.text[end:])

    def is_magic(self, offset: int) -> bool:
        """Whether the line at an offset is a magic or continues one."""
        return self.text != self.with_lines(offset, offset).text


def joined(snapshot: Snapshot, above: Iterable[CellCode], below: Iterable[CellCode]) -> Snapshot:
    """A cell with the code of the cells above and below it, one blank line between two of them.

    Cells of other languages and those without code are left out.
    """
    gap = 2 * TextStyle.of(snapshot.text).line_end
    head = "".join(text + gap for text in _texts(above, snapshot.language))
    tail = "".join(gap + text for text in _texts(below, snapshot.language))
    return replace(snapshot, text=head + snapshot.text + tail, num_before=len(head), num_after=len(tail))


def _texts(cells: Iterable[CellCode], language: str) -> Iterator[str]:
    """The code of the cells in a language, without blank lines at its ends."""
    for cell in cells:
        if cell.language == language != PLAIN_TEXT:
            start = _BLANK_START.match(cell.text)
            if text := cell.text[start.end() if start else 0 :].rstrip():
                yield text


def _whole_lines(text: str, start: int, end: int) -> tuple[int, int]:
    """The lines that `[start, end)` touches, without the last line end."""
    line_end = LINE_END.search(text, end)
    return line_start(text, start), line_end.start() if line_end else len(text)


def _blank(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)
