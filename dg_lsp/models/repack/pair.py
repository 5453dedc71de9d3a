"""Writes a repacked model: the side file, then the main file that names it. Both appear whole or not at all."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dg_lsp import gguf as v
from dg_lsp.errors import InputFileError, UsageError
from dg_lsp.gguf import ProgressCallback, write_gguf
from dg_lsp.models.repack.names import SIDE_ARCHITECTURE, SIDE_SUFFIX
from dg_lsp.models.repack.parts import Parts

_SLACK = 64 << 20
"""Bytes beside the weights: metadata and padding."""

Press = Callable[[Path, Path], object]
"""Makes the second file from the first one, smaller."""


def side_path(target: Path) -> Path:
    """Where the side file of a main file lies."""
    return target.with_name(target.name.removesuffix(".gguf") + SIDE_SUFFIX)


def check_target(target: Path, needed: int) -> None:
    """The files can be written: a GGUF's name, not there yet, in a folder with room for `needed` bytes of weights.

    Raises:
        UsageError: the name is taken, or no GGUF's.
        InputFileError: no such folder, or no room in it.
    """
    if not target.name.endswith(".gguf") or target.name.endswith(SIDE_SUFFIX):
        raise UsageError(f"{target} is no name for a model: let it end in .gguf")
    for path in (target, side_path(target)):
        if path.exists():
            raise UsageError(f"{path} is there already: remove it, or pass another name with -o")
    if not target.parent.is_dir():
        raise InputFileError(f"{target.parent} is no folder: make it, or pass another name with -o")
    free = shutil.disk_usage(target.parent).free
    if free < needed + _SLACK:
        raise InputFileError(
            f"{target.parent} needs {(needed + _SLACK) / 1e9:,.1f} GB free and has {free / 1e9:,.1f}: "
            "make room there, or pass another folder with -o"
        )


def write_pair(parts: Parts, target: Path, look: ProgressCallback = lambda _: None, press: Press | None = None) -> None:
    """Writes both files under temporary names and renames them; an interruption leaves nothing behind.

    With `press` the main file is made by it from what is written first.

    Raises:
        ModelBrokenError: the source ended too early.
        InputFileError: no room, or no right to write there.
        DgLspError: what `press` raises.
    """
    side = side_path(target)
    with explained(target), contextlib.ExitStack() as stack:
        new_side = stack.enter_context(_temporary(side))
        with new_side.open("wb") as file:
            write_gguf(file, {"general.architecture": v.text(SIDE_ARCHITECTURE)}, parts.side, look)
        values = {
            **parts.values,
            "dg.self_conditioning": v.text(side.name),
            "dg.self_conditioning.sha256": v.text(_sha256(new_side)),
        }
        new = stack.enter_context(_temporary(target))
        with new.open("wb") as file:
            write_gguf(file, values, parts.body, look)
        if press:
            pressed = stack.enter_context(_temporary(target))
            press(new, pressed)
            new = pressed
        _keep(new_side, side)
        _keep(new, target)


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """An empty file beside `target`; removed in the end where nobody renamed it."""
    number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(number)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _keep(temporary: Path, target: Path) -> None:
    """The file is on the disk before it has its name."""
    with temporary.open("r+b") as file:
        os.fsync(file.fileno())
    temporary.chmod(0o644)
    temporary.replace(target)


@contextlib.contextmanager
def explained(target: Path) -> Iterator[None]:
    """What the system says of a disk, as an error that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputFileError(
            f"{target} cannot be written: {reason}; make room there, or pass another name with -o"
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
