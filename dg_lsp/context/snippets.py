"""Snippets: code of other files or places that precedes the file's own code in a prompt. Text only, no tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dg_lsp.context.exclusion import cut


class SnippetSource(StrEnum):
    """Origin of a snippet, in prompt order: sources that change often come last, so that the cache keeps the rest."""

    OPEN_FILES = "open-files"  # similar code in other open files
    GIVEN = "given"  # sent by a client of the HTTP API
    EDITS = "edits"  # recently edited code
    TEST = "test"  # the output of a test that fails, of which the end matters most


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of code in the model's style: LF line ends, spaces for tabs."""

    source: SnippetSource
    path: str  # shortened, see `shown_path`
    text: str


@dataclass(frozen=True, slots=True)
class Snippets:
    """The snippets of one request."""

    chunks: tuple[Snippet, ...] = ()  # the most important snippet of a source comes first
    repository: str = ""  # its name, if it is known
    following: "Snippets | None" = field(default=None, compare=False)  # that replace these soon if the cursor goes on


NO_SNIPPETS = Snippets()


WINDOW = 24  # lines
STRIDE = 8  # lines from one window to the next
MAX_LINES = 4000  # of a text that are searched
MAX_CHARS = 400_000  # the same
MAX_LINE = 400  # characters of a line that are shown: longer ones are data, or minified
_WORD = re.compile(r"\b[^\W\d]\w+")

Words = frozenset[str]


@dataclass(frozen=True, slots=True)
class CodeWindow:
    """A window of lines and its words."""

    lines: tuple[str, ...]
    words: Words


def words_of(text: str) -> Words:
    """Names and keywords of two letters or more."""
    return frozenset(_WORD.findall(text))


def similarity(a: Words, b: Words) -> float:
    """Jaccard similarity of two word sets, 0 to 1."""
    both = len(a & b)
    return both / (len(a) + len(b) - both) if both else 0.0


def windows_of(text: str) -> tuple[CodeWindow, ...]:
    """Overlapping windows of a text."""
    lines = [cut(line, MAX_LINE) for line in cut(text, MAX_CHARS).split("\n")[:MAX_LINES]]
    starts = range(0, max(1, len(lines) - WINDOW + STRIDE), STRIDE)
    parts = (tuple(lines[start : start + WINDOW]) for start in starts)
    return tuple(CodeWindow(part, words_of("\n".join(part))) for part in parts)


def most_similar(parts: Sequence[CodeWindow], words: Words) -> tuple[float, CodeWindow]:
    """The similarity and the window that is most similar to the words; the first of several. `parts` is not empty."""
    best = max(parts, key=lambda part: similarity(part.words, words))
    return similarity(best.words, words), best
