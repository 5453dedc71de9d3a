"""An immutable document: snapshot, lines, text style and cursor. Offsets are code points."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, TypeVar
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

Starts = npt.NDArray[np.int64]
SequenceT = TypeVar("SequenceT", bound=Sequence[object])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The text of a document at one moment; positions inside dg-lsp are code-point offsets into it.

    The text around a cell of a notebook is that of its other cells: context, which no edit changes.
    """

    uri: str
    text: str
    language: str = "python"  # LSP language id
    notebook: str = ""  # URI of the notebook that the document is a cell of
    num_before: int = 0  # characters of other cells before the document's own text
    num_after: int = 0  # and after it

    @property
    def file_uri(self) -> str:
        """URI of the file that the document is in."""
        return self.notebook or self.uri

    @property
    def end(self) -> int:
        """Offset of the end of the document's own text."""
        return len(self.text) - self.num_after

    def alone(self) -> Self:
        """The document without other cells; its offsets are smaller by `num_before`."""
        if not (self.num_before or self.num_after):
            return self
        return replace(self, text=self.text[self.num_before : self.end], num_before=0, num_after=0)


class Encoding(StrEnum):
    """The unit of a client's column numbers."""

    UTF8 = "utf-8"
    UTF16 = "utf-16"
    UTF32 = "utf-32"


# codec and bytes of one unit; UTF-32 units are code points and need no codec
_CODECS = {Encoding.UTF8: ("utf-8", 1), Encoding.UTF16: ("utf-16-le", 2)}


@dataclass(frozen=True, slots=True, eq=False)
class LineIndex:
    """A text without lone surrogates, and the offsets of its lines."""

    text: str
    starts: Starts  # shape (num_lines,): ascending code-point offsets, the first is 0

    @classmethod
    def of(cls, text: str) -> Self:
        """Builds the index with one scan of the text."""
        return cls(text, np.concatenate((np.zeros(1, np.int64), _line_ends(text))))

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

    def line_at(self, offset: int) -> int:
        """Number of the line that an offset is in."""
        return int(np.searchsorted(self.starts, offset, side="right")) - 1

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
        piece = self.text[start:end]
        if encoding is Encoding.UTF32 or piece.isascii():
            return end
        codec, width = _CODECS[encoding]
        return start + len(piece.encode(codec)[: character * width].decode(codec, "ignore"))

    def position_at(self, offset: int, encoding: Encoding) -> tuple[int, int]:
        """Line and column of an offset between 0 and the text's length; inside `\\r\\n`, the line's end."""
        line = self.line_at(offset)
        start, end = self.span(line)
        piece = self.text[start : min(offset, end)]
        if encoding is Encoding.UTF32 or piece.isascii():
            return line, len(piece)
        codec, width = _CODECS[encoding]
        return line, len(piece.encode(codec)) // width

    def replaced(self, start: int, end: int, text: str) -> Self:
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
        return type(self)(new_text, np.concatenate((self.starts[:before], between, moved)))


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


TAB_WIDTH = 4  # columns of a tab in the text that the model was trained on
SAMPLE_CHARS = 32_000  # characters that determine the style of a document

