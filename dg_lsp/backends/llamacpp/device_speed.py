"""How fast a device reads weights and computes with them, measured by llama.cpp's own matrix product.

Run as a program it prints the devices as JSON: a driver may end the process that loads it.
No GPU has run this module: it is tested on ggml's CPU device.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from dg_lsp.backends.llamacpp.device_graph import GPU_KINDS, DeviceGraph, GraphDevice, functions
from dg_lsp.backends.llamacpp.library import devices, ggml_functions
from dg_lsp.backends.threads import physical_cores
from dg_lsp.errors import BackendError
from dg_lsp.gguf import TENSOR_TYPES

_Q8_0 = next(kind for kind in TENSOR_TYPES.values() if kind.name == "Q8_0")
_WIDTH = 4096
_BYTES = 256 << 20
"""Of weights: more than the caches of most processors."""
_RUNS = {1: 16, 64: 3}
"""Runs by number of tokens: one, and those of a part of a prompt. The short ones need more to find an idle machine."""
_HANDLE = ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Rates of a matrix product of 8-bit weights, with all cores."""

    bytes_per_second: float  # weights that are read for one token
    operations_per_second: float  # multiplications and additions with many tokens at once


def measure(kinds: tuple[str, ...], clock: Callable[[], float] = time.perf_counter) -> DeviceSpeed | None:
    """The speed of the first device of these kinds; None without one.

    Raises:
        BackendError: the device lacks memory or the operation.
    """
    device = GraphDevice.open(kinds)
    if device is None:
        return None
    with closing(device):
        _use_all_cores(device)
        rows = _BYTES // _Q8_0.row_bytes(_WIDTH)
        seconds = {num_tokens: _best_seconds(device, rows, num_tokens, clock) for num_tokens in _RUNS}
    many = max(_RUNS)
    return DeviceSpeed(rows * _Q8_0.row_bytes(_WIDTH) / seconds[1], 2 * _WIDTH * rows * many / seconds[many])


def _use_all_cores(device: GraphDevice) -> None:
    """A CPU device of ggml begins with four threads. Other devices have no such function."""
    ggml = ggml_functions(
        backend_dev_backend_reg=(_HANDLE, _HANDLE),
        backend_reg_get_proc_address=(_HANDLE, _HANDLE, ctypes.c_char_p),
    )
    name = b"ggml_backend_set_n_threads"
    if address := ggml.backend_reg_get_proc_address(ggml.backend_dev_backend_reg(device.native), name):
        ctypes.CFUNCTYPE(None, _HANDLE, ctypes.c_int)(address)(device.backend, physical_cores())


def _best_seconds(device: GraphDevice, rows: int, num_tokens: int, clock: Callable[[], float]) -> float:
    """The best run: other programs only delay."""
    weights: list[int] = []

    def declare(graph: DeviceGraph) -> None:
        weights.append(graph.tensor(rows, _WIDTH, _Q8_0))
        graph.apply("mul_mat", weights[0], graph.input(num_tokens, _WIDTH))

    times = []
    with closing(DeviceGraph(device, declare)) as graph:
        # pages that were never written share one page of zeros, which stays in the cache
        content = np.ones(rows * _Q8_0.row_bytes(_WIDTH), dtype=np.uint8)
        functions().backend_tensor_set(weights[0], content.ctypes.data, 0, content.nbytes)
        compute = partial(graph.compute, np.ones((num_tokens, _WIDTH), dtype=np.float32))
        for _ in range(_RUNS[num_tokens]):
            start = clock()
            compute()
            times.append(clock() - start)
    return min(times)


def main() -> None:
    """With the argument `speed` it also measures."""
    answer: dict[str, object] = {"devices": [asdict(device) for device in devices()]}
    if "speed" in sys.argv:
        for name, kinds in {"cpu": ("cpu",), "gpu": GPU_KINDS}.items():
            speed = measure(kinds)
            answer[name] = asdict(speed) if speed else None
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    try:
        main()
    except BackendError as error:
        sys.exit(str(error))
