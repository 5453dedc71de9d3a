"""Small ggml graphs on a device of llama.cpp, and by one of them how fast it reads weights and computes with them.

Run as a program it prints the devices as JSON: a driver may end the process that loads it.
No GPU has run this module: it is tested on ggml's CPU device.
"""

import ctypes
import functools
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.library import Device, devices, ggml_functions, gpus
from dg_lsp.backends.threads import physical_cores
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import BackendError
from dg_lsp.gguf import F32, TENSOR_TYPES, TensorType

_FOR_WEIGHTS = 1  # GGML_BACKEND_BUFFER_USAGE_WEIGHTS: operations go to the tensors, not the tensors to the operations
_GRAPH_NODES = 32
_HANDLE, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


class _InitParams(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _HANDLE), ("no_alloc", ctypes.c_bool))


@functools.cache
def functions() -> Any:
    """ggml's functions with their types."""
    return ggml_functions(
        init=(_HANDLE, _InitParams),
        tensor_overhead=(_SIZE,),
        graph_overhead_custom=(_SIZE, _SIZE, ctypes.c_bool),
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


@dataclass(frozen=True, slots=True, eq=False)
class GraphDevice:
    """A device of ggml that is ready to compute."""

    native: Any
    backend: Any
    memory_free: int  # bytes, before anything is allocated

    @classmethod
    def open(cls, device: Device) -> "GraphDevice":
        """Raises `BackendError` if the driver fails."""
        backend = functions().backend_dev_init(device.native, None)
        if not backend:
            raise BackendError(f"{device.name} cannot be opened")
        return cls(device.native, backend, device.memory_free)

    def close(self) -> None:
        """Called after its graphs are closed."""
        functions().backend_free(self.backend)


class DeviceGraph:
    """Tensors on a device, and a computation over them. One thread only. Shapes are numpy's: (rows, width)."""

    def __init__(self, device: GraphDevice, build: Callable[["DeviceGraph"], object]) -> None:
        """Allocates all tensors that `build` declares; its last operation is the result. Raises `BackendError`."""
        ggml = functions()
        self._ggml = ggml
        self._device = device
        self._inputs: list[Any] = []
        self._operations: list[Any] = []
        size = _GRAPH_NODES * ggml.tensor_overhead() + ggml.graph_overhead_custom(_GRAPH_NODES, False) + 1024
        self._context: Any = ggml.init(_InitParams(size, None, True))
        build(self)
        if self._operations:
            self._graph = ggml.new_graph_custom(self._context, _GRAPH_NODES, False)
            ggml.build_forward_expand(self._graph, self._operations[-1])
        # an unsupported operation would end the process
        is_supported = all(ggml.backend_dev_supports_op(device.native, operation) for operation in self._operations)
        self._buffer = is_supported and ggml.backend_alloc_ctx_tensors(self._context, device.backend)
        if not self._buffer:
            self.close()
            problem = "has no memory" if is_supported else "lacks an operation"
            raise BackendError(f"the device {problem} for self-conditioning")

    def tensor(self, rows: int, width: int, kind: TensorType = F32) -> Any:
        """Declares a tensor."""
        return self._ggml.new_tensor_2d(self._context, kind.number, width, rows)

    def input(self, rows: int, width: int) -> Any:
        """Declares a tensor that `compute` fills."""
        self._inputs.append(self.tensor(rows, width))
        return self._inputs[-1]

    def apply(self, name: str, *arguments: Any) -> Any:
        """Declares an operation of ggml. Returns its result."""
        self._operations.append(getattr(self._ggml, name)(self._context, *arguments))
        return self._operations[-1]

    def keep_in_place(self) -> None:
        """Other graphs that read the tensors compute with them on this device."""
        self._ggml.backend_buffer_set_usage(self._buffer, _FOR_WEIGHTS)

    def put(self, tensor: Any, values: npt.NDArray[Any]) -> None:
        """Copies numbers to the start of a tensor."""
        content = np.ascontiguousarray(values)  # in a variable: the address of a temporary would dangle
        self._ggml.backend_tensor_set(tensor, content.ctypes.data, 0, content.nbytes)

    def compute(self, *values: Floats) -> None:
        """Computes the result from the values of all inputs."""
        for tensor, content in zip(self._inputs, values, strict=True):
            self.put(tensor, content)
        if status := self._ggml.backend_graph_compute(self._device.backend, self._graph):
            raise BackendError(f"llama.cpp: self-conditioning failed on the device ({status}); try gpu_layers = 0")

    def close(self) -> None:
        """Called once, before the device is closed."""
        if self._buffer:
            self._ggml.backend_buffer_free(self._buffer)
        self._ggml.free(self._context)


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
    with closing(GraphDevice.open(device)) as opened:
        _use_all_cores(opened)
        rows = _BYTES // _Q8_0.row_bytes(_WIDTH)
        seconds = {num_tokens: _best_seconds(opened, rows, num_tokens, clock) for num_tokens in _RUNS}
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
