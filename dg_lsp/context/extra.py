"""Code from elsewhere that a model may be shown before the file's own. Text only: knows no token and reads no file."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class Source(StrEnum):
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


_IMPORTANCE = (Source.DIAGNOSTICS, Source.IMPORTS, Source.EDITS, Source.GIVEN, Source.OPEN_FILES)
"""Who is served first where there is not room for all."""
_PLACES = tuple(Source)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of code from elsewhere, in the model's style: LF line ends, spaces for tabs."""

    source: Source
    path: str
    """As a model may be told; see `shown_path`."""
    text: str


@dataclass(frozen=True, slots=True)
class Extra:
    """What a request brings along."""

    chunks: tuple[Chunk, ...] = ()
    """Of one source the most important comes first."""
    share: float = 0.25
    """Of the prompt's tokens that all of it may take."""


NO_EXTRA = Extra()


def by_importance(chunks: Iterable[Chunk]) -> list[Chunk]:
    """The order in which chunks get room."""
    return sorted(chunks, key=lambda chunk: _IMPORTANCE.index(chunk.source))


def within(extra: Extra, chars: int) -> Extra:
    """The chunks that so many characters hold whole, the important ones first; in the order of a prompt."""
    taken = []
    for number, chunk in enumerate(by_importance(extra.chunks)):
        size = len(chunk.path) + len(chunk.text)
        if size <= chars:
            taken.append((in_place(chunk), -number, chunk))
            chars -= size
    return replace(extra, chunks=tuple(chunk for *_, chunk in sorted(taken, key=lambda one: one[:2])))


def in_place(chunk: Chunk) -> int:
    """Sorts chunks as they stand in a prompt."""
    return _PLACES.index(chunk.source)
