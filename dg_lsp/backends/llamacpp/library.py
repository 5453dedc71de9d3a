"""The native library: loaded once, changed where a changed one was built, silenced; how its threads should wait."""

import contextlib
import ctypes
import functools
import os
import sys
from collections import deque
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dg_lsp.backends.llamacpp.errors import library_error
from dg_lsp.runtime import COMMAND, Runtime, RuntimeSearch, find_runtime

MAX_LINES = 50
_DEBUG, _WARN, _ERROR = 1, 3, 4  # enum ggml_log_level
_CONTINUED = 5  # belongs to the line before


class NativeLog:
    """Keeps lines for `doctor`, and warnings and errors apart, since a load writes hundreds of lines."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._trouble: deque[str] = deque(maxlen=MAX_LINES)

    def write(self, level: int, text: bytes) -> None:
        """One call of llama.cpp's log callback; may come from any of its threads."""
        line = text.decode("utf-8", "replace").rstrip("\n")
        # Progress dots and empty ends of lines say nothing afterwards; debug lines would push out the rest.
        if level in (_DEBUG, _CONTINUED) or not line.strip("."):
            return
        self._lines.append(line)
        if level in (_WARN, _ERROR):
            self._trouble.append(line)

    @property
    def lines(self) -> tuple[str, ...]:
        """Oldest first."""
        return tuple(self._lines)

    @property
    def trouble(self) -> tuple[str, ...]:
        """Warnings and errors, oldest first."""
        return tuple(self._trouble)

    def forget_trouble(self) -> None:
        """Before a call whose failure is explained by what it logs."""
        self._trouble.clear()


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


def _loadable(found: RuntimeSearch) -> RuntimeSearch:
    """Without the changed runtime where the system's loader refuses it: nothing else may fail because of that."""
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


_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator"}  # enum ggml_backend_dev_type


@dataclass(frozen=True, slots=True)
class Device:
    """One device, for `doctor`."""

    name: str
    kind: str
    """`cpu`, `gpu`, `igpu` (shares the machine's memory), `accelerator` (such as BLAS) or `other`."""
    memory_free: int
    """Bytes; 0 where the driver does not say."""
    memory_total: int
    """Bytes; 0 where the driver does not say."""


def devices() -> tuple[Device, ...]:
    """All devices, in llama.cpp's order.

    Raises:
        BackendError: llama-cpp-python cannot be loaded.
    """
    ggml = library().ggml
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    for function, result in ((ggml.ggml_backend_dev_description, ctypes.c_char_p), (ggml.ggml_backend_dev_type, int)):
        function.argtypes = [ctypes.c_void_p]
        function.restype = ctypes.c_int if result is int else result
    size_pointer = ctypes.POINTER(ctypes.c_size_t)
    ggml.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, size_pointer, size_pointer]
    ggml.ggml_backend_dev_memory.restype = None
    found = []
    for index in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(index)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        name = (ggml.ggml_backend_dev_description(device) or b"").decode("utf-8", "replace").strip()
        kind = _KINDS.get(ggml.ggml_backend_dev_type(device), "other")
        found.append(Device(name, kind, free.value, total.value))
    return tuple(found)


def gpus() -> tuple[Device, ...]:
    """Those that llama.cpp puts layers on: all cards, and only without any what shares the machine's memory."""
    found = devices()
    cards = tuple(device for device in found if device.kind == "gpu")
    return cards or tuple(device for device in found if device.kind == "igpu")


def has_gpu() -> bool:
    """Whether layers can be offloaded."""
    if not library().api.llama_supports_gpu_offload():
        return False
    return bool(gpus())
