"""What a reader takes of an item: as much as is what they were going to type. Knows texts only."""

import re
from dataclasses import dataclass
from enum import StrEnum

from dg_lsp.context.document import LINE_END, is_word

_PIECE = re.compile(r"[^\S\r\n]*(?:\w+|[^\w\s]+)")
"""What "accept next word" inserts: a word or a run of signs, with the blanks before it."""


class Level(StrEnum):
    """How much of an item was taken."""

    WHOLE = "whole"
    LINE = "line"
    WORDS = "words"


@dataclass(frozen=True, slots=True)
class Taking:
    """The beginning of an item that is worth a key press."""

    text: str
    level: Level
    presses: int
    """One for all of the item or its first line, one per word or run of signs else."""


def taking(item: str, coming: str) -> Taking | None:
    """What is taken of `item` by somebody who is going to type `coming`; None when nothing of it is right.

    The whole item, else its first line, else as many whole words as are right, at least one.
    """
    if _stands(item, coming):
        return Taking(item, Level.WHOLE, 1)
    line = LINE_END.split(item, maxsplit=1)[0]
    if line != item and _stands(line, coming):
        return Taking(line, Level.LINE, 1)
    return _words(line, coming)


def _words(line: str, coming: str) -> Taking | None:
    text, presses = "", 0
    for piece in _PIECE.findall(line):
        if not _stands(text + piece, coming):
            break
        text, presses = text + piece, presses + 1
    return Taking(text, Level.WORDS, presses) if any(map(is_word, text)) else None


def _stands(text: str, coming: str) -> bool:
    """`coming` begins with `text`, and not in the middle of a word."""
    cuts_word = is_word(text[-1:]) and is_word(coming[len(text) : len(text) + 1])
    return bool(text.strip()) and coming.startswith(text) and not cuts_word
