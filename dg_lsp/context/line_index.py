"""Line index of a text: LSP positions to code-point offsets, and back."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Starts = npt.NDArray[np.int64]


class Encoding(StrEnum):
    """The unit of a client's column numbers."""

    UTF8 = "utf-8"
    UTF16 = "utf-16"
    UTF32 = "utf-32"


_CODECS = {Encoding.UTF8: ("utf-8", 1), Encoding.UTF16: ("utf-16-le", 2)}
"""Codec and bytes of one unit; UTF-32 units are code points and need no codec."""


@dataclass(frozen=True, slots=True, eq=False)
class LineIndex:
    """A text without lone surrogates, and the offsets of its lines."""

    text: str
    starts: Starts
    """Shape (num_lines,): ascending code-point offsets, the first is 0."""

    @staticmethod
    def of(text: str) -> "LineIndex":
        """Builds the index with one scan of the text."""
        return LineIndex(text, np.concatenate((np.zeros(1, np.int64), _line_ends(text))))

    @property
    def num_lines(self) -> int:
        """Number of lines: line ends plus one."""
        return len(self.starts)

    def span(self, line: int) -> tuple[int, int]:
        """Offsets of a line's start and of its end, without the line end characters."""
        start = int(self.starts[line])
        if line + 1 == self.num_lines:
            return start, len(self.text)
        end = int(self.starts[line + 1])
        return start, end - (2 if self.text.endswith("\r\n", start, end) else 1)

    def offset_at(self, line: int, character: int, encoding: Encoding) -> int:
        """Offset of a client's position; both numbers are 0-based.

        A column beyond the line means its end, a line beyond the text means the text's end, a column inside a character
        means that character's start.
        """
        if line >= self.num_lines:
            return len(self.text)
        start, end = self.span(line)
        # a code point has at least one unit, so the position is inside this piece
        end = min(end, start + character)
        if encoding is Encoding.UTF32 or self.text.isascii():
            return end
        piece = self.text[start:end]
        if piece.isascii():
            return end
        codec, width = _CODECS[encoding]
        return start + len(piece.encode(codec)[: character * width].decode(codec, "ignore"))

    def position_at(self, offset: int, encoding: Encoding) -> tuple[int, int]:
        """Line and column of an offset between 0 and the text's length; inside `\\r\\n`, the line's end."""
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
        """The index after `[start, end)` is replaced by `text`; only the affected lines are scanned."""
        new_text = self.text[:start] + text + self.text[end:]
        new_end = start + len(text)
        # A line start at s depends on the characters s - 1 and s only, so an edit cannot change the starts before
        # `start` or after `end`, and those from `start` to `new_end` depend on one more character on either side.
        before = max(1, int(np.searchsorted(self.starts, start)))
        behind = int(np.searchsorted(self.starts, end, side="right"))
        scan_from = max(0, start - 1)
        between = _line_ends(new_text[scan_from : new_end + 1]) + scan_from
        between = between[between <= new_end]
        moved = self.starts[behind:] + (new_end - end)
        return LineIndex(new_text, np.concatenate((self.starts[:before], between, moved)))


def _line_ends(text: str) -> Starts:
    """Offsets right after every line end, shape (num_lines - 1,)."""
    if text.isascii():
        codes: npt.NDArray[np.unsignedinteger] = np.frombuffer(text.encode("ascii"), np.uint8)
    else:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    returns = codes == 13
    ends = codes == 10
    # the \r of \r\n does not end a line
    returns[:-1] &= ~ends[1:]
    return np.flatnonzero(ends | returns) + 1
