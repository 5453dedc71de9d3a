"""One immutable state of an editor buffer."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A buffer's text at one version; every position inside dg-lsp is a code-point offset into it."""

    uri: str
    version: int
    text: str
    language: str = "python"
    """LSP language id."""


TAB_WIDTH = 4
"""Columns of a tab in the text that the model was trained on."""
SAMPLE_CHARS = 32_000
"""Looked at to tell a buffer's style, however long the buffer is."""

LINE_END = re.compile(r"\r\n|\r|\n")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TextStyle:
    """Line end and indentation of a buffer near the cursor."""

    line_end: str = "\n"
    uses_tabs: bool = False

    @classmethod
    def of(cls, text: str, offset: int | None = None) -> Self:
        """The style near `offset`, or of the beginning; mixed line ends follow the line above, else the most common."""
        at = 0 if offset is None else offset
        start = max(0, at - SAMPLE_CHARS // 2)
        sample, cursor = text[start : start + SAMPLE_CHARS], at - start
        above = max(sample.rfind("\n", 0, cursor), sample.rfind("\r", 0, cursor))
        if above < 0:
            return cls(_commonest_line_end(sample), _uses_tabs(sample))
        is_crlf = sample[above] == "\n" and sample[above - 1 : above] == "\r"
        return cls("\r\n" if is_crlf else sample[above], _uses_tabs(sample))

    def to_model(self, text: str) -> str:
        """`text` as the model knows it. Its last line keeps trailing blanks: the cursor may stand after them.

        Tabs inside a line become spaces up to the next multiple of four columns too: the training text has no tabs.
        """
        *whole, last = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(TAB_WIDTH).split("\n")
        shown = "\n".join([*(line.rstrip(" ") for line in whole), last])
        return shown if shown.isascii() else _LONE_SURROGATE.sub("\ufffd", shown)

    def from_model(self, text: str, line_prefix: str) -> str:
        """A fill in the buffer's own line ends and indentation.

        `line_prefix` is what stands before the cursor on its line. Lines at least as deep as it begin with its very
        blanks, so a tab file with a line of spaces stays as mixed as it was. Only leading blanks are converted.
        """
        own = line_prefix[: len(line_prefix) - len(line_prefix.lstrip(" \t"))]
        uses_tabs = "\t" in own if own else self.uses_tabs
        width = len(own.expandtabs(TAB_WIDTH))
        first, *others = text.split("\n")
        lines = [_indented(first, width, "", uses_tabs) if own == line_prefix else first]
        for line in others:
            if len(line) - len(line.lstrip(" ")) < width:
                lines.append(_indented(line, 0, "", uses_tabs))
            else:
                lines.append(_indented(line[width:], width, own, uses_tabs))
        return self.line_end.join(lines)


def line_start(text: str, offset: int) -> int:
    """Where the line of an offset begins."""
    return max(text.rfind(mark, 0, offset) for mark in "\n\r") + 1


def _indented(line: str, column: int, own: str, uses_tabs: bool) -> str:
    """`own` and then `line`, whose leading spaces begin at `column` and become tabs where the buffer uses them."""
    body = line.lstrip(" ")
    depth = len(line) - len(body)
    if not uses_tabs or column % TAB_WIDTH:
        return own + line
    return own + "\t" * (depth // TAB_WIDTH) + " " * (depth % TAB_WIDTH) + body


def _commonest_line_end(sample: str) -> str:
    num_crlf = sample.count("\r\n")
    counts = {"\n": sample.count("\n") - num_crlf, "\r\n": num_crlf, "\r": sample.count("\r") - num_crlf}
    return max(counts, key=lambda end: counts[end])


def _uses_tabs(sample: str) -> bool:
    # one leading space is a continued comment more often than an indentation
    num_tabs, num_spaces = (sum(sample.count(end + blanks) for end in "\r\n") for blanks in ("\t", "  "))
    return num_tabs + sample.startswith("\t") > num_spaces + sample.startswith("  ")


REACH = 4000
"""Characters looked at on each side of the cursor, however long the lines are."""
MAX_AFTER_WORD = 8
"""Characters after a cursor inside a word up to which completion may still be wanted unasked."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The cursor's line and its neighbours, at most `REACH` characters each way; lines come without their ends."""

    line_prefix: str
    """From the start of the line to the cursor; the end of it on a giant line."""
    line_rest: str
    """From the cursor to the end of the line; the beginning of it on a giant line."""
    above: tuple[str, ...] = ()
    """Whole lines above, the nearest one last."""
    below: tuple[str, ...] = ()
    """Whole lines below, the nearest one first."""

    @classmethod
    def at(cls, text: str, offset: int) -> Self:
        """The place of code-point offset `offset`."""
        start, end = max(0, offset - REACH), min(len(text), offset + REACH)
        *above, prefix = LINE_END.split(text[start:offset])
        rest, *below = LINE_END.split(text[offset:end])
        # the outermost line is cut unless the text ends there
        return cls(prefix, rest, tuple(above[1:] if start else above), tuple(below[:-1] if end < len(text) else below))

    def as_shown(self) -> Self:
        """The same place as the model sees it: tabs are spaces up to the next multiple of four columns."""
        prefix = self.line_prefix.expandtabs(TAB_WIDTH)
        line = (self.line_prefix + self.line_rest).expandtabs(TAB_WIDTH)
        above, below = (tuple(line.expandtabs(TAB_WIDTH) for line in lines) for lines in (self.above, self.below))
        return type(self)(prefix, line[len(prefix) :], above, below)

    @property
    def is_blank_line(self) -> bool:
        """Nothing but blanks on the line."""
        return not (self.line_prefix.strip() or self.line_rest.strip())

    @property
    def is_line_end(self) -> bool:
        """Nothing but blanks after the cursor."""
        return not self.line_rest.strip()

    @property
    def is_inside_word(self) -> bool:
        """A word goes on across the cursor."""
        return is_word(self.line_prefix[-1:]) and is_word(self.line_rest[:1])

    @property
    def is_deep_inside_word(self) -> bool:
        """Inside a word of a line that goes on: who types there corrects something, and wants no suggestion."""
        return self.is_inside_word and len(self.line_rest.rstrip()) > MAX_AFTER_WORD

    @property
    def indentation(self) -> str:
        """The blanks that the line begins with, as far as the cursor."""
        return self.line_prefix[: len(self.line_prefix) - len(self.line_prefix.lstrip(" \t"))]

    @property
    def line_above(self) -> str:
        """The nearest line above that is not blank, or nothing."""
        return next((line for line in reversed(self.above) if line.strip()), "")


def allowed_lines(place: Cursor) -> int | None:
    """Lines that a fill may have here: one on a line with text, any number (None) on a blank one."""
    return None if place.is_blank_line else 1


def is_word(char: str) -> bool:
    """A letter, a digit or an underscore; nothing is none."""
    return char.isalnum() or char == "_"


_OPENER = re.compile(
    r"\s*(?:async\s+)?(?:def|class|if|elif|else|for|while|with|try|except|finally|match|case)\b[^#]*:\s*(?:#.*)?$"
)
"""Python's; in other languages a block ends with a bracket that editors close, and a fill would close again."""
_DEEPEST_UNIT = 8


def opening_of(text: str, offset: int, language: str) -> str:
    """The line end and the indentation that lead into the block opened before the cursor, or nothing.

    Nothing where the cursor's line goes on, opens no block, or has a body already.
    """
    if language != "python":
        return ""
    place = Cursor.at(text, offset)
    if not place.is_line_end or not _OPENER.fullmatch(place.line_prefix):
        return ""
    following = next((line for line in place.below if line.strip()), "")
    if _depth(following) > _depth(place.line_prefix):
        return ""
    own = place.line_prefix[: len(place.line_prefix) - len(place.line_prefix.lstrip())]
    style = TextStyle.of(text, offset)
    return style.line_end + own + ("\t" if style.uses_tabs else " " * _unit(place))


def _depth(line: str) -> int:
    return len(line.expandtabs(TAB_WIDTH)) - len(line.expandtabs(TAB_WIDTH).lstrip())


def _unit(place: Cursor) -> int:
    """Columns of one level: the shallowest indentation around, four where there is none."""
    depths = [_depth(line) for line in (*place.above, *place.below) if line.strip()]
    return min((depth for depth in depths if 1 < depth <= _DEEPEST_UNIT), default=TAB_WIDTH)


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
