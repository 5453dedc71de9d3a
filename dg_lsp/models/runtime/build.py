"""From a source to a changed runtime that was tried and lies where it is found. Knows no terminal."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.errors import ModelRuntimeError, UsageError
from dg_lsp.models.runtime.overlay import compile_overlay, is_possible
from dg_lsp.models.runtime.patch import Patch
from dg_lsp.models.runtime.source import BALLAST, RuntimeSource
from dg_lsp.models.runtime.tools import Look, compiler
from dg_lsp.models.runtime.whole import check_tools, compile_whole, natural_backend
from dg_lsp.runtime import COMMAND, PACKAGE, VARIABLE, Installed, Runtime, installed, runtime_folder

Prove = Callable[[Path], bool]
"""Whether a runtime in this folder computes what it was changed for."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked for."""

    source: Path | None = None
    """Where the source is taken from; None fetches it."""
    backend: str | None = None
    """All of llama.cpp, computing on this."""
    is_whole: bool = False
    """All of llama.cpp, even where one class would do."""

    @property
    def whole_backend(self) -> str:
        """What all of llama.cpp is to be built for; empty where one class will do."""
        wants_whole = self.is_whole or self.backend is not None or not is_possible()
        return (self.backend or natural_backend()) if wants_whole else ""


def build(wish: Wish, prove: Prove, look: Look = lambda *_: None) -> Runtime | None:
    """Makes the runtime and puts it, at once and whole, where it is found; one that was there is replaced.

    Returns None where there is nothing to build, since the source of what is installed says already what the patch
    would make it say.

    Raises:
        UsageError: a backend that is not there, or a folder that is not ours to replace.
        ModelRuntimeError: a tool is missing, the compilation failed, or what it made does not do what it should.
        ModelDownloadError: the source cannot be fetched.
    """
    here = installed()
    if here is None:
        raise ModelRuntimeError(f"{PACKAGE} is not installed, or has no library: install it again")
    folder = runtime_folder()
    if folder.exists() and not (folder / "runtime.json").exists() and not _is_empty(folder):
        raise UsageError(f"{folder} holds something else than a runtime: name another folder")
    _check_tools(wish.whole_backend)
    with _beside(folder) as work:
        made = work / folder.name
        made.mkdir()
        log = folder.with_name(f"{folder.name}.log")
        if not _compile(wish, here, work, made, log, look):
            return None
        kind = "whole" if wish.whole_backend else "overlay"
        Runtime(made, kind, wish.whole_backend, here.version, str(here.library), here.digest()).write()
        look("trying it", None)
        if not prove(made):
            advice = f"run {COMMAND} --whole" if kind == "overlay" else "please report this"
            raise ModelRuntimeError(
                f"the changed llama.cpp was built, but computes what the installed one does: {advice}"
            )
        log.rename(made / "build.log")
        _swap(made, folder, work)
    return Runtime(folder, kind, wish.whole_backend, here.version, str(here.library), here.digest())


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _check_tools(whole_backend: str) -> None:
    """Before anything is fetched."""
    if whole_backend:
        check_tools(whole_backend)
    else:
        compiler()


def _compile(wish: Wish, here: Installed, work: Path, made: Path, log: Path, look: Look) -> bool:
    patch = Patch.read()
    backend = wish.whole_backend
    given = wish.source.expanduser().absolute() if wish.source else None
    source = RuntimeSource(here.version, given).unpack(work, look, whole=bool(backend))
    if not (source / patch.target).is_file():
        raise ModelRuntimeError(f"llama.cpp of {PACKAGE} {here.version} has no {patch.target}: update dg-lsp")
    log.unlink(missing_ok=True)
    if backend:
        if given is not None and source.is_relative_to(given):  # what a person gave is not ours to change
            source = Path(shutil.copytree(source, work / "source", ignore=_ballast_of(source)))
        compile_whole(source, patch, here.version, backend, made, log, look)
        return True
    if patch.is_in((source / patch.target).read_text(encoding="utf-8")):
        return False
    look("compiling", None)
    compile_overlay(source, patch, here, made, log)
    return True


def _ballast_of(source: Path) -> Callable[[str, list[str]], tuple[str, ...]]:
    return lambda folder, _names: BALLAST if Path(folder) == source else ()


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A folder to work in on the same disk, gone afterwards."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=folder.parent, prefix=f".{folder.name}-", ignore_cleanup_errors=True
        ) as name:
            yield Path(name)
    except OSError as error:
        where = error.filename or folder.parent
        raise ModelRuntimeError(
            f"cannot write {where}: {error.strerror or error}; make room there, or set {VARIABLE} to another folder"
        ) from error


def _swap(made: Path, folder: Path, work: Path) -> None:
    """Who has the old one loaded keeps it until the process ends."""
    if folder.exists():
        folder.rename(work / "replaced")
    made.rename(folder)
