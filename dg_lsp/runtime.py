"""The changed llama.cpp: where it lies, what it was made for, and whether that is what is installed. Loads nothing.

A changed runtime is a folder with a library and a record. It is made by `dg-lsp models build-runtime`, and it is one of
two kinds. An **overlay** is a small library that stands in front of the one that llama-cpp-python brought, and replaces
one of its classes; it fits that very file and no other. A **whole** one is all of llama.cpp, and fits any
llama-cpp-python of the same version.
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dg_lsp.system import data_folder

VARIABLE = "DG_LSP_RUNTIME"
"""Names another folder, to be made as well as to be used; `stock` uses none."""
STOCK = "stock"
PACKAGE = "llama-cpp-python"
COMMAND = "dg-lsp models build-runtime"
_RECORD = "runtime.json"
_OVERLAY, _WHOLE = "overlay", "whole"
_THEIRS = "LLAMA_CPP_LIB_PATH"  # llama-cpp-python's own variable


@dataclass(frozen=True, slots=True)
class Installed:
    """llama-cpp-python as it lies here."""

    version: str
    library: Path
    """libllama."""

    def digest(self) -> str:
        """SHA-256 of the library."""
        return _digest(self.library, self.library.stat().st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Runtime:
    """One changed llama.cpp."""

    folder: Path
    kind: str
    """`overlay` or `whole`."""
    backend: str
    """What a whole one computes on, such as `cuda`; empty for an overlay, which leaves that to what is installed."""
    version: str
    """Of the llama-cpp-python that it was made for."""
    installed_library: str
    """The library that an overlay stands in front of."""
    installed_sha256: str

    @property
    def library(self) -> Path:
        """What is loaded in place of the installed library."""
        return self.folder / library_name()

    def write(self) -> None:
        """Puts the record beside the library."""
        record = {key: value for key, value in asdict(self).items() if key != "folder"}
        (self.folder / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def misfit(self, installed: Installed) -> str:
        """Why it must not be loaded beside what is installed; empty when it may."""
        if self.version != installed.version:
            return f"it was made for {PACKAGE} {self.version}, installed is {installed.version}"
        if self.kind == _WHOLE:
            return ""
        is_same = Path(self.installed_library) == installed.library and self.installed_sha256 == installed.digest()
        return "" if is_same else f"it was made for another build of {PACKAGE} {self.version}"


@dataclass(frozen=True, slots=True)
class Found:
    """The runtime to load, or none, and why a person might have expected another."""

    runtime: Runtime | None
    note: str = ""


def library_name() -> str:
    """libllama's file name on this system."""
    names = {"darwin": "libllama.dylib", "win32": "llama.dll"}
    return names.get(sys.platform, "libllama.so")


def installed() -> Installed | None:
    """What llama-cpp-python brought; None where it is not installed or has no library."""
    package = importlib.util.find_spec("llama_cpp")
    if package is None or not package.submodule_search_locations:
        return None
    folder = Path(package.submodule_search_locations[0]) / "lib"
    names = (library_name(), "libllama.so", "libllama.dll")
    library = next((folder / name for name in names if (folder / name).is_file()), None)
    try:
        return Installed(importlib.metadata.version(PACKAGE), library) if library else None
    except importlib.metadata.PackageNotFoundError:
        return None


def runtime_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the changed runtime of this Python environment lies or will lie."""
    given = environment.get(VARIABLE, "")
    if given and given != STOCK:
        return Path(given).expanduser().absolute()
    if sys.prefix != sys.base_prefix:  # a virtual environment: what was made for it goes when it goes
        return Path(sys.prefix) / "share" / "dg-lsp" / "runtime"
    # several Pythons share the user's folder, each with a llama-cpp-python of its own
    key = hashlib.sha256(os.fsencode(sys.prefix)).hexdigest()[:12]
    return data_folder() / "runtimes" / key


def find_runtime(environment: Mapping[str, str] = os.environ) -> Found:
    """The changed runtime that is to be loaded; none where there is none or it does not fit."""
    if environment.get(_THEIRS):
        return Found(None, f"{_THEIRS} says which library is loaded")
    here = installed()
    if environment.get(VARIABLE) == STOCK or here is None:
        return Found(None, f"{VARIABLE} is set to {STOCK}" if here else "")
    folder = runtime_folder(environment)
    if not (folder / _RECORD).exists():
        return Found(None, f"there is none in {folder}, which {VARIABLE} names" if environment.get(VARIABLE) else "")
    runtime = read_runtime(folder)
    if runtime is None or not runtime.library.is_file():
        return Found(None, f"the one in {folder} is damaged; run {COMMAND} again")
    if misfit := runtime.misfit(here):
        return Found(None, f"the one in {folder} is not used: {misfit}; run {COMMAND} again")
    return Found(runtime)


def read_runtime(folder: Path) -> Runtime | None:
    """The folder's record; None where it is missing or cannot be understood."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        runtime = Runtime(folder, **record)
    except (OSError, ValueError, TypeError):
        return None
    are_texts = all(isinstance(value, str) for value in record.values())
    return runtime if are_texts and runtime.kind in (_OVERLAY, _WHOLE) else None


@functools.lru_cache(maxsize=8)
def _digest(path: Path, _changed_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
