"""The workspace's files as context may show them: an open one as its buffer is, and no excluded one, read or named."""

from collections.abc import Callable
from pathlib import Path

from dg_lsp.context.exclusion import Why, path_of
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.server.documents import Document, Documents

MAX_BYTES = 500_000
"""Of a file that is read for what it defines."""


class SeenFiles:
    """See `symbols.workspace.Files`."""

    def __init__(self, documents: Callable[[], Documents], why: Callable[[Snapshot], Why | None]) -> None:
        """`why` tells why a buffer must not be shown, None where it may."""
        self._documents = documents
        self._why = why

    def stamp(self, path: Path) -> object | None:
        """See `Files.stamp`. Settings and .gitignore files may change, so they are asked each time."""
        if (document := self._open(path)) is not None:
            return None if self._why(document.snapshot()) else (document.version, id(document))
        try:
            seen = path.stat()
        except (OSError, ValueError):
            return None
        is_shown = seen.st_size <= MAX_BYTES and path.is_file() and not self._why(_snapshot(path, ""))
        return (seen.st_mtime_ns, seen.st_size, seen.st_ino) if is_shown else None

    def text(self, path: Path) -> str | None:
        """See `Files.text`. A link is what it leads to."""
        if (document := self._open(path)) is not None:
            return document.lines.text
        try:
            text = path.read_text(encoding="utf-8")
            target = path.resolve()
        except (OSError, ValueError):
            return None
        return None if self._why(_snapshot(target, text)) else text

    def _open(self, path: Path) -> Document | None:
        wanted = path.as_posix().lstrip("/")
        return next((one for one in self._documents().all() if path_of(one.uri) == wanted), None)


def _snapshot(path: Path, text: str) -> Snapshot:
    return Snapshot(path.as_uri(), 0, text, "python")
