"""The native library: loaded once, changed where a changed one was built, silenced; how its threads should wait."""

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dg_lsp.backends.llamacpp.failures import library_error
from dg_lsp.backends.llamacpp.log import NativeLog
from dg_lsp.runtime import COMMAND, Found, Runtime, find_runtime

# Threads of OpenMP spin at each of a graph's hundreds of barriers unless told to sleep. As soon as anything else wants
# a core, the spinning one keeps it from the one that is waited for: steps of 5 ms took 15 to 1600 ms with two threads.
# Sleeping costs up to a half more where all cores are idle, which the measurement of threads takes into account.
_WAITING = ("OMP_WAIT_POLICY", "passive")
_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_FOLDER_VARIABLE = "LLAMA_CPP_LIB_PATH"


@dataclass(frozen=True, slots=True)
class Library:
    """llama.cpp's C functions and what it logged."""

    api: Any
    """The module `llama_cpp.llama_cpp`: untyped ctypes functions."""
    ggml: Any
    """ggml's functions of the same library by their names; whoever calls one sets its types first."""
    runtime: Runtime | None
    """The changed llama.cpp; None where the one that llama-cpp-python brought is loaded as it is."""
    note: str
    """Why a changed one is not loaded where a person might expect it."""
    log: NativeLog
    callback: Any
    """The C callback; collected together with the library, never before."""

    @property
    def has_tiles(self) -> bool:
        """Built for AMX, whose tile set-up GCC optimises away: the first pass over 8-bit weights ends the process."""
        return b"AMX_INT8 = 1" in self.api.llama_print_system_info()


class _Several:
    """Functions of several libraries, the first that has one."""

    def __init__(self, *libraries: ctypes.CDLL) -> None:
        self._libraries = libraries

    def __getattr__(self, name: str) -> Any:
        for library in self._libraries:
            with contextlib.suppress(AttributeError):
                return getattr(library, name)
        raise AttributeError(name)


def choose_waiting(environment: MutableMapping[str, str]) -> None:
    """Sets how OpenMP threads wait, unless the user did; OpenMP reads it when it is loaded."""
    if not any(name in environment for name in _WAIT_VARIABLES):
        name, value = _WAITING
        environment[name] = value


@functools.cache
def library() -> Library:
    """The library; the first call loads it.

    Raises:
        BackendError: llama-cpp-python is not installed, or its native part cannot be loaded here.
    """
    choose_waiting(os.environ)
    found = _loadable(find_runtime())
    try:
        with _folder(found.runtime):
            from llama_cpp import llama_cpp as api
        ggml = _ggml()
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise library_error(error) from error
    log = NativeLog()

    @api.llama_log_callback
    def write(level: int, text: bytes, _user_data: object) -> None:
        log.write(level, text)

    api.llama_log_set(write, None)
    api.llama_backend_init()
    return Library(api, ggml, found.runtime, found.note, log, write)


def _loadable(found: Found) -> Found:
    """Without the changed runtime where the system's loader refuses it: nothing else may fail because of that."""
    if found.runtime is None:
        return found
    if "llama_cpp.llama_cpp" in sys.modules:
        return Found(None, "llama_cpp was imported before dg-lsp")
    try:
        ctypes.CDLL(str(found.runtime.library))
    except OSError as error:
        return Found(None, f"{' '.join(str(error).split())}; run {COMMAND} again")
    return found


@contextlib.contextmanager
def _folder(runtime: Runtime | None) -> Iterator[None]:
    """llama-cpp-python looks for its library there, but no process that is started later does."""
    if runtime is None:
        yield
        return
    os.environ[_FOLDER_VARIABLE] = str(runtime.folder)
    try:
        yield
    finally:
        del os.environ[_FOLDER_VARIABLE]


def _ggml() -> Any:
    """Not the ggml that `llama_cpp._ggml` loads: that is another copy, which has none of a changed one's devices."""
    from llama_cpp.llama_cpp import _base_path, _lib

    if os.name != "nt":
        return _lib  # a handle finds the symbols of what its library needs, too
    folder = Path(_base_path)
    return _Several(*(ctypes.CDLL(str(folder / f"{name}.dll")) for name in ("ggml-base", "ggml")))
