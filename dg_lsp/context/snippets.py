"""Code from elsewhere that a model may be shown before the file's own. Text only: knows no token and reads no file."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class SnippetSource(StrEnum):
    """Why a chunk is shown; in the order of a prompt: what changes most comes last, and the cache keeps the rest."""

    IMPORTS = "imports"
    """Signatures of what the file imports from the workspace."""
    OPEN_FILES = "open-files"
    """A place in another file that was looked at."""
    GIVEN = "given"
    """A client of the HTTP API sent it."""
    EDITS = "edits"
    """A place that was edited before this one."""
    DIAGNOSTICS = "diagnostics"
    """What is wrong near the cursor."""


_IMPORTANCE = (
    SnippetSource.DIAGNOSTICS,
    SnippetSource.IMPORTS,
    SnippetSource.EDITS,
    SnippetSource.GIVEN,
    SnippetSource.OPEN_FILES,
)
"""Who is served first where there is not room for all."""
_PLACES = tuple(SnippetSource)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of code from elsewhere, in the model's style: LF line ends, spaces for tabs."""

    source: SnippetSource
    path: str
    """As a model may be told; see `shown_path`."""
    text: str


@dataclass(frozen=True, slots=True)
class Snippets:
    """What a request brings along."""

    chunks: tuple[Snippet, ...] = ()
    """Of one source the most important comes first."""
    share: float = 0.25
    """Of the prompt's tokens that all of it may take."""


NO_SNIPPETS = Snippets()


def by_importance(chunks: Iterable[Snippet]) -> list[Snippet]:
    """The order in which chunks get room."""
    return sorted(chunks, key=lambda chunk: _IMPORTANCE.index(chunk.source))


def within(extra: Snippets, chars: int) -> Snippets:
    """The chunks that so many characters hold whole, the important ones first; in the order of a prompt."""
    taken = []
    for number, chunk in enumerate(by_importance(extra.chunks)):
        size = len(chunk.path) + len(chunk.text)
        if size <= chars:
            taken.append((in_place(chunk), -number, chunk))
            chars -= size
    return replace(extra, chunks=tuple(chunk for *_, chunk in sorted(taken, key=lambda one: one[:2])))


def in_place(chunk: Snippet) -> int:
    """Sorts chunks as they stand in a prompt."""
    return _PLACES.index(chunk.source)


WINDOW = 24
"""Lines of a part that is looked for."""
STRIDE = 8
"""Lines from one part to the next."""
MAX_LINES = 4000
"""Lines of a text that are looked through."""
_WORD = re.compile(r"\b[^\W\d]\w+")

Words = frozenset[str]


@dataclass(frozen=True, slots=True)
class CodeWindow:
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


def windows_of(text: str) -> tuple[CodeWindow, ...]:
    """Overlapping parts of a text, each beginning with a line that says something."""
    lines = text.split("\n")[:MAX_LINES]
    parts = []
    for start in range(0, max(1, len(lines) - WINDOW + STRIDE), STRIDE):
        part = tuple(lines[start : start + WINDOW])
        parts.append(CodeWindow(part, words_of("\n".join(part))))
    return tuple(parts)


def most_alike(parts: Sequence[CodeWindow], words: Words) -> tuple[float, CodeWindow]:
    """The part that is most like some words, the first of several; and how much.

    Raises:
        ValueError: there is none.
    """
    best = max(parts, key=lambda part: likeness(part.words, words))
    return likeness(best.words, words), best


CAPACITY = 16
SAME = 0.9
"""Likeness from which one place is taken for an older state of another."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Some lines of a document, as they were when they were left."""

    uri: str
    language: str
    text: str
    words: Words


class RecentEdits:
    """Not thread-safe: owned by the session."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._held: list[Edit] = []

    def add(self, uri: str, language: str, text: str) -> None:
        """Takes a place in, for older states of the same; one that says nothing is left out."""
        words = words_of(text)
        if words:
            others = [one for one in self._held if likeness(one.words, words) < SAME]
            self._held = [*others, Edit(uri, language, text, words)][-self._capacity :]

    def newest_first(self) -> tuple[Edit, ...]:
        """All that is held."""
        return tuple(reversed(self._held))
