"""The native library of llama.cpp: loads it once per process, lists its devices, and maps its failures to errors.

`python -m dg_lsp.backends.llamacpp.library` exits with 0 if it runs DiffusionGemma, and with 10 if it does not.
"""

import ctypes
import functools
import itertools
import os
import re
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dg_lsp.backends.threads import set_wait_policy
from dg_lsp.errors import BackendError, ModelError, ModelMemoryError, ModelUnsupportedError
from dg_lsp.runtime import COMMAND, LLAMA_CPP_VARIABLE, PACKAGE, RUNTIME_VARIABLE, STOCK, Runtime, find_runtime

MAX_PROBLEMS = 50
_WARN, _ERROR = 3, 4  # enum ggml_log_level

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
    search = find_runtime()
    if search.runtime:
        os.environ[LLAMA_CPP_VARIABLE] = str(search.runtime.folder)
    try:
        from llama_cpp import llama_cpp as api
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        advice = f"run {COMMAND} again" if search.runtime else f"reinstall {PACKAGE}"
        raise BackendError(f"llama.cpp cannot be loaded ({_one_line(str(error))}); {advice}") from error
    finally:
        if search.runtime:  # child processes must not inherit it
            del os.environ[LLAMA_CPP_VARIABLE]
    problems: deque[str] = deque(maxlen=MAX_PROBLEMS)

    @api.llama_log_callback
    def write(level: int, text: bytes, _user_data: object) -> None:
        if level in (_WARN, _ERROR):
            problems.append(text.decode("utf-8", "replace").rstrip("\n"))

    api.llama_log_set(write, None)
    api.llama_backend_init()
    return Library(api, search.runtime, search.note, problems, write)


_REDUCTION_VERSION = 3  # of `models/gemma4_reduction.h`


@functools.cache
def reduction_functions() -> Any:
    """The functions of `models/gemma4_reduction.h`; None if the loaded llama.cpp has none, or those of another version.

    The same build has DiffusionGemma's attention, which the stock llama.cpp computes wrongly.
    """
    native = library().api._lib  # noqa: SLF001
    if not hasattr(native, "dg_reduction_version") or native.dg_reduction_version() != _REDUCTION_VERSION:
        return None
    number, pointer = ctypes.c_int, ctypes.c_void_p
    native.dg_reduction_set.argtypes = [
        *(number, number, pointer, ctypes.c_float),
        *(pointer, number, pointer, number, pointer, pointer, pointer),
    ]
    native.dg_reduction_set.restype = None
    native.dg_reduction_read.argtypes = [pointer, number, pointer, number, number, number]
    return native


def runs_diffusiongemma() -> bool:
    """Whether the loaded llama.cpp computes DiffusionGemma's attention and reduces its logits."""
    return reduction_functions() is not None


def require_runtime(path: Path) -> None:
    """Raises `ModelError` if this llama.cpp would compute the DiffusionGemma in `path` wrongly."""
    if runs_diffusiongemma():
        return
    note = f" ({library().note})" if library().note else ""
    problem = f"is a DiffusionGemma, and llama.cpp as installed computes it wrongly{note}"
    raise ModelError(f"{path} {problem}; run: {COMMAND}")


def ggml_functions(**signatures: tuple[Any, ...]) -> Any:
    """Functions of the loaded library's ggml, by name without `ggml_`: result type, then types of the arguments.

    `llama_cpp._ggml` loads another copy, without the devices of a changed runtime. Raises `BackendError` if one lacks.
    """
    api = library().api
    functions = SimpleNamespace()
    # elsewhere than on Windows, the handle also finds the symbols of its dependencies
    names = ("ggml-base", "ggml") if os.name == "nt" else ()
    libraries = [ctypes.CDLL(str(Path(api._base_path) / f"{name}.dll")) for name in names] or [api._lib]  # noqa: SLF001
    for name, (result, *arguments) in signatures.items():
        candidates = (getattr(loaded, f"ggml_{name}", None) for loaded in libraries)
        function = next(filter(None, candidates), None)
        if function is None:
            raise BackendError(f"this llama.cpp lacks ggml_{name}; update llama-cpp-python")
        function.restype = result
        function.argtypes = arguments
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
    number: int = field(default=0, compare=False)  # among all devices

    @property
    def native(self) -> Any:
        """ggml's handle."""
        return ggml_functions(backend_dev_get=(ctypes.c_void_p, ctypes.c_size_t)).backend_dev_get(self.number)


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
    for number in range(ggml.backend_dev_count()):
        device = ggml.backend_dev_get(number)
        free, total = size(), size()
        ggml.backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        name = (ggml.backend_dev_description(device) or b"").decode("utf-8", "replace").strip()
        kind = _KINDS.get(ggml.backend_dev_type(device), "other")
        listed.append(Device(name, kind, free.value, total.value, number))
    return tuple(listed)


