"""Tensors on a device of llama.cpp, and by their product how fast it reads weights and computes with them.

Run as a program it prints the devices as JSON: a driver may end the process that loads it.
No GPU has run this module: it is tested on ggml's CPU device.
"""

import ctypes
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.library import Device, devices, ggml_functions, gpus
from dg_lsp.backends.threads import physical_cores
from dg_lsp.errors import BackendError
from dg_lsp.gguf import F32, TENSOR_TYPES, TensorType

_FOR_WEIGHTS = 1  # GGML_BACKEND_BUFFER_USAGE_WEIGHTS: operations go to the tensors, not the tensors to the operations
_GRAPH_NODES = 32
_CONTEXT_BYTES = 1 << 16
"""Of descriptions of tensors and of a graph, whose memory is the device's."""
_HANDLE, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


class _InitParams(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _HANDLE), ("no_alloc", ctypes.c_bool))


@functools.cache
def functions() -> Any:
    """ggml's functions with their types."""
    return ggml_functions(
        init=(_HANDLE, _InitParams),
        new_graph_custom=(_HANDLE, _HANDLE, _SIZE, ctypes.c_bool),
        build_forward_expand=(None, _HANDLE, _HANDLE),
        new_tensor_2d=(_HANDLE, _HANDLE, ctypes.c_int, _NUMBER, _NUMBER),
        backend_dev_init=(_HANDLE, _HANDLE, ctypes.c_char_p),
        backend_dev_supports_op=(ctypes.c_bool, _HANDLE, _HANDLE),
        backend_alloc_ctx_tensors=(_HANDLE, _HANDLE, _HANDLE),
        backend_graph_compute=(ctypes.c_int, _HANDLE, _HANDLE),
        mul_mat=(_HANDLE, _HANDLE, _HANDLE, _HANDLE),
        backend_tensor_set=(None, _HANDLE, _HANDLE, _SIZE, _SIZE),
        **dict.fromkeys(("free", "backend_buffer_free", "backend_free"), (None, _HANDLE)),
        backend_buffer_set_usage=(None, _HANDLE, ctypes.c_int),
    )


class DeviceTensors:
    """Tensors in the memory of a device, and for a measurement their product. One thread only."""

    def __init__(
        self, device: Device, shapes: Sequence[tuple[int, int, TensorType]], *, has_product: bool = False
    ) -> None:
        """Allocates tensors of so many rows, and of a width and number format; the product is that of two tensors.

        Raises:
            BackendError: the driver fails, or the device lacks memory or the operation.
        """
        ggml = functions()
        self._ggml = ggml
        self._buffer: Any = None
        self._context: Any = ggml.init(_InitParams(_CONTEXT_BYTES, None, True))
        self.backend = ggml.backend_dev_init(device.native, None)
        """ggml's handle of the device."""
        self.tensors = [ggml.new_tensor_2d(self._context, kind.number, width, rows) for rows, width, kind in shapes]
        is_supported = True
        if has_product:
            product = ggml.mul_mat(self._context, *self.tensors)
            self._graph = ggml.new_graph_custom(self._context, _GRAPH_NODES, False)
            ggml.build_forward_expand(self._graph, product)
            # an unsupported operation would end the process
            is_supported = ggml.backend_dev_supports_op(device.native, product)
        if self.backend and is_supported:
            self._buffer = ggml.backend_alloc_ctx_tensors(self._context, self.backend)
        if not self._buffer:
            self.close()
            raise BackendError(f"{device.name} {'has no memory' if is_supported else 'lacks an operation'}")
        # graphs that read the tensors compute with them on this device
        ggml.backend_buffer_set_usage(self._buffer, _FOR_WEIGHTS)

    def put(self, tensor: Any, values: npt.NDArray[Any]) -> None:
        """Copies numbers to the start of a tensor."""
        content = np.ascontiguousarray(values)  # in a variable: the address of a temporary would dangle
        self._ggml.backend_tensor_set(tensor, content.ctypes.data, 0, content.nbytes)

    def compute(self) -> None:
        """Computes the product."""
        if status := self._ggml.backend_graph_compute(self.backend, self._graph):
            raise BackendError(f"llama.cpp: the device failed ({status})")

    def close(self) -> None:
        """Frees the memory. Idempotent."""
        if self._context is None:
            return
        if self._buffer:
            self._ggml.backend_buffer_free(self._buffer)
        self._ggml.free(self._context)
        if self.backend:
            self._ggml.backend_free(self.backend)
        self._context = None


_Q8_0 = next(kind for kind in TENSOR_TYPES.values() if kind.name == "Q8_0")
_WIDTH = 4096
_BYTES = 256 << 20
"""Of weights: more than the caches of most processors."""
_RUNS = {1: 16, 64: 3}
"""Runs by number of tokens: one, and those of a part of a prompt. The short ones need more to find an idle machine."""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Rates of a matrix product of 8-bit weights, with all cores."""

    bytes_per_second: float  # weights that are read for one token
    operations_per_second: float  # multiplications and additions with many tokens at once


def measure(device: Device, clock: Callable[[], float] = time.perf_counter) -> DeviceSpeed:
    """Raises `BackendError` if the device lacks memory or the operation."""
    rows = _BYTES // _Q8_0.row_bytes(_WIDTH)
    seconds = {num_tokens: _best_seconds(device, rows, num_tokens, clock) for num_tokens in _RUNS}
    many = max(_RUNS)
    return DeviceSpeed(rows * _Q8_0.row_bytes(_WIDTH) / seconds[1], 2 * _WIDTH * rows * many / seconds[many])


def _best_seconds(device: Device, rows: int, num_tokens: int, clock: Callable[[], float]) -> float:
    """The best run: other programs only delay."""
    times = []
    shapes = [(rows, _WIDTH, _Q8_0), (num_tokens, _WIDTH, F32)]
    with closing(DeviceTensors(device, shapes, has_product=True)) as product:
        _use_all_cores(device, product.backend)
        weights, vectors = product.tensors
        # pages that were never written share one page of zeros, which stays in the cache
        product.put(weights, np.ones(rows * _Q8_0.row_bytes(_WIDTH), dtype=np.uint8))
        product.put(vectors, np.ones((num_tokens, _WIDTH), dtype=np.float32))
        for _ in range(_RUNS[num_tokens]):
            start = clock()
            product.compute()
            times.append(clock() - start)
    return min(times)


def _use_all_cores(device: Device, backend: Any) -> None:
    """A CPU device of ggml begins with four threads. Other devices have no such function."""
    ggml = ggml_functions(
        backend_dev_backend_reg=(_HANDLE, _HANDLE),
        backend_reg_get_proc_address=(_HANDLE, _HANDLE, ctypes.c_char_p),
    )
    name = b"ggml_backend_set_n_threads"
    if address := ggml.backend_reg_get_proc_address(ggml.backend_dev_backend_reg(device.native), name):
        ctypes.CFUNCTYPE(None, _HANDLE, ctypes.c_int)(address)(backend, physical_cores())


def main() -> None:
    """With the argument `speed` it also measures."""
    answer: dict[str, object] = {"devices": [asdict(device) for device in devices()]}
    if "speed" in sys.argv:
        processors = [device for device in devices() if device.kind == "cpu"]
        for name, listed in {"cpu": processors, "gpu": gpus()}.items():
            answer[name] = None
            with suppress(BackendError):  # other programs use the memory of the GPU: its speed is estimated
                answer[name] = asdict(measure(listed[0])) if listed else None
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    try:
        main()
    except BackendError as error:
        sys.exit(str(error))
