"""How a buffer writes its lines, and how the model writes them: LF, spaces for tabs, no trailing blanks.

Only what is shown to the model and what it answers is converted; the buffer's own text is never rewritten.
"""

import re
from dataclasses import dataclass
from typing import Self

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
