"""Some lines of a file with a fill in place, for a person's eyes.

Knows no canvas: the fill comes as styled text.
"""

import re

from rich.cells import cell_len
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

NUM_LINES_AROUND = 3
_LONGEST = 300
"""Characters of a line that are shown before and after the fill."""

_LINE_END = re.compile(r"\r\n|\r|\n")
_FILL = Style(bgcolor="grey23")
_GUTTER = Style(dim=True)


def excerpt(text: str, offset: int, fill: Text, *, language: str, with_carets: bool) -> Text:
    """The lines around `offset` with `fill` there, line numbers in front, `>` at lines of the fill.

    With carets, a line of `^` under each filled stretch shows without colours what was filled.
    """
    before = _LINE_END.split(text[:offset])
    after = _LINE_END.split(text[offset:])
    head, tail = before[-1 - NUM_LINES_AROUND :], after[: 1 + NUM_LINES_AROUND]
    head[-1], tail[0] = head[-1][-_LONGEST:], tail[0][:_LONGEST]
    lines_before = "\n".join(printable(line)[-_LONGEST:] for line in head)
    code = highlighted(lines_before + fill.plain + "\n".join(printable(line)[:_LONGEST] for line in tail), language)
    start, end = len(lines_before), len(lines_before) + len(fill.plain)
    code.stylize(_FILL, start, end)
    code.stylize(fill.style, start, end)
    for span in fill.spans:
        code.stylize(span.style, start + span.start, start + span.end)
    return _numbered(code, start, end, len(before) - len(head) + 1, with_carets=with_carets)


def highlighted(code: str, language: str) -> Text:
    """Syntax colours; unknown languages stay plain."""
    text = Syntax("", language, theme="ansi_dark", background_color="default").highlight(code)
    if text.plain == code + "\n":  # added by the lexer
        text.right_crop(1)
    return text if text.plain == code else Text(code)


def printable(line: str) -> str:
    """Tabs as spaces, and control characters as pictures: a file must not steer the terminal."""
    return "".join(_picture(character) for character in line.expandtabs(4))


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return character if character == " " or character.isprintable() else "\N{REPLACEMENT CHARACTER}"


def _numbered(code: Text, start: int, end: int, first_number: int, *, with_carets: bool) -> Text:
    """Gutter before each line; positions are offsets into `code`."""
    lines, at, rows = code.split("\n", allow_blank=True), 0, []
    width = len(str(first_number + len(lines) - 1))
    for number, line in enumerate(lines, first_number):
        left, right = max(start - at, 0), min(end - at, len(line))
        is_filled = left <= right and start <= at + len(line) and at <= end
        rows.append(Text.assemble((f"{'>' if is_filled else ' '} {number:>{width}} ", _GUTTER), ("│ ", _GUTTER), line))
        if with_carets and is_filled and line.plain[left:right].strip():
            shown = line.plain[left:right]
            indent = cell_len(line.plain[:left]) + len(shown) - len(shown.lstrip())
            rows.append(Text(f"  {'':>{width}} │ " + " " * indent + "^" * cell_len(shown.strip())))
        at += len(line) + 1
    return Text("\n").join(rows)
