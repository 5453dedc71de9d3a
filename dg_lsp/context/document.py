"""An immutable document: snapshot, text style and cursor. Offsets are code points."""

import re
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The text of a document at one version; positions inside dg-lsp are code-point offsets into it."""

    uri: str
    version: int
    text: str
    language: str = "python"
    """LSP language id."""


TAB_WIDTH = 4
"""Columns of a tab in the text that the model was trained on."""
SAMPLE_CHARS = 32_000
"""Number of characters that determine the style of a document."""

LINE_END = re.compile(r"\r\n|\r|\n")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TextStyle:
    """Line end and indentation of a document near the cursor."""

    line_end: str = "\n"
    uses_tabs: bool = False

    @classmethod
    def of(cls, text: str, offset: int | None = None) -> Self:
        """The style near `offset`, or at the beginning; mixed line ends follow the line above, else the most common."""
        at = 0 if offset is None else offset
        start = max(0, at - SAMPLE_CHARS // 2)
        sample, cursor = text[start : start + SAMPLE_CHARS], at - start
        above = max(sample.rfind("\n", 0, cursor), sample.rfind("\r", 0, cursor))
        if above < 0:
            return cls(_commonest_line_end(sample), _uses_tabs(sample))
        is_crlf = sample[above] == "\n" and sample[above - 1 : above] == "\r"
        return cls("\r\n" if is_crlf else sample[above], _uses_tabs(sample))

    def to_model(self, text: str) -> str:
        """`text` in the model's style: LF, spaces for all tabs, no trailing blanks except on the last line."""
        *whole, last = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(TAB_WIDTH).split("\n")
        shown = "\n".join([*(line.rstrip(" ") for line in whole), last])
        return shown if shown.isascii() else _LONE_SURROGATE.sub("\ufffd", shown)

    def from_model(self, text: str, line_prefix: str) -> str:
        """A fill with the document's line ends and indentation.

        `line_prefix` is the text before the cursor on its line. Lines at least as deep begin with exactly its blanks,
        so mixed indentation stays consistent. Only leading blanks are converted.
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
    """Offset of the start of the line that contains `offset`."""
    return max(text.rfind(mark, 0, offset) for mark in "\n\r") + 1


def _indented(line: str, column: int, own: str, uses_tabs: bool) -> str:
    """`own` followed by `line`, whose leading spaces begin at `column` and become tabs if the document uses tabs."""
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
    # a single leading space is usually a continued comment
    num_tabs, num_spaces = (sum(sample.count(end + blanks) for end in "\r\n") for blanks in ("\t", "  "))
    return num_tabs + sample.startswith("\t") > num_spaces + sample.startswith("  ")


REACH = 4000
"""Most characters on each side of the cursor."""
MAX_AFTER_WORD = 8
"""Inside a word, automatic completion is offered up to this many characters before the end of the line."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The line of the cursor and its neighbours, at most `REACH` characters each way, without line ends."""

    line_prefix: str
    """From the start of the line to the cursor; only the last part of a very long line."""
    line_rest: str
    """From the cursor to the end of the line; only the first part of a very long line."""
    above: tuple[str, ...] = ()
    """Whole lines above, the nearest one last."""
    below: tuple[str, ...] = ()
    """Whole lines below, the nearest one first."""

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
        """The line is blank."""
        return not (self.line_prefix.strip() or self.line_rest.strip())

    @property
    def is_line_end(self) -> bool:
        """Only blanks follow the cursor on its line."""
        return not self.line_rest.strip()

    @property
    def is_inside_word(self) -> bool:
        """The cursor is between two characters of a word."""
        return is_word(self.line_prefix[-1:]) and is_word(self.line_rest[:1])

    @property
    def is_deep_inside_word(self) -> bool:
        """Inside a word, far from the end of the line: the user is editing, and no suggestion is useful."""
        return self.is_inside_word and len(self.line_rest.rstrip()) > MAX_AFTER_WORD

    @property
    def indentation(self) -> str:
        """The leading blanks of the line, up to the cursor."""
        return self.line_prefix[: len(self.line_prefix) - len(self.line_prefix.lstrip(" \t"))]

    @property
    def line_above(self) -> str:
        """The nearest line above that is not blank, or empty."""
        return next((line for line in reversed(self.above) if line.strip()), "")


def allowed_lines(cursor: Cursor) -> int | None:
    """Most lines of a fill: one on a line with text, any number (None) on a blank line."""
    return None if cursor.is_blank_line else 1


def is_word(char: str) -> bool:
    """True for a letter, a digit or an underscore; False for the empty string."""
    return char.isalnum() or char == "_"


_OPENER = re.compile(
    r"\s*(?:async\s+)?(?:def|class|if|elif|else|for|while|with|try|except|finally|match|case)\b[^#]*:\s*(?:#.*)?$"
)
"""Python only: in other languages a block ends with a bracket that editors insert, and a fill would repeat it."""
_DEEPEST_UNIT = 8


def opening_of(text: str, offset: int, language: str) -> str:
    """The line end and indentation that begin the body of the block opened before the cursor, or empty.

    Empty if text follows the cursor, the line opens no block, or the block has a body.
    """
    if language != "python":
        return ""
    cursor = Cursor.at(text, offset)
    if not cursor.is_line_end or not _OPENER.fullmatch(cursor.line_prefix):
        return ""
    following = next((line for line in cursor.below if line.strip()), "")
    if _depth(following) > _depth(cursor.line_prefix):
        return ""
    own = cursor.line_prefix[: len(cursor.line_prefix) - len(cursor.line_prefix.lstrip())]
    style = TextStyle.of(text, offset)
    return style.line_end + own + ("\t" if style.uses_tabs else " " * _unit(cursor))


def _depth(line: str) -> int:
    return len(line.expandtabs(TAB_WIDTH)) - len(line.expandtabs(TAB_WIDTH).lstrip())


def _unit(cursor: Cursor) -> int:
    """Columns of one indentation level: the smallest indentation nearby, or four."""
    depths = [_depth(line) for line in (*cursor.above, *cursor.below) if line.strip()]
    return min((depth for depth in depths if 1 < depth <= _DEEPEST_UNIT), default=TAB_WIDTH)
