"""Small computations of our own on one of ggml's devices: tensors that live there, and fixed graphs over them.

The library is the one that llama.cpp uses, so it knows the same devices. Nothing here is needed on a CPU, where numpy
does as well; it is what a GPU's own memory makes fast.
"""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.library import library
from dg_lsp.backends.llamacpp.self_conditioning import (
    EmbeddingTable,
    Feedback,
    HostFeedback,
    SelfConditioning,
    scale,
)
from dg_lsp.diffusion.denoiser import Floats, Prediction
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
class GraphDevice:
    """One of ggml's devices, ready to compute."""

    native: Any
    backend: Any

    @classmethod
    def first(cls, kinds: tuple[int, ...]) -> "GraphDevice | None":
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


class DeviceGraph:
    """Tensors on a device. Declared first, then placed all together; one thread only.

    Shapes are as numpy's: (rows, width).
    """

    def __init__(self, device: GraphDevice, num_tensors: int, num_graphs: int = 0) -> None:
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


_BLOCK_TOKENS = 4096
"""Rows of the table that are brought to the device at a time."""
_SPARE_BYTES = 512 << 20
"""Of the device's memory, left to whoever else needs it."""
_TRIED_TOKENS, _TRIED_LENGTH = 64, 4
_AGREEMENT = 0.02
"""How far the device may be from the host, as a share of the largest number; half precision gives some 0.001."""


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """A graph on its device."""

    arena: DeviceGraph
    given: tuple[Any, ...]
    result: Any
    graph: Any

    @classmethod
    def of(cls, arena: DeviceGraph, given: tuple[Any, ...], *operations: Any) -> "_Placed":
        """All that is computed, the result last."""
        graph = arena.graph(operations[-1])
        try:
            arena.place(*operations)
        except BackendError:
            arena.close()
            raise
        return cls(arena, given, operations[-1], graph)

    def run(self, *values: Floats) -> None:
        for tensor, content in zip(self.given, values, strict=True):
            self.arena.put(tensor, content)
        self.arena.compute(self.graph)

    def rows(self, width: int, *values: Floats) -> Floats:
        """The result: a row so wide for each of the inputs'."""
        self.run(*values)
        return self.arena.get(self.result, len(values[0]), width)


