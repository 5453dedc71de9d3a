"""Lines of one immutable text, and positions in a client's units against code-point offsets.

A line ends at `\\n`, `\\r\\n` or `\\r` and nowhere else: not at form feed, U+0085 or U+2028, where `str.splitlines`
also cuts. The last line is the one after the last line end and may be empty, so every text has at least one line.
Knows nothing of LSP types.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Starts = npt.NDArray[np.int64]


class Encoding(StrEnum):
    """What one unit of a client's column is."""

    UTF8 = "utf-8"
    UTF16 = "utf-16"
    UTF32 = "utf-32"


_CODECS = {Encoding.UTF8: ("utf-8", 1), Encoding.UTF16: ("utf-16-le", 2)}
"""Codec that lays the units out, and bytes of one unit; UTF-32 units are code points and need none."""


@dataclass(frozen=True, slots=True, eq=False)
class LineIndex:
    """A text without lone surrogates, and where its lines begin."""

    text: str
    starts: Starts
    """Shape (num_lines,): ascending code-point offsets, the first is 0."""

    @staticmethod
    def of(text: str) -> "LineIndex":
        """Scans the whole text once."""
        return LineIndex(text, np.concatenate((np.zeros(1, np.int64), _line_ends(text))))

    @property
    def num_lines(self) -> int:
        """Line ends plus one."""
        return len(self.starts)

    def span(self, line: int) -> tuple[int, int]:
        """Offsets of a line's first character and of its line end, which is not part of it."""
        start = int(self.starts[line])
        if line + 1 == self.num_lines:
            return start, len(self.text)
        end = int(self.starts[line + 1])
        return start, end - (2 if self.text.endswith("\r\n", start, end) else 1)

    def offset_at(self, line: int, character: int, encoding: Encoding) -> int:
        """Offset of a client's position; both numbers count from 0.

        A column beyond the line is its end, a line beyond the text is the text's end, a column inside a character is
        that character's start.
        """
        if line >= self.num_lines:
            return len(self.text)
        start, end = self.span(line)
        # a code point has at least one unit, so what is asked for lies in this piece
        end = min(end, start + character)
        if encoding is Encoding.UTF32 or self.text.isascii():
            return end
        piece = self.text[start:end]
        if piece.isascii():
            return end
        codec, width = _CODECS[encoding]
        return start + len(piece.encode(codec)[: character * width].decode(codec, "ignore"))

    def position_at(self, offset: int, encoding: Encoding) -> tuple[int, int]:
        """Line and column of an offset between 0 and the text's length; inside a `\\r\\n` it is the line's end."""
        line = int(np.searchsorted(self.starts, offset, side="right")) - 1
        start, end = self.span(line)
        offset = min(offset, end)
        if encoding is Encoding.UTF32 or self.text.isascii():
            return line, offset - start
        piece = self.text[start:offset]
        if piece.isascii():
            return line, len(piece)
        codec, width = _CODECS[encoding]
        return line, len(piece.encode(codec)) // width

    def replaced(self, start: int, end: int, text: str) -> "LineIndex":
        """The text with `text` instead of what stands between two offsets; only lines that it touches are scanned."""
        new_text = self.text[:start] + text + self.text[end:]
        new_end = start + len(text)
        # Whether a line begins at s depends on the characters s - 1 and s alone, so an edit cannot move the beginnings
        # before `start` or behind `end`, and those from `start` to `new_end` show in one character more on either side.
        before = max(1, int(np.searchsorted(self.starts, start)))
        behind = int(np.searchsorted(self.starts, end, side="right"))
        scan_from = max(0, start - 1)
        between = _line_ends(new_text[scan_from : new_end + 1]) + scan_from
        between = between[between <= new_end]
        moved = self.starts[behind:] + (new_end - end)
        return LineIndex(new_text, np.concatenate((self.starts[:before], between, moved)))


def _line_ends(text: str) -> Starts:
    """Offsets right after every line end: shape (num_lines - 1,)."""
    if text.isascii():
        codes: npt.NDArray[np.unsignedinteger] = np.frombuffer(text.encode("ascii"), np.uint8)
    else:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    returns = codes == 13
    ends = codes == 10
    # the \r of a \r\n ends nothing
    returns[:-1] &= ~ends[1:]
    return np.flatnonzero(ends | returns) + 1
