"""Loads llama.cpp's native library once per process, and lists its devices."""

import contextlib
import ctypes
import functools
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dg_lsp.backends.llamacpp.errors import library_error
from dg_lsp.errors import BackendError
from dg_lsp.runtime import COMMAND, Runtime, RuntimeSearch, find_runtime

MAX_PROBLEMS = 50
_WARN, _ERROR = 3, 4  # enum ggml_log_level

# Threads of OpenMP spin at each of a graph's hundreds of barriers by default. When another program needs a core, a
# spinning thread takes it from the thread that the barrier waits for: with two threads, steps of 5 ms took 15 to
# 1600 ms. Sleeping costs up to 50 % on an idle machine; the thread measurement at load includes this cost.
_WAITING = ("OMP_WAIT_POLICY", "passive")
_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_FOLDER_VARIABLE = "LLAMA_CPP_LIB_PATH"


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded llama.cpp."""

    api: Any
    """The module `llama_cpp.llama_cpp`: untyped ctypes functions."""
    ggml: Any
    """ggml's functions of the same library, by name. Use `declare` before a function is called."""
    runtime: Runtime | None
    """The changed llama.cpp; None if the one of llama-cpp-python is loaded."""
    note: str
    """Why a changed llama.cpp is not loaded."""
    problems: deque[str]
    """The last warnings and errors that llama.cpp logged; cleared before a call whose failure they explain."""
    log_callback: Any
    """Keeps the C callback alive. It prints nothing."""

    @property
    def has_amx(self) -> bool:
        """Built for AMX. GCC optimises the tile set-up away: the first pass over 8-bit weights would crash."""
        return b"AMX_INT8 = 1" in self.api.llama_print_system_info()


class _LibraryGroup:
    """Finds a function in the first of several libraries that has it."""

    def __init__(self, *libraries: ctypes.CDLL) -> None:
        self._libraries = libraries

    def __getattr__(self, name: str) -> Any:
        for library in self._libraries:
            with contextlib.suppress(AttributeError):
                return getattr(library, name)
        raise AttributeError(name)


def set_wait_policy(environment: MutableMapping[str, str]) -> None:
    """Makes OpenMP threads sleep while they wait, unless the user chose otherwise. OpenMP reads it when it loads."""
    if not any(name in environment for name in _WAIT_VARIABLES):
        name, value = _WAITING
        environment[name] = value


@functools.cache
def library() -> Library:
    """The library; the first call loads it.

    Raises:
        BackendError: llama-cpp-python is not installed, or its native part cannot be loaded.
    """
    set_wait_policy(os.environ)
    found = _loadable(find_runtime())
    try:
        with _library_folder(found.runtime):
            from llama_cpp import llama_cpp as api
        ggml = declare(_ggml(), _DEVICE_FUNCTIONS)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise library_error(error) from error
    problems: deque[str] = deque(maxlen=MAX_PROBLEMS)

    @api.llama_log_callback
    def write(level: int, text: bytes, _user_data: object) -> None:
        if level in (_WARN, _ERROR):
            problems.append(text.decode("utf-8", "replace").rstrip("\n"))

    api.llama_log_set(write, None)
    api.llama_backend_init()
    return Library(api, ggml, found.runtime, found.note, problems, write)


def _loadable(found: RuntimeSearch) -> RuntimeSearch:
    """Drops a changed runtime that cannot be loaded: the installed library still serves all other models."""
    if found.runtime is None:
        return found
    if "llama_cpp.llama_cpp" in sys.modules:
        return RuntimeSearch(None, "llama_cpp was imported before dg-lsp")
    try:
        ctypes.CDLL(str(found.runtime.library))
    except OSError as error:
        return RuntimeSearch(None, f"{' '.join(str(error).split())}; run {COMMAND} again")
    return found


@contextlib.contextmanager
def _library_folder(runtime: Runtime | None) -> Iterator[None]:
    """Makes llama-cpp-python load the runtime's library; child processes do not inherit that."""
    if runtime is None:
        yield
        return
    os.environ[_FOLDER_VARIABLE] = str(runtime.folder)
    try:
        yield
    finally:
        del os.environ[_FOLDER_VARIABLE]


def _ggml() -> Any:
    """ggml of the loaded library. `llama_cpp._ggml` loads another copy, without the devices of a changed runtime."""
    from llama_cpp.llama_cpp import _base_path, _lib

    if os.name != "nt":
        return _lib  # the handle also finds the symbols of its dependencies
    folder = Path(_base_path)
    return _LibraryGroup(*(ctypes.CDLL(str(folder / f"{name}.dll")) for name in ("ggml-base", "ggml")))


Signature = tuple[str, Any, list[Any]]
"""Name, result type and argument types of a C function."""
_HANDLE, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_DEVICE_FUNCTIONS: tuple[Signature, ...] = (
    ("ggml_backend_dev_count", _SIZE, []),
    ("ggml_backend_dev_get", _HANDLE, [_SIZE]),
    ("ggml_backend_dev_description", ctypes.c_char_p, [_HANDLE]),
    ("ggml_backend_dev_type", ctypes.c_int, [_HANDLE]),
    ("ggml_backend_dev_memory", None, [_HANDLE, ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE)]),
)


def declare(ggml: Any, signatures: Iterable[Signature]) -> Any:
    """Sets the types of functions; returns `ggml`.

    Raises:
        BackendError: this ggml lacks a function.
    """
    for name, result, arguments in signatures:
        try:
            function = getattr(ggml, name)
        except AttributeError as error:
            raise BackendError(f"this llama.cpp lacks {name}; update llama-cpp-python") from error
        function.restype, function.argtypes = result, arguments
    return ggml


_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator"}  # enum ggml_backend_dev_type


@dataclass(frozen=True, slots=True)
class Device:
    """A device of llama.cpp."""

    name: str
    kind: str
    """`cpu`, `gpu`, `igpu` (shares the machine's memory), `accelerator` (such as BLAS) or `other`."""
    memory_free: int
    """Bytes; 0 if the driver does not report it."""
    memory_total: int
    """Bytes; 0 if the driver does not report it."""


def devices() -> tuple[Device, ...]:
    """All devices, in llama.cpp's order.

    Raises:
        BackendError: llama-cpp-python cannot be loaded.
    """
    ggml = library().ggml
    found = []
    for index in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(index)
        free, total = _SIZE(), _SIZE()
        ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        name = (ggml.ggml_backend_dev_description(device) or b"").decode("utf-8", "replace").strip()
        kind = _KINDS.get(ggml.ggml_backend_dev_type(device), "other")
        found.append(Device(name, kind, free.value, total.value))
    return tuple(found)


def gpus() -> tuple[Device, ...]:
    """The devices that llama.cpp puts layers on: all cards, or without cards those that share the machine's memory."""
    found = devices()
    cards = tuple(device for device in found if device.kind == "gpu")
    return cards or tuple(device for device in found if device.kind == "igpu")


def has_gpu() -> bool:
    """Whether layers can be put on a GPU."""
    return bool(library().api.llama_supports_gpu_offload() and gpus())
