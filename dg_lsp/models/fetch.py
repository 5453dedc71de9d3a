"""A preset's files on their way to this machine: found, continued where they broke off, checked, put in their place.

Knows no terminal: who calls shows the progress. A file appears under its name only when it is whole and right.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from dg_lsp.errors import ModelDownloadError
from dg_lsp.models.digest import blob_id_of, sha256_of
from dg_lsp.models.fetched import RECORD, Fetched, fetched_path, is_whole, read_record
from dg_lsp.models.folder import VARIABLE
from dg_lsp.models.presets import Preset
from dg_lsp.models.sources import Listing, Source, SourceFile, chosen

_MAGIC = b"GGUF"

Look = Callable[[str, int, int], object]
"""Told what is being done, how many bytes are done with, and how many there are: each is fetched and then checked."""


class Fetch:
    """One preset's way onto this machine."""

    def __init__(self, preset: Preset, source: Source) -> None:
        self._preset = preset
        self._source = source
        self._folder = preset.folder
        self._done = 0
        self._total = 0
        self._look: Look = lambda *_: None

    def run(self, look: Look = lambda *_: None) -> Path:
        """Fetches what is missing; returns the GGUF file, or the folder of a checkpoint.

        Raises:
            ModelDownloadError: no network, no space, or what came is not what was expected; it says what to do.
        """
        self._look = look
        with self._explained(), self._alone():
            listing = self._source.listing()
            files = tuple(
                self._pinned(file) for file in chosen(listing, self._preset.patterns, self._preset.repository)
            )
            self._total = 2 * sum(file.size for file in files)
            self._check_space(files)
            record = read_record(self._preset)
            trusted = record.files if record is not None else ()
            for file in files:
                self._get(file, listing, is_known=file in trusted)
            self._write_record(Fetched(self._preset.repository, listing.commit, files))
        path = fetched_path(self._preset)
        if path is None:
            raise ModelDownloadError(f"{self._preset.name} was changed while it was fetched: run it again")
        return path

    def _pinned(self, file: SourceFile) -> SourceFile:
        """What this release knows of the file goes over what its source says.

        Raises:
            ModelDownloadError: the source has another file under the name.
        """
        expected = self._preset.sha256
        if not expected or not file.path.endswith(".gguf"):
            return file
        if file.sha256 and file.sha256 != expected:
            raise ModelDownloadError(
                f"{file.path} of {self._preset.repository} is another file by now than the one this release knows: "
                "pass --revision main to take what the hub has"
            )
        return SourceFile(file.path, file.size, sha256=expected)

    def _get(self, file: SourceFile, listing: Listing, *, is_known: bool) -> None:
        path = self._folder / file.path
        if is_known and is_whole(path, file.size):
            self._count(2 * file.size, file)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (is_whole(path, file.size) and self._is_right(path, file)):
            part = _part(path, file)
            self._complete(part, file, listing)
            if not self._is_right(part, file):
                part.unlink()
                raise ModelDownloadError(
                    f"{file.path} of {self._preset.repository} is not what was expected: its checksum differs; "
                    "the download was damaged and is removed: run it again"
                )
            part.replace(path)
        else:
            self._count(file.size, file)

    def _complete(self, part: Path, file: SourceFile, listing: Listing) -> None:
        """Brings the part to its full length."""
        if part.exists() and part.stat().st_size > file.size:
            part.unlink()
        with part.open("ab") as target:
            start = target.tell()
            self._count(start, file)
            if start < file.size:
                self._source.append(file, listing.commit, target, start, lambda size: self._count(size, file))
            target.flush()
            os.fsync(target.fileno())
        length = part.stat().st_size
        if length != file.size:
            raise ModelDownloadError(
                f"{file.path} ended after {length:,} of {file.size:,} bytes: run it again, it goes on where it was"
            )

    def _is_right(self, path: Path, file: SourceFile) -> bool:
        """The content has the checksum that is known of it; without one it looks like what it should be."""
        with path.open("rb") as content:
            if file.sha256:
                return sha256_of(content, lambda size: self._count(size, file, "checking")) == file.sha256
            looks_right = not file.path.endswith(".gguf") or content.read(len(_MAGIC)) == _MAGIC
        self._count(file.size, file, "checking")
        return looks_right and (not file.blob_id or blob_id_of(path) == file.blob_id)

    def _count(self, size: int, file: SourceFile, what: str = "fetching") -> None:
        self._done += size
        self._look(f"{what} {file.path}", self._done, self._total)

    def _check_space(self, files: tuple[SourceFile, ...]) -> None:
        needed = sum(
            file.size - _length(self._folder / file.path) - _length(_part(self._folder / file.path, file))
            for file in files
        )
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise ModelDownloadError(
                f"{self._folder} needs {needed / 1e6:,.0f} MB free and has {free / 1e6:,.0f}: make room there, "
                f"or set {VARIABLE} to another folder"
            )

    def _write_record(self, record: Fetched) -> None:
        part = self._folder / f".{RECORD}"
        part.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
        part.replace(self._folder / RECORD)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One fetch of a preset at a time: two would write into the same part."""
        from filelock import FileLock, Timeout

        self._folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._folder / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise ModelDownloadError(
                f"{self._preset.name} is being fetched by another dg-lsp: wait until it is done"
            ) from error
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"fails ({error.strerror or error})"
            raise ModelDownloadError(
                f"writing to {self._folder} {what}: make room there and run it again, it goes on where it was; "
                f"or set {VARIABLE} to another folder"
            ) from error


def _part(path: Path, file: SourceFile) -> Path:
    """Where the file grows; another one for each content, so that no two are ever mixed."""
    content = (file.sha256 or file.blob_id or str(file.size))[:12]
    return path.with_name(f".{path.name}.{content}.part")


def _length(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
