"""Finds the changed class of llama.cpp that DiffusionGemma needs, and checks that it fits. Loads no library.

`dg-lsp models build-runtime` writes an overlay: a folder with a small library, which is loaded before the installed
libllama and replaces one of its classes, and a record. It fits only the file that it was made for.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.errors import ModelError
from dg_lsp.system import data_folder, file_sha256, read_record

RUNTIME_VARIABLE = "DG_LSP_RUNTIME"
"""Environment variable with another folder for building and for loading; `stock` loads no changed runtime."""
STOCK = "stock"
PACKAGE = "llama-cpp-python"
COMMAND = "dg-lsp models build-runtime"
RECORD = "runtime.json"
LLAMA_CPP_VARIABLE = "LLAMA_CPP_LIB_PATH"  # a variable of llama-cpp-python
OVERLAY_LIBRARY = "libllama.so"
"""File name of the library in an overlay: other systems than those with ELF files have no overlays."""
_LIBRARIES = ("libllama.so", "libllama.dylib", "llama.dll", "libllama.dll")
"""File names that llama-cpp-python searches for, on all systems."""


@dataclass(frozen=True, slots=True)
class InstalledLibrary:
    """The installed llama-cpp-python."""

    version: str
    library: Path  # the file of libllama

    def digest(self) -> str:
        """SHA-256 of the file."""
        return file_sha256(self.library)


@dataclass(frozen=True, slots=True)
class Runtime:
    """An overlay of the installed llama.cpp."""

    folder: Path
    installed_library: str  # the library whose class it replaces
    installed_sha256: str

    @property
    def library(self) -> Path:
        """The library to load instead of the installed one."""
        return self.folder / OVERLAY_LIBRARY

    def write(self) -> None:
        """Writes the record beside the library."""
        record = {"installed_library": self.installed_library, "installed_sha256": self.installed_sha256}
        (self.folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def fits(self, installed: InstalledLibrary) -> bool:
        """Whether it was made for the installed llama-cpp-python."""
        path = Path(self.installed_library).resolve()  # the environment may be reached by a link
        return path == installed.library.resolve() and self.installed_sha256 == installed.digest()


@dataclass(frozen=True, slots=True)
class RuntimeSearch:
    """The changed runtime to load, if there is one, and why one that the user may expect is not loaded."""

    runtime: Runtime | None
    note: str = ""


def installed_library() -> InstalledLibrary | None:
    """The library of llama-cpp-python; None if it is not installed or has none."""
    package = importlib.util.find_spec("llama_cpp")
    if package is None or not package.submodule_search_locations:
        return None
    folder = Path(package.submodule_search_locations[0]) / "lib"
    library = next((folder / name for name in _LIBRARIES if (folder / name).is_file()), None)
    try:
        return InstalledLibrary(importlib.metadata.version(PACKAGE), library) if library else None
    except importlib.metadata.PackageNotFoundError:
        return None


def require_library() -> InstalledLibrary:
    """The library of llama-cpp-python; raises ModelError if it is not installed or has none."""
    installed = installed_library()
    if installed is None:
        raise ModelError(f"{PACKAGE} is not installed, or has no library: install it again")
    return installed


def runtime_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for the changed runtime of this Python environment."""
    given = environment.get(RUNTIME_VARIABLE, "")
    if given and given != STOCK:
        return Path(given).expanduser().absolute()
    if sys.prefix != sys.base_prefix:  # a virtual environment: the runtime is deleted with it
        return Path(sys.prefix) / "share" / "dg-lsp" / "runtime"
    # the data folder is shared by all Python installations of the user
    key = hashlib.sha256(os.fsencode(sys.prefix)).hexdigest()[:12]
    return data_folder() / "runtimes" / key


def find_runtime(environment: Mapping[str, str] = os.environ) -> RuntimeSearch:
    """Finds the changed runtime to load; none if there is none, or if it does not fit."""
    if environment.get(LLAMA_CPP_VARIABLE):
        return RuntimeSearch(None, f"{LLAMA_CPP_VARIABLE} selects the library")
    given = environment.get(RUNTIME_VARIABLE, "")
    library = installed_library()
    if given == STOCK or library is None:
        return RuntimeSearch(None, f"{RUNTIME_VARIABLE} is set to {STOCK}" if library else "")
    folder = runtime_folder(environment)
    if not (folder / RECORD).exists():
        return RuntimeSearch(None, f"{folder}, the value of {RUNTIME_VARIABLE}, contains no runtime" if given else "")
    runtime = read_runtime(folder)
    if runtime is None or not runtime.library.is_file():
        return RuntimeSearch(None, f"the runtime in {folder} is damaged; run {COMMAND} again")
    if not runtime.fits(library):
        return RuntimeSearch(None, f"the runtime in {folder} was made for another {PACKAGE}; run {COMMAND} again")
    return RuntimeSearch(runtime)


def read_runtime(folder: Path) -> Runtime | None:
    """The runtime in a folder; None if its record is missing or invalid."""
    return read_record(folder / RECORD, lambda record: Runtime(folder, **record))
