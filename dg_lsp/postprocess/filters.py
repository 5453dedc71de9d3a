"""Filters of completions that parse and are not worth showing unasked: each recognises one fault of small models.

Texts are in the model's style (LF, spaces). A filter gets the fill, the cursor and its language.
"""

import re
from collections.abc import Iterable

from dg_lsp.context.document import Cursor, depth_of
from dg_lsp.context.languages import Language
from dg_lsp.postprocess.brackets import balance

MIN_REPEATED = 8  # letters and digits of a line whose repetition is a fault: `0, 0,` and `self.up()` may repeat
_EMPTY_STRINGS = ('""""""', "''''''", '""', "''")
_LICENCE = re.compile(
    r"copyright (?:\(c\)|\d)|\(c\) \d{4}|© ?\d|spdx-license|all rights reserved|licensed under|licensed to the"
    r"|permission is hereby granted|redistribution and use|under the terms of|without warrant|general public licen",
    re.IGNORECASE,
)
_SELF_ASSIGNMENT = re.compile(r"\s*([\w.]+)\s*=\s*\1\s*;?\s*(?:(?:#|//).*)?")
_PHRASE = re.compile(r"\b([^\W\d_]+(?: [^\W\d_]+){3,8})\b.{0,20}?\b\1\b|\b([^\W\d_]+)(?: \2){2,}\b")


def is_licence(text: str) -> bool:
    """True if a phrase of licence headers occurs; training data is full of them."""
    return _LICENCE.search(" ".join(text.split())) is not None


def adds_licence(fill: str, cursor: Cursor, language: Language) -> bool:  # noqa: ARG001
    """True for a licence header where the lines above have none."""
    return is_licence(fill) and not is_licence("\n".join((*cursor.above, cursor.line_prefix)))


def is_unfinished(fill: str, cursor: Cursor, language: Language) -> bool:
    """True if the whole body of a block is a header without a body, or an empty docstring."""
    if not cursor.is_blank_line or not language.block_header:
        return False
    if "".join(fill.split()) in _EMPTY_STRINGS:
        return True
    header = cursor.line_prefix + fill
    following = next((line for line in cursor.below if line.strip()), "")
    is_body = language.block_header.fullmatch(cursor.line_above) and depth_of(header) > depth_of(cursor.line_above)
    if not is_body or "\n" in fill.strip() or not language.block_header.fullmatch(header):
        return False
    return depth_of(following) <= depth_of(header)


def assigns_to_itself(fill: str, cursor: Cursor, language: Language) -> bool:
    """True for a statement such as `x = x`; inside brackets it passes an argument."""
    if language.landmark is None or not any(map(_SELF_ASSIGNMENT.fullmatch, _completed(fill, cursor))):
        return False
    return not balance("\n".join((*cursor.above, cursor.line_prefix)), language).closers


def is_closers(fill: str, cursor: Cursor, language: Language) -> bool:  # noqa: ARG001
    """True for closing brackets alone behind an opening one: elsewhere they are often right."""
    before = cursor.line_prefix.rstrip() or cursor.line_above.rstrip()
    return before.endswith(("(", "[", "{")) and all(char in ")]} \n" for char in fill)


def loops(fill: str, cursor: Cursor, language: Language) -> bool:  # noqa: ARG001
    """True for a phrase that returns soon, a line that follows its equal, and a pair of lines that does."""
    lines = [line.strip() for line in fill.split("\n") if line.strip()]
    if any(map(_PHRASE.search, _completed(fill, cursor))):
        return True
    for size in (1, 2):
        pieces = zip(*(lines[start:] for start in range(2 * size)), strict=False)
        if any(piece[:size] == piece[size:] and _is_long(piece[:size]) for piece in pieces):
            return True
    return False


def is_indented_at_margin(fill: str, cursor: Cursor, language: Language) -> bool:
    """True for indented text at the margin, where nothing above opens a block."""
    is_margin = not cursor.line_prefix and not cursor.line_above
    return bool(is_margin and language.indents and depth_of(fill))


def _completed(fill: str, cursor: Cursor) -> list[str]:
    """The lines of the fill as they would stand in the buffer."""
    return (cursor.line_prefix + fill + cursor.line_rest).split("\n")


def _is_long(lines: Iterable[str]) -> bool:
    return sum(char.isalnum() for line in lines for char in line) >= MIN_REPEATED
