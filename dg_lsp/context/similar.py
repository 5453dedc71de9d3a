"""How alike two pieces of code are, by the words in them; and the part of a text that is most like another."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = 24
"""Lines of a part that is looked for."""
STRIDE = 8
"""Lines from one part to the next."""
MAX_LINES = 4000
"""Lines of a text that are looked through."""
_WORD = re.compile(r"\b[^\W\d]\w+")

Words = frozenset[str]


@dataclass(frozen=True, slots=True)
class Part:
    """Some lines of a text."""

    lines: tuple[str, ...]
    words: Words


def words_of(text: str) -> Words:
    """Names and keywords of two letters or more."""
    return frozenset(_WORD.findall(text))


def likeness(a: Words, b: Words) -> float:
    """Share of the words of both that both have (Jaccard), 0 to 1."""
    both = len(a & b)
    return both / (len(a) + len(b) - both) if both else 0.0


def parts_of(text: str) -> tuple[Part, ...]:
    """Overlapping parts of a text, each beginning with a line that says something."""
    lines = text.split("\n")[:MAX_LINES]
    parts = []
    for start in range(0, max(1, len(lines) - WINDOW + STRIDE), STRIDE):
        part = tuple(lines[start : start + WINDOW])
        parts.append(Part(part, words_of("\n".join(part))))
    return tuple(parts)


def most_alike(parts: Sequence[Part], words: Words) -> tuple[float, Part]:
    """The part that is most like some words, the first of several; and how much.

    Raises:
        ValueError: there is none.
    """
    best = max(parts, key=lambda part: likeness(part.words, words))
    return likeness(best.words, words), best