LINE_END = re.compile(r"\r\n|\r|\n")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TextStyle:
    """Line end and indentation of a document near the cursor."""

    line_end: str = "\n"
    uses_tabs: bool = False

    @classmethod
    def of(cls, text: str, offset: int = 0) -> Self:
        """The style near `offset`, or at the beginning; mixed line ends follow the line above, else the most common."""
        start = max(0, offset - SAMPLE_CHARS // 2)
        sample, cursor = text[start : start + SAMPLE_CHARS], offset - start
        above = max(sample.rfind("\n", 0, cursor), sample.rfind("\r", 0, cursor))
        if above < 0:
            return cls(max(("\n", "\r\n", "\r"), key=LINE_END.findall(sample).count), _uses_tabs(sample))
        is_crlf = sample[above] == "\n" and sample[above - 1 : above] == "\r"
        return cls("\r\n" if is_crlf else sample[above], _uses_tabs(sample))

    def to_model(self, text: str) -> str:
        """`text` in the model's style: LF, spaces for all tabs, no trailing blanks except on the last line."""
        shown = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(TAB_WIDTH)
        if " \n" in shown:
            *whole, last = shown.split("\n")
            shown = "\n".join([*(line.rstrip(" ") for line in whole), last])
        return shown if shown.isascii() else _LONE_SURROGATE.sub("\ufffd", shown)

    def from_model(self, text: str, line_prefix: str) -> str:
        """Gives a fill the document's line ends and indentation.

        `line_prefix` is the text before the cursor on its line. Lines at least as deep begin with exactly its blanks,
        so mixed indentation stays consistent. Only leading blanks are converted.
        """
        own = indentation_of(line_prefix)
        uses_tabs = "\t" in own if own else self.uses_tabs
        width = len(own.expandtabs(TAB_WIDTH))
        first, *further = text.split("\n")
        lines = [_indented(first, width, "", uses_tabs) if own == line_prefix else first]
        for line in further:
            column, blanks = (width, own) if depth_of(line) >= width else (0, "")
            lines.append(_indented(line[column:], column, blanks, uses_tabs))
        return self.line_end.join(lines)


def indentation_of(line: str) -> str:
    """The leading blanks of a line."""
    return line[: len(line) - len(line.lstrip(" \t"))]


def depth_of(line: str) -> int:
    """Number of leading spaces."""
    return len(line) - len(line.lstrip(" "))


def first_line(lines: Iterable[str]) -> str:
    """The first line that is not blank, or empty."""
    return next((line for line in lines if line.strip()), "")


def line_start(text: str, offset: int) -> int:
    """Offset of the start of the line that contains `offset`."""
    return max(text.rfind(mark, 0, offset) for mark in "\n\r") + 1


def _indented(line: str, column: int, own: str, uses_tabs: bool) -> str:
    """`own` followed by `line`, whose leading spaces begin at `column` and become tabs if the document uses tabs."""
    num_tabs, num_spaces = divmod(depth_of(line), TAB_WIDTH)
    if not uses_tabs or column % TAB_WIDTH:
        return own + line
    return own + "\t" * num_tabs + " " * num_spaces + line.lstrip(" ")


def _uses_tabs(sample: str) -> bool:
    # a single leading space is usually a continued comment
    num_tabs, num_spaces = (sum(sample.count(end + blanks) for end in "\r\n") for blanks in ("\t", "  "))
    return num_tabs + sample.startswith("\t") > num_spaces + sample.startswith("  ")


REACH = 4000  # most characters on each side of the cursor that are looked at; a landmark (`def`, `class`) cuts earlier
MAX_AFTER_WORD = 8  # inside a word, automatic completion is offered up to so many characters before the line's end


@dataclass(frozen=True, slots=True)
class Cursor:
    """The line of the cursor and its neighbours, at most `REACH` characters each way, without line ends."""

    line_prefix: str  # from the start of the line to the cursor; only the last part of a very long line
    line_rest: str  # from the cursor to the end of the line; only the first part of a very long line
    above: tuple[str, ...] = ()  # whole lines, the nearest one last
    below: tuple[str, ...] = ()  # whole lines, the nearest one first

    @classmethod
    def at(cls, text: str, offset: int) -> Self:
        """The cursor at code-point offset `offset`."""
        start, end = max(0, offset - REACH), min(len(text), offset + REACH)
        *above, prefix = LINE_END.split(text[start:offset])
        rest, *below = LINE_END.split(text[offset:end])
        # the outermost lines are incomplete unless the text ends there
        return cls(prefix, rest, tuple(above[1:] if start else above), tuple(below[:-1] if end < len(text) else below))

    def as_shown(self) -> Self:
        """The cursor in the model's style: tabs are expanded to multiples of four columns."""
        prefix = self.line_prefix.expandtabs(TAB_WIDTH)
        line = (self.line_prefix + self.line_rest).expandtabs(TAB_WIDTH)
        above, below = (tuple(line.expandtabs(TAB_WIDTH) for line in lines) for lines in (self.above, self.below))
        return type(self)(prefix, line[len(prefix) :], above, below)

    @property
    def is_blank_line(self) -> bool:
        """Whether the line is blank."""
        return not (self.line_prefix.strip() or self.line_rest.strip())

    @property
    def is_line_end(self) -> bool:
        """Only blanks follow the cursor on its line."""
        return not self.line_rest.strip()

    @property
    def is_deep_inside_word(self) -> bool:
        """Inside a word, far from the end of the line: the user is editing, and no suggestion is useful."""
        is_inside_word = is_word(self.line_prefix[-1:]) and is_word(self.line_rest[:1])
        return is_inside_word and len(self.line_rest.rstrip()) > MAX_AFTER_WORD

    @property
    def line_above(self) -> str:
        """The nearest line above that is not blank, or empty."""
        return first_line(reversed(self.above))

    @property
    def line_below(self) -> str:
        """The nearest line below that is not blank, or empty."""
        return first_line(self.below)


def allowed_lines(cursor: Cursor) -> int | None:
    """Most lines of a fill: one on a line with text, any number (None) on a blank line."""
    return None if cursor.is_blank_line else 1


def num_shared(a: SequenceT, b: SequenceT) -> int:
    """Length of the common beginning of two sequences, by bisection, because whole documents are compared too."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def is_word(char: str) -> bool:
    """True for a letter, a digit or an underscore; False for the empty string."""
    return char.isalnum() or char == "_"


_URI = re.compile(r"(?:([A-Za-z][\w+.-]*):)?(?://([^/?#]*))?([^?#]*)", re.ASCII)


def path_of(uri: str) -> str:
    """The path of a URI in the form that patterns match: with slashes, without the leading one."""
    return unquote(split_uri(uri)[2]).lstrip("/")


def split_uri(uri: str) -> tuple[str, str, str]:
    """Scheme, host and path of a URI; `urllib.parse` refuses some hosts."""
    scheme, host, path = next(_URI.finditer(uri.strip())).groups(default="")  # the expression matches any text
    return scheme.lower(), host, path
