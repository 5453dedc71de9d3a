"""Where a preset's files come from: what there is, and how to get more of one. Knows no network and no folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import BinaryIO, Protocol

from dg_lsp.errors import ModelDownloadError

Count = Callable[[int], object]
"""Told how many bytes have just come."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file, as its source describes it."""

    path: str
    """Inside the repository."""
    size: int
    """Bytes."""
    sha256: str = ""
    """Of the content; empty where the source does not say."""
    blob_id: str = ""
    """git's own checksum, of small files kept in the repository itself; empty where the source does not say."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of one version."""

    commit: str
    """What that version is called; the same for as long as the files are the same, empty where nobody knows."""
    files: tuple[SourceFile, ...]


class Source(Protocol):
    """A hub, or a folder that stands for one."""

    def listing(self) -> Listing:
        """What there is.

        Raises:
            ModelDownloadError: it cannot be asked, or has no such model; the message says what to do.
        """

    def append(self, file: SourceFile, commit: str, target: BinaryIO, start: int, count: Count) -> None:
        """Writes the file's bytes from `start` on to the end of `target`, which holds that many already.

        Raises:
            ModelDownloadError: it broke off; what has come stays in `target`.
            OSError: `target` cannot be written to.
        """


def chosen(listing: Listing, patterns: Sequence[str], repository: str) -> tuple[SourceFile, ...]:
    """The files that the patterns name. One that names a GGUF file must name exactly one.

    Raises:
        ModelDownloadError: none fits, or several do; it names those that are there.
    """
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        fitting = [file for file in listing.files if _fits(file.path, pattern)]
        if pattern.endswith(".gguf") and len(fitting) != 1:
            raise ModelDownloadError(_not_one(listing, pattern, repository, len(fitting)))
        found.update((file.path, file) for file in fitting)
    if not any(file.path.endswith((".gguf", ".safetensors")) for file in found.values()):
        raise ModelDownloadError(f"{repository} has no weights in it: take another repository, or pass --from FOLDER")
    return tuple(found.values())


def _fits(path: str, pattern: str) -> bool:
    """`*` does not cross folders: what a repository keeps in them is other versions or demonstrations."""
    return path.count("/") == pattern.count("/") and fnmatch(path, pattern)


def _not_one(listing: Listing, pattern: str, repository: str, num_fitting: int) -> str:
    there = sorted(file.path for file in listing.files if file.path.endswith(".gguf"))
    count = "no file" if not num_fitting else f"{num_fitting} files"
    names = ", ".join(there[:20]) or "no GGUF at all"
    return f"{repository} has {count} {pattern}: choose one with --file; it has {names}"
