"""Places that were edited, the newest last: a bounded store without near copies. Knows texts only."""

from dataclasses import dataclass

from dg_lsp.context.similar import Words, likeness, words_of

CAPACITY = 16
SAME = 0.9
"""Likeness from which one place is taken for an older state of another."""


@dataclass(frozen=True, slots=True)
class Visited:
    """Some lines of a document, as they were when they were left."""

    uri: str
    language: str
    text: str
    words: Words


class Ring:
    """Not thread-safe: owned by the session."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._held: list[Visited] = []

    def add(self, uri: str, language: str, text: str) -> None:
        """Takes a place in, for older states of the same; one that says nothing is left out."""
        words = words_of(text)
        if words:
            others = [one for one in self._held if likeness(one.words, words) < SAME]
            self._held = [*others, Visited(uri, language, text, words)][-self._capacity :]

    def newest_first(self) -> tuple[Visited, ...]:
        """All that is held."""
        return tuple(reversed(self._held))
