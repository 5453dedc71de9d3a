"""Small computations of our own on one of ggml's devices: tensors that live there, and fixed graphs over them.

The library is the one that llama.cpp uses, so it knows the same devices. Nothing here is needed on a CPU, where numpy
does as well; it is what a GPU's own memory makes fast.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.library import library
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import BackendError

F32, F16 = 0, 1
"""`enum ggml_type`."""
GPU_KINDS = (1, 2)
"""`enum ggml_backend_dev_type` of GPUs and of those that share the machine's memory."""
_FLOAT_PRECISION = 10  # GGML_PREC_F32
_GRAPH_NODES = 32

_HANDLE, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


class _InitParams(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _HANDLE), ("no_alloc", ctypes.c_bool))


_SIGNATURES: tuple[tuple[str, Any, list[Any]], ...] = (
    ("ggml_init", _HANDLE, [_InitParams]),
    ("ggml_free", None, [_HANDLE]),
    ("ggml_tensor_overhead", _SIZE, []),
    ("ggml_graph_overhead_custom", _SIZE, [_SIZE, ctypes.c_bool]),
    ("ggml_new_graph_custom", _HANDLE, [_HANDLE, _SIZE, ctypes.c_bool]),
    ("ggml_build_forward_expand", None, [_HANDLE, _HANDLE]),
    ("ggml_new_tensor_2d", _HANDLE, [_HANDLE, ctypes.c_int, _NUMBER, _NUMBER]),
    ("ggml_view_2d", _HANDLE, [_HANDLE, _HANDLE, _NUMBER, _NUMBER, _SIZE, _SIZE]),
    ("ggml_transpose", _HANDLE, [_HANDLE, _HANDLE]),
    ("ggml_cpy", _HANDLE, [_HANDLE, _HANDLE, _HANDLE]),
    ("ggml_mul_mat", _HANDLE, [_HANDLE, _HANDLE, _HANDLE]),
    ("ggml_rms_norm", _HANDLE, [_HANDLE, _HANDLE, ctypes.c_float]),
    ("ggml_mul", _HANDLE, [_HANDLE, _HANDLE, _HANDLE]),
    ("ggml_add", _HANDLE, [_HANDLE, _HANDLE, _HANDLE]),
    ("ggml_gelu", _HANDLE, [_HANDLE, _HANDLE]),
    ("ggml_prec_set_acc", ctypes.c_bool, [_HANDLE, ctypes.c_int]),
    ("ggml_backend_dev_count", _SIZE, []),
    ("ggml_backend_dev_get", _HANDLE, [_SIZE]),
    ("ggml_backend_dev_type", ctypes.c_int, [_HANDLE]),
    ("ggml_backend_dev_memory", None, [_HANDLE, ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE)]),
    ("ggml_backend_dev_init", _HANDLE, [_HANDLE, ctypes.c_char_p]),
    ("ggml_backend_dev_supports_op", ctypes.c_bool, [_HANDLE, _HANDLE]),
    ("ggml_backend_alloc_ctx_tensors", _HANDLE, [_HANDLE, _HANDLE]),
    ("ggml_backend_tensor_set", None, [_HANDLE, _HANDLE, _SIZE, _SIZE]),
    ("ggml_backend_tensor_get", None, [_HANDLE, _HANDLE, _SIZE, _SIZE]),
    ("ggml_backend_graph_compute", ctypes.c_int, [_HANDLE, _HANDLE]),
    ("ggml_backend_buffer_free", None, [_HANDLE]),
    ("ggml_backend_free", None, [_HANDLE]),
)


@functools.cache
def functions() -> Any:
    """ggml's functions with their types.

    Raises:
        BackendError: this ggml lacks one of them.
    """
    ggml = library().ggml
    for name, result, arguments in _SIGNATURES:
        try:
            function = getattr(ggml, name)
        except AttributeError as error:
            raise BackendError(f"this llama.cpp lacks {name}; update llama-cpp-python") from error
        function.restype, function.argtypes = result, arguments
    return ggml


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One of ggml's devices, ready to compute."""

    native: Any
    backend: Any

    @classmethod
    def first(cls, kinds: tuple[int, ...]) -> "Device | None":
        """The first of these kinds, which is the one that llama.cpp takes first; None where there is none."""
        ggml = functions()
        for index in range(ggml.ggml_backend_dev_count()):
            native = ggml.ggml_backend_dev_get(index)
            if ggml.ggml_backend_dev_type(native) in kinds:
                backend = ggml.ggml_backend_dev_init(native, None)
                return cls(native, backend) if backend else None
        return None

    @property
    def memory_free(self) -> int:
        """Bytes."""
        free, total = _SIZE(), _SIZE()
        functions().ggml_backend_dev_memory(self.native, ctypes.byref(free), ctypes.byref(total))
        return free.value

    def close(self) -> None:
        """Its arenas have to be closed before."""
        functions().ggml_backend_free(self.backend)