class DeviceFeedback:
    """See `Feedback`. Takes the device over."""

    def __init__(self, device: GraphDevice, table: EmbeddingTable, network: SelfConditioning) -> None:
        """Copies table and network there.

        Raises:
            BackendError: the device lacks the memory or an operation for it; it is closed then.
        """
        self._device = device
        self._network = network
        self._vocab_size, self._width = table.shape
        self._sums: dict[int, _Placed] = {}
        self._conditioned: dict[int, _Placed] = {}
        """Both by canvas length."""
        self._is_closed = False
        self._arena = DeviceGraph(device, 4)
        self._columns = self._arena.tensor(self._width, self._vocab_size, F16)
        parts = (network.pre_norm, network.gate_up, network.down)
        self._parts = [self._arena.tensor(*part.shape) for part in parts]
        try:
            if device.memory_free < 2 * self._vocab_size * self._width + _SPARE_BYTES:
                raise BackendError("the device has no memory for a second table of embeddings")
            self._arena.place()
            for tensor, part in zip(self._parts, parts, strict=True):
                self._arena.put(tensor, part)
            self._fill(table)
        except BackendError:
            self.close()
            raise

    def keep(self, weights: Floats, prediction: Prediction) -> Floats:
        """See `Feedback.keep`: the mean embedding, shape (L, H)."""
        return self.sums(weights) * (prediction.confidence[:, None] * scale(self._width))

    def condition(self, embedded: Floats, kept: Floats) -> Floats:
        """See `Feedback.condition`."""
        return _of_length(self._conditioned, len(embedded), self._network_graph).rows(self._width, embedded, kept)

    def sums(self, weights: Floats) -> Floats:
        """Weighted sums of all embeddings, shape (L, H); weights of shape (L, V).

        Raises:
            BackendError: the device failed, or has no memory for so many.
        """
        return _of_length(self._sums, len(weights), self._sum_graph).rows(self._width, weights)

    def close(self) -> None:
        """See `Feedback.close`."""
        if self._is_closed:
            return
        self._is_closed = True
        for placed in (*self._sums.values(), *self._conditioned.values()):
            placed.arena.close()
        self._arena.close()
        self._device.close()

    def _sum_graph(self, length: int) -> _Placed:
        arena = DeviceGraph(self._device, 2, 1)
        weights = arena.tensor(length, self._vocab_size)
        return _Placed.of(arena, (weights,), arena.product(self._columns, weights))

    def _network_graph(self, length: int) -> _Placed:
        """As `SelfConditioning.condition`."""
        arena = DeviceGraph(self._device, 16, 1)
        pre_norm, gate_up, down = self._parts
        epsilon, inner = float(self._network.epsilon), self._network.down.shape[1]
        embedded, soft = arena.tensor(length, self._width), arena.tensor(length, self._width)
        normed = arena.norm(soft, epsilon)
        inside = arena.times(normed, pre_norm)
        matrices = [
            arena.view(gate_up, (inner, self._width), row_bytes=4 * self._width, start=4 * self._width * first)
            for first in (0, inner)
        ]
        gate, up = (arena.product(matrix, inside) for matrix in matrices)
        curved = arena.gelu(gate)
        gated = arena.times(curved, up)
        signal = arena.product(down, gated)
        both = arena.plus(embedded, signal)
        operations = (normed, inside, gate, up, curved, gated, signal, both, arena.norm(both, epsilon))
        return _Placed.of(arena, (embedded, soft), *operations)

    def _fill(self, table: EmbeddingTable) -> None:
        """Brings the rows there by blocks, each transposed on the way."""
        for start in range(0, self._vocab_size, _BLOCK_TOKENS):
            count = min(_BLOCK_TOKENS, self._vocab_size - start)
            arena = DeviceGraph(self._device, 4, 1)
            rows = arena.tensor(count, self._width)
            where = arena.view(self._columns, (self._width, count), row_bytes=2 * self._vocab_size, start=2 * start)
            block = _Placed.of(arena, (rows,), arena.transposed(rows, where))
            try:
                block.run(table.span(start, start + count))
            finally:
                arena.close()


def feedback_of(table: EmbeddingTable, network: SelfConditioning, *, mass: float, kinds: tuple[int, ...]) -> Feedback:
    """On the first device of these kinds if it can do it and agrees with the host, else on the host."""
    host = HostFeedback(table, network, mass)
    device = GraphDevice.first(kinds) if kinds else None
    if device is None:
        return host
    try:
        found = DeviceFeedback(device, table, network)
    except BackendError:
        return host
    if _agrees(found, table, network):
        return found
    found.close()
    return host


def _agrees(feedback: DeviceFeedback, table: EmbeddingTable, network: SelfConditioning) -> bool:
    """Tried on a few tokens: a device that computes something else must not go unnoticed."""
    rng = np.random.default_rng(0)
    vocab_size, width = table.shape
    ids = np.sort(rng.choice(vocab_size, min(vocab_size, _TRIED_TOKENS), replace=False)).astype(np.int32)
    weights = np.zeros((_TRIED_LENGTH, vocab_size), dtype=np.float32)
    weights[:, ids] = rng.random((_TRIED_LENGTH, len(ids)), dtype=np.float32)
    sums = table.mix(ids, weights[:, ids])
    rows = rng.standard_normal((2, _TRIED_LENGTH, width), dtype=np.float32)
    try:
        return _is_near(feedback.sums(weights), sums) and _is_near(
            feedback.condition(rows[0], rows[1]), network.condition(rows[0], rows[1])
        )
    except BackendError:
        return False


def _is_near(found: Floats, expected: Floats) -> bool:
    return bool(np.abs(found - expected).max() < _AGREEMENT * np.abs(expected).max())


def _of_length(made: dict[int, _Placed], length: int, make: Callable[[int], _Placed]) -> _Placed:
    if length not in made:
        made[length] = make(length)
    return made[length]
