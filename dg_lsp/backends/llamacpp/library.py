"""The native library of llama.cpp: loads it once per process, lists its devices, chooses the threads of a step."""

import ctypes
import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dg_lsp.backends.llamacpp.errors import library_error
from dg_lsp.errors import BackendError
from dg_lsp.runtime import COMMAND, Runtime, RuntimeSearch, find_runtime

MAX_PROBLEMS = 50
_WARN, _ERROR = 3, 4  # enum ggml_log_level

# Threads of OpenMP spin at each of a graph's hundreds of barriers by default. When another program needs a core, a
# spinning thread takes it from the thread that the barrier waits for: with two threads, steps of 5 ms took 15 to
# 1600 ms. Sleeping costs up to 50 % on an idle machine; the thread measurement at load includes this cost.
_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
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


def set_wait_policy(environment: MutableMapping[str, str]) -> None:
    """Makes OpenMP threads sleep while they wait, unless the user chose otherwise. OpenMP reads it when it loads."""
    if not any(name in environment for name in _WAIT_VARIABLES):
        environment[_WAIT_VARIABLES[0]] = "passive"


@functools.cache
def library() -> Library:
    """The library; the first call loads it, or raises `BackendError`."""
    set_wait_policy(os.environ)
    os.environ.update(NO_BACKTRACE)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # GPUs have the numbers of nvidia-smi
    found = _loadable(find_runtime())
    if found.runtime:
        os.environ[_FOLDER_VARIABLE] = str(found.runtime.folder)
    try:
        from llama_cpp import llama_cpp as api
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise library_error(error) from error
    finally:
        if found.runtime:  # child processes must not inherit it
            del os.environ[_FOLDER_VARIABLE]
    problems: deque[str] = deque(maxlen=MAX_PROBLEMS)

    @api.llama_log_callback
    def write(level: int, text: bytes, _user_data: object) -> None:
        if level in (_WARN, _ERROR):
            problems.append(text.decode("utf-8", "replace").rstrip("\n"))

    api.llama_log_set(write, None)
    api.llama_backend_init()
    return Library(api, found.runtime, found.note, problems, write)


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


def ggml_functions(**signatures: tuple[Any, ...]) -> Any:
    """Functions of the loaded library's ggml, by name without `ggml_`: result type, then types of the arguments.

    `llama_cpp._ggml` loads another copy, without the devices of a changed runtime. Raises `BackendError` if one lacks.
    """
    api, found = library().api, SimpleNamespace()
    # elsewhere than on Windows, the handle also finds the symbols of its dependencies
    names = ("ggml-base", "ggml") if os.name == "nt" else ()
    libraries = [ctypes.CDLL(str(Path(api._base_path) / f"{name}.dll")) for name in names] or [api._lib]  # noqa: SLF001
    for name, (result, *arguments) in signatures.items():
        function = next((getattr(each, f"ggml_{name}") for each in libraries if hasattr(each, f"ggml_{name}")), None)
        if function is None:
            raise BackendError(f"this llama.cpp lacks ggml_{name}; update llama-cpp-python")
        function.restype, function.argtypes = result, arguments
        setattr(found, name, function)
    return found


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
    found = []
    for device in map(ggml.backend_dev_get, range(ggml.backend_dev_count())):
        free, total = size(), size()
        ggml.backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        name = (ggml.backend_dev_description(device) or b"").decode("utf-8", "replace").strip()
        kind = _KINDS.get(ggml.backend_dev_type(device), "other")
        found.append(Device(name, kind, free.value, total.value))
    return tuple(found)


def gpus() -> tuple[Device, ...]:
    """The devices that llama.cpp puts layers on: all cards, or without cards those that share the machine's memory."""
    found = devices()
    by_kind = {kind: tuple(device for device in found if device.kind == kind) for kind in ("gpu", "igpu")}
    return by_kind["gpu"] or by_kind["igpu"]


def has_gpu() -> bool:
    """Whether layers can be put on a GPU."""
    return bool(library().api.llama_supports_gpu_offload() and gpus())


_TIE = 1.05
"""More threads must be faster by more than this factor."""
_MIN_ROUNDS, _MAX_ROUNDS = 2, 12
_RUNS = 3
"""Runs of a candidate in a row; the first of them also starts or stops threads."""
_HOPELESS = 3
"""A candidate whose best run takes this many times the best run of all is dropped: stalls make trying it slow."""


def choose_threads(
    step: Callable[[int], None],
    candidates: Sequence[int],
    *,
    budget_seconds: float = 0.2,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Measures steps and returns the fastest candidate; `step(n)` runs one step with n threads.

    Candidates take turns, so that other load on the machine affects all of them. The slowest runs of each candidate
    do not count.
    """
    runs: dict[int, list[float]] = {threads: [] for threads in candidates}
    remaining, start = list(candidates), clock()
    for number in range(_MAX_ROUNDS):
        if len(remaining) == 1 or (number >= _MIN_ROUNDS and clock() - start > budget_seconds):
            break
        for threads in (each for each in remaining for _ in range(_RUNS)):
            before = clock()
            step(threads)
            runs[threads].append(clock() - before)
        limit = _HOPELESS * min(map(min, runs.values()))
        remaining = [threads for threads in remaining if min(runs[threads]) <= limit]
    # a third of the runs start or stop threads; without the slowest third, a single stall does not count either
    fast = {threads: sorted(times)[: -max(1, len(times) // _RUNS)] for threads, times in runs.items()}
    means = {threads: sum(times) / max(1, len(times)) for threads, times in fast.items()}
    fastest = min(means.values())
    return min(threads for threads, mean in means.items() if mean <= _TIE * fastest)


def threads_for(wanted: int, step: Callable[[int], None], *, on_gpu: bool) -> int:
    """The setting's number of threads; for 0 a few on a GPU, and the measured best on a CPU."""
    cores = physical_cores()
    if wanted:
        return min(wanted, 2 * cores)  # ggml aborts the process beyond a few hundred
    return min(cores, 4) if on_gpu else choose_threads(step, thread_candidates(cores))


def thread_candidates(num_cores: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the number of cores."""
    powers = {1 << bit for bit in range(num_cores.bit_length()) if 1 << bit <= num_cores}
    return tuple(sorted(powers | {num_cores}))


def physical_cores(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Cores that this process may use; hardware threads of a core count once where the system reports them."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = set()
    for cpu in allowed:
        try:
            cores.add((root / f"cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))