class Arena:
    """Tensors on a device. Declared first, then placed all together; one thread only.

    Shapes are as numpy's: (rows, width).
    """

    def __init__(self, device: Device, num_tensors: int, num_graphs: int = 0) -> None:
        ggml = functions()
        graphs = num_graphs * ggml.ggml_graph_overhead_custom(_GRAPH_NODES, False)
        params = _InitParams(num_tensors * ggml.ggml_tensor_overhead() + graphs + 1024, None, True)
        self._ggml = ggml
        self._device = device
        self._buffer: Any = None
        self.context: Any = ggml.ggml_init(params)
        """What ggml's own functions that make tensors want first."""

    def tensor(self, rows: int, width: int, kind: int = F32) -> Any:
        """A new one."""
        return self._ggml.ggml_new_tensor_2d(self.context, kind, width, rows)

    def view(self, tensor: Any, shape: tuple[int, int], *, row_bytes: int, start: int) -> Any:
        """Another look at a tensor's memory, from so many bytes on."""
        rows, width = shape
        return self._ggml.ggml_view_2d(self.context, tensor, width, rows, row_bytes, start)

    def transposed(self, tensor: Any, target: Any) -> Any:
        """The tensor's transpose, written into another one."""
        turned = self._ggml.ggml_transpose(self.context, tensor)
        return self._ggml.ggml_cpy(self.context, turned, target)

    def times(self, rows: Any, others: Any) -> Any:
        """Element by element; one row is taken for all."""
        return self._ggml.ggml_mul(self.context, rows, others)

    def plus(self, rows: Any, others: Any) -> Any:
        """Element by element."""
        return self._ggml.ggml_add(self.context, rows, others)

    def gelu(self, rows: Any) -> Any:
        """The tanh approximation."""
        return self._ggml.ggml_gelu(self.context, rows)

    def product(self, matrix: Any, rows: Any) -> Any:
        """`rows @ matrix.T`, summed up in float32."""
        product = self._ggml.ggml_mul_mat(self.context, matrix, rows)
        self._ggml.ggml_prec_set_acc(product, _FLOAT_PRECISION)
        return product

    def graph(self, result: Any) -> Any:
        """What computes the result."""
        graph = self._ggml.ggml_new_graph_custom(self.context, _GRAPH_NODES, False)
        self._ggml.ggml_build_forward_expand(graph, result)
        return graph

    def norm(self, rows: Any, epsilon: float) -> Any:
        """Each row over its root mean square."""
        return self._ggml.ggml_rms_norm(self.context, rows, epsilon)

    def place(self, *operations: Any) -> None:
        """Takes the device's memory, once it is known to compute all of these tensors.

        Raises:
            BackendError: it lacks an operation, or memory.
        """
        # one that it cannot compute would end the process
        if not all(self._ggml.ggml_backend_dev_supports_op(self._device.native, each) for each in operations):
            raise BackendError("the device lacks an operation for self-conditioning")
        self._buffer = self._ggml.ggml_backend_alloc_ctx_tensors(self.context, self._device.backend)
        if not self._buffer:
            raise BackendError("the device has no memory for self-conditioning")

    def put(self, tensor: Any, values: Floats) -> None:
        """Copies numbers there, from the tensor's beginning on."""
        # kept in a variable: a temporary's address would dangle
        content = np.ascontiguousarray(values)
        self._ggml.ggml_backend_tensor_set(tensor, content.ctypes.data, 0, content.nbytes)

    def compute(self, graph: Any) -> None:
        """Runs a graph.

        Raises:
            BackendError: the device failed.
        """
        if status := self._ggml.ggml_backend_graph_compute(self._device.backend, graph):
            raise BackendError(f"llama.cpp: self-conditioning failed on the device ({status}); try gpu_layers = 0")

    def get(self, tensor: Any, rows: int, width: int) -> Floats:
        """A float32 tensor of this shape."""
        values = np.empty((rows, width), dtype=np.float32)
        self._ggml.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
        return values

    def close(self) -> None:
        """Harmless when repeated."""
        if self._buffer:
            self._ggml.ggml_backend_buffer_free(self._buffer)
            self._buffer = None
        if self.context:
            self._ggml.ggml_free(self.context)
            self.context = None
