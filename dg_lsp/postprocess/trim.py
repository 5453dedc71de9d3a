"""A fill's bytes to text, and its loose ends cut off."""

import codecs
import re
import unicodedata

from dg_lsp.context.style import LINE_END, TAB_WIDTH

NUM_LOOPS = 3
"""A line that comes so many times in a row is a model going in circles."""

_LOOP = re.compile(r"(.{3,40}?)\1{4}")

_REFUSED_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
# what stands for broken bytes, and what makes code read otherwise than it runs
_REFUSED = "\ufffd\ufffe\uffff\ufeff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def to_text(fill: bytes) -> str | None:
    """The text with LF line ends, or None for what no one types: broken UTF-8, control and bidirectional characters.

    A character that the end of the fill cut apart is left out.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(fill, final=False)
    except UnicodeDecodeError:
        return None
    text = LINE_END.sub("\n", text)
    return None if any(_is_refused(char) for char in text) else text


def _is_refused(char: str) -> bool:
    return char not in "\n\t" and (char in _REFUSED or unicodedata.category(char) in _REFUSED_CATEGORIES)


def cut_lines(text: str, max_lines: int | None) -> str:
    """The first `max_lines` lines, or all."""
    return text if max_lines is None else "\n".join(text.split("\n")[:max_lines])


def cut_loops(text: str) -> str:
    """`text` up to the first of several equal lines in a row."""
    lines = text.split("\n")
    for i in range(len(lines) - NUM_LOOPS + 1):
        if any(char.isalnum() for char in lines[i]) and len({line.strip() for line in lines[i : i + NUM_LOOPS]}) == 1:
            return "\n".join(lines[: i + 1])
    return text


def goes_in_circles(text: str) -> bool:
    """The same piece of a line, letters in it, comes five times in a row: a model that has lost its way."""
    pieces = (match[1] for line in text.split("\n") for match in _LOOP.finditer(line))
    return any(any(map(str.isalpha, piece)) for piece in pieces)


def trim_blanks(text: str, *, is_line_end: bool) -> str:
    """No blanks at line ends. What the cursor's line goes on with keeps its distance, unless nothing follows."""
    lines = text.split("\n")
    inner = [line.rstrip() for line in lines[:-1]]
    joined = "\n".join([*inner, lines[-1]])
    return joined.rstrip() if is_line_end else joined


def expand_indentation(text: str) -> str:
    """Leading tabs as spaces, as in everything the model was shown; tabs inside a line are left alone."""
    lines = []
    for line in text.split("\n"):
        body = line.lstrip(" \t")
        lines.append(line[: len(line) - len(body)].expandtabs(TAB_WIDTH) + body)
    return "\n".join(lines)