def gpus() -> tuple[Device, ...]:
    """The devices that llama.cpp puts layers on: all cards, or without cards those that share the machine's memory."""
    listed = devices()
    by_kind = {kind: tuple(device for device in listed if device.kind == kind) for kind in ("gpu", "igpu")}
    return by_kind["gpu"] or by_kind["igpu"]


def has_gpu() -> bool:
    """Whether layers can be put on a GPU."""
    return bool(library().api.llama_supports_gpu_offload() and gpus())


def repack_buffer_type() -> int | None:
    """ggml's handle of the memory in which the processor packs matrices; None if this llama.cpp has none."""
    handle = ctypes.c_void_p
    ggml = ggml_functions(
        backend_dev_by_type=(handle, ctypes.c_int),
        backend_dev_backend_reg=(handle, handle),
        backend_reg_get_proc_address=(handle, handle, ctypes.c_char_p),
        backend_buft_name=(ctypes.c_char_p, handle),
    )
    processor = ggml.backend_dev_by_type(0)
    registry = ggml.backend_dev_backend_reg(processor)
    list_types = ctypes.CFUNCTYPE(ctypes.POINTER(handle), handle)(
        ggml.backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    )
    types = itertools.takewhile(bool, list_types(processor))  # ends with a null pointer
    return next((kind for kind in types if ggml.backend_buft_name(kind) == b"CPU_REPACK"), None)


DECODE_STATUS: dict[int, str] = {
    1: "the KV cache is full; use fewer slots or raise context_length",
    -2: "there was no memory for the computation; use a smaller model or a smaller context_length",
    -3: "the computation failed; try gpu_layers = 0, and see `dg-lsp doctor`",
}
"""Return values of `llama_decode` other than 0."""

_UNSUPPORTED = re.compile("unknown model architecture|unknown (pre-)?tokenizer|CLIP cannot be used")
_NO_MEMORY = re.compile("to allocate|out of memory|bad_alloc")
"""What llama.cpp logs when it cannot load a file. Anything else is a broken file."""


def load_error(path: Path, log: Iterable[str]) -> ModelError:
    """`llama_model_load_from_file` returned null after it logged these lines."""
    lines = tuple(log)
    if unsupported := next(filter(_UNSUPPORTED.search, lines), None):
        problem = f"is not supported by this llama.cpp: {_one_line(unsupported)}"
        advice = f"convert it or its checkpoint with dg-lsp models convert, update {PACKAGE}, or use another model"
        return ModelUnsupportedError(f"{path} {problem}; {advice}")
    if any(map(_NO_MEMORY.search, lines)):
        return ModelMemoryError(f"{path} does not fit into memory; use a smaller model or set gpu_layers lower")
    reason = next((line for line in lines if "error" in line), lines[0] if lines else "")  # warnings come before it
    logged = f": {_one_line(reason)}" if reason else ""
    return ModelError(f"{path} cannot be loaded{logged}; download or export it again")


def context_error(log: Iterable[str]) -> ModelError:
    """`llama_init_from_model` returned null after it logged these lines."""
    lines = tuple(log)
    if not lines or any("alloc" in line or "memory" in line for line in lines):
        return ModelMemoryError("the KV cache does not fit into memory; set context_length or num_slots lower")
    return ModelUnsupportedError(f"the model cannot be run: {_one_line(lines[-1])}; use another model")


def decode_error(status: int) -> BackendError:
    """`llama_decode` did not return 0."""
    return BackendError(f"llama.cpp: {DECODE_STATUS.get(status, f'decode returned {status}; see `dg-lsp doctor`')}")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def main() -> None:
    """Exits with the answer, or with a message if the environment names a runtime that cannot be loaded."""
    if os.environ.get(RUNTIME_VARIABLE, STOCK) != STOCK and library().runtime is None:
        sys.exit(library().note)
    sys.exit(0 if runs_diffusiongemma() else 10)


if __name__ == "__main__":
    main()
