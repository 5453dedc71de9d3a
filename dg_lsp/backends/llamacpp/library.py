"""The native library of llama.cpp: loads it once per process, and lists its devices."""

import ctypes
import functools
import os
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dg_lsp.backends.llamacpp.errors import library_error
from dg_lsp.backends.threads import set_wait_policy
from dg_lsp.errors import BackendError
from dg_lsp.runtime import COMMAND, Runtime, RuntimeSearch, find_runtime

MAX_PROBLEMS = 50
_WARN, _ERROR = 3, 4  # enum ggml_log_level

_FOLDER_VARIABLE = "LLAMA_CPP_LIB_PATH"
NO_BACKTRACE = {"GGML_NO_BACKTRACE": "1"}
"""Without it, llama.cpp attaches a debugger when it aborts, which prints arguments of functions: the user's text."""


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded llama.cpp."""

    api: Any  # the module `llama_cpp.llama_cpp`: untyped ctypes functions
    runtime: Runtime | None  # the changed llama.cpp; None if the one of llama-cpp-python is loaded
    note: str  # why a changed llama.cpp is not loaded
    problems: deque[str]
    """The last warnings and errors that llama.cpp logged; cleared before a call whose failure they explain."""
    log_callback: Any
    """Keeps the C callback alive. It prints nothing."""


@functools.cache
def library() -> Library:
    """The library; the first call loads it, or raises `BackendError`."""
    set_wait_policy(os.environ)
    os.environ.update(NO_BACKTRACE)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # GPUs have the numbers of nvidia-smi
    search = _loadable(find_runtime())
    if search.runtime:
        os.environ[_FOLDER_VARIABLE] = str(search.runtime.folder)
    try:
        from llama_cpp import llama_cpp as api
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise library_error(error) from error
    finally:
        if search.runtime:  # child processes must not inherit it
            del os.environ[_FOLDER_VARIABLE]
    problems: deque[str] = deque(maxlen=MAX_PROBLEMS)

    @api.llama_log_callback
    def write(level: int, text: bytes, _user_data: object) -> None:
        if level in (_WARN, _ERROR):
            problems.append(text.decode("utf-8", "replace").rstrip("\n"))

    api.llama_log_set(write, None)
    api.llama_backend_init()
    return Library(api, search.runtime, search.note, problems, write)


def _loadable(search: RuntimeSearch) -> RuntimeSearch:
    """Drops a changed runtime that cannot be loaded: the installed library still serves all other models."""
    if search.runtime is None:
        return search
    if "llama_cpp.llama_cpp" in sys.modules:
        return RuntimeSearch(None, "llama_cpp was imported before dg-lsp")
    try:
        ctypes.CDLL(str(search.runtime.library))
    except OSError as error:
        return RuntimeSearch(None, f"{' '.join(str(error).split())}; run {COMMAND} again")
    return search


def ggml_functions(**signatures: tuple[Any, ...]) -> Any:
    """Functions of the loaded library's ggml, by name without `ggml_`: result type, then types of the arguments.

    `llama_cpp._ggml` loads another copy, without the devices of a changed runtime. Raises `BackendError` if one lacks.
    """
    api, functions = library().api, SimpleNamespace()
    # elsewhere than on Windows, the handle also finds the symbols of its dependencies
    names = ("ggml-base", "ggml") if os.name == "nt" else ()
    libraries = [ctypes.CDLL(str(Path(api._base_path) / f"{name}.dll")) for name in names] or [api._lib]  # noqa: SLF001
    for name, (result, *arguments) in signatures.items():
        candidates = (getattr(loaded, f"ggml_{name}", None) for loaded in libraries)
        function = next(filter(None, candidates), None)
        if function is None:
            raise BackendError(f"this llama.cpp lacks ggml_{name}; update llama-cpp-python")
        function.restype, function.argtypes = result, arguments
        setattr(functions, name, function)
    return functions


_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator"}  # enum ggml_backend_dev_type


@dataclass(frozen=True, slots=True)
class Device:
    """A device of llama.cpp."""

    name: str
    kind: str  # `cpu`, `gpu`, `igpu` (shares the machine's memory), `accelerator` (such as BLAS) or `other`
    memory_free: int  # bytes; 0 if the driver does not report it
    memory_total: int  # bytes; 0 if the driver does not report it


def devices() -> tuple[Device, ...]:
    """All devices, in llama.cpp's order."""
    size, handle = ctypes.c_size_t, ctypes.c_void_p
    ggml = ggml_functions(
        backend_dev_count=(size,),
        backend_dev_get=(handle, size),
        backend_dev_description=(ctypes.c_char_p, handle),
        backend_dev_type=(ctypes.c_int, handle),
        backend_dev_memory=(None, handle, ctypes.POINTER(size), ctypes.POINTER(size)),
    )
    listed = []
    for device in map(ggml.backend_dev_get, range(ggml.backend_dev_count())):
        free, total = size(), size()
        ggml.backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        name = (ggml.backend_dev_description(device) or b"").decode("utf-8", "replace").strip()
        kind = _KINDS.get(ggml.backend_dev_type(device), "other")
        listed.append(Device(name, kind, free.value, total.value))
    return tuple(listed)


def gpus() -> tuple[Device, ...]:
    """The devices that llama.cpp puts layers on: all cards, or without cards those that share the machine's memory."""
    listed = devices()
    by_kind = {kind: tuple(device for device in listed if device.kind == kind) for kind in ("gpu", "igpu")}
    return by_kind["gpu"] or by_kind["igpu"]


def has_gpu() -> bool:
    """Whether layers can be put on a GPU."""
    return bool(library().api.llama_supports_gpu_offload() and gpus())
