"""Self-conditioning on a GPU: small ggml graphs on the device that llama.cpp uses. On a CPU numpy is as fast."""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.library import devices, ggml_functions
from dg_lsp.backends.llamacpp.self_conditioning import EmbeddingTable, HostFeedback, SelfConditioning
from dg_lsp.diffusion.denoiser import Floats, Prediction
from dg_lsp.errors import BackendError
from dg_lsp.gguf import F16, F32, TensorType

GPU_KINDS = ("gpu", "igpu")
"""Kinds of `Device`."""
_FLOAT_PRECISION = 10  # GGML_PREC_F32
_GRAPH_NODES = 32
_HANDLE, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


class _InitParams(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _HANDLE), ("no_alloc", ctypes.c_bool))


@functools.cache
def functions() -> Any:
    """ggml's functions with their types.

    Raises:
        BackendError: this ggml lacks a function.
    """
    unary, binary, transfer = (_HANDLE,) * 3, (_HANDLE,) * 4, (None, _HANDLE, _HANDLE, _SIZE, _SIZE)
    return ggml_functions(
        init=(_HANDLE, _InitParams),
        tensor_overhead=(_SIZE,),
        graph_overhead_custom=(_SIZE, _SIZE, ctypes.c_bool),
        new_graph_custom=(_HANDLE, _HANDLE, _SIZE, ctypes.c_bool),
        build_forward_expand=(None, _HANDLE, _HANDLE),
        new_tensor_2d=(_HANDLE, _HANDLE, ctypes.c_int, _NUMBER, _NUMBER),
        view_2d=(_HANDLE, _HANDLE, _HANDLE, _NUMBER, _NUMBER, _SIZE, _SIZE),
        rms_norm=(_HANDLE, _HANDLE, _HANDLE, ctypes.c_float),
        prec_set_acc=(ctypes.c_bool, _HANDLE, ctypes.c_int),
        backend_dev_get=(_HANDLE, _SIZE),
        backend_dev_init=(_HANDLE, _HANDLE, ctypes.c_char_p),
        backend_dev_supports_op=(ctypes.c_bool, _HANDLE, _HANDLE),
        backend_alloc_ctx_tensors=unary,
        backend_graph_compute=(ctypes.c_int, _HANDLE, _HANDLE),
        **dict.fromkeys(("transpose", "gelu"), unary),
        **dict.fromkeys(("cpy", "mul_mat", "mul", "add"), binary),
        **dict.fromkeys(("backend_tensor_set", "backend_tensor_get"), transfer),
        **dict.fromkeys(("free", "backend_buffer_free", "backend_free"), (None, _HANDLE)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class GraphDevice:
    """A device of ggml that is ready to compute."""

    native: Any
    backend: Any
    memory_free: int
    """Bytes, before anything is allocated."""

    @classmethod
    def first(cls, kinds: tuple[str, ...]) -> "GraphDevice | None":
        """The first device of these kinds, which is the first that llama.cpp uses."""
        ggml = functions()
        for index, device in enumerate(devices()):
            if device.kind in kinds:
                native = ggml.backend_dev_get(index)
                backend = ggml.backend_dev_init(native, None)
                return cls(native, backend, device.memory_free) if backend else None
        return None

    def close(self) -> None:
        """Called after its graphs are closed."""
        functions().backend_free(self.backend)


class DeviceGraph:
    """Tensors on a device, and a computation over them. One thread only.

    Tensors and operations are declared first and then allocated together. Shapes are numpy's: (rows, width).
    """

    def __init__(self, device: GraphDevice, num_tensors: int) -> None:
        ggml = functions()
        graph_bytes = ggml.graph_overhead_custom(_GRAPH_NODES, False)
        size = num_tensors * ggml.tensor_overhead() + graph_bytes + 1024
        self._ggml = ggml
        self._device = device
        self._buffer: Any = None
        self._graph: Any = None
        self._result: Any = None
        self._inputs: list[Any] = []
        self._operations: list[Any] = []
        self._context: Any = ggml.init(_InitParams(size, None, True))

    def tensor(self, rows: int, width: int, kind: TensorType = F32) -> Any:
        """A new tensor."""
        return self._ggml.new_tensor_2d(self._context, kind.number, width, rows)

    def input(self, rows: int, width: int) -> Any:
        """A new tensor that `compute` fills."""
        self._inputs.append(self.tensor(rows, width))
        return self._inputs[-1]

    def view(self, tensor: Any, shape: tuple[int, int], *, row_bytes: int, start: int) -> Any:
        """A part of a tensor's memory, from the byte `start` on."""
        rows, width = shape
        return self._ggml.view_2d(self._context, tensor, width, rows, row_bytes, start)

    def apply(self, name: str, *arguments: Any) -> Any:
        """The result of ggml's operation of this name."""
        self._operations.append(getattr(self._ggml, name)(self._context, *arguments))
        return self._operations[-1]

    def product(self, matrix: Any, rows: Any) -> Any:
        """`rows @ matrix.T`, accumulated in float32."""
        product = self.apply("mul_mat", matrix, rows)
        self._ggml.prec_set_acc(product, _FLOAT_PRECISION)
        return product

    def transposed(self, tensor: Any) -> Any:
        """A view of the tensor's transpose."""
        return self._ggml.transpose(self._context, tensor)

    def allocate(self) -> None:
        """Allocates all tensors; the last operation is the result.

        Raises:
            BackendError: the device lacks an operation, or memory. The graph is closed.
        """
        ggml, device = self._ggml, self._device
        if self._operations:
            self._result = self._operations[-1]
            self._graph = ggml.new_graph_custom(self._context, _GRAPH_NODES, False)
            ggml.build_forward_expand(self._graph, self._result)
        # an unsupported operation would end the process
        is_supported = all(ggml.backend_dev_supports_op(device.native, each) for each in self._operations)
        self._buffer = is_supported and ggml.backend_alloc_ctx_tensors(self._context, device.backend)
        if not self._buffer:
            self.close()
            problem = "has no memory" if is_supported else "lacks an operation"
            raise BackendError(f"the device {problem} for self-conditioning")

    def put(self, tensor: Any, values: Floats) -> None:
        """Copies numbers to the start of a tensor."""
        content = np.ascontiguousarray(values)  # in a variable: the address of a temporary would dangle
        self._ggml.backend_tensor_set(tensor, content.ctypes.data, 0, content.nbytes)

    def compute(self, *values: Floats) -> None:
        """Computes the result from the values of all inputs.

        Raises:
            BackendError: the device failed.
        """
        for tensor, content in zip(self._inputs, values, strict=True):
            self.put(tensor, content)
        if status := self._ggml.backend_graph_compute(self._device.backend, self._graph):
            raise BackendError(f"llama.cpp: self-conditioning failed on the device ({status}); try gpu_layers = 0")

    def result(self, rows: int, width: int) -> Floats:
        """The result, which is float32 and has this shape."""
        values = np.empty((rows, width), dtype=np.float32)
        self._ggml.backend_tensor_get(self._result, values.ctypes.data, 0, values.nbytes)
        return values

    def close(self) -> None:
        """Idempotent."""
        if self._buffer:
            self._ggml.backend_buffer_free(self._buffer)
            self._buffer = None
        if self._context:
            self._ggml.free(self._context)
            self._context = None


_BLOCK_TOKENS = 4096
"""Rows of the table that are copied to the device at a time."""
_SPARE_BYTES = 512 << 20
"""Memory of the device that stays free for others."""
_TRIED_TOKENS, _TRIED_LENGTH = 64, 4
_AGREEMENT = 0.02
"""Largest accepted difference from the host, as a share of the largest number; half precision causes about 0.001."""


class DeviceFeedback:
    """Feeds predictions back on a device, which it owns, by weighted sums of all rows. See `HostFeedback`."""

    def __init__(self, device: GraphDevice, table: EmbeddingTable, network: SelfConditioning) -> None:
        """Copies table and network to the device.

        Raises:
            BackendError: the device lacks memory or an operation; it is closed.
        """
        self._device = device
        self._network = network
        self._vocab_size, self._width = table.shape
        self._graphs: dict[tuple[Callable[[int], DeviceGraph], int], DeviceGraph] = {}
        """By the function that makes it, and canvas length."""
        self._is_closed = False
        self._scale = table.scale
        self._weights = DeviceGraph(device, 4)
        self._columns = self._weights.tensor(self._width, self._vocab_size, F16)
        parts = (network.pre_norm, network.gate_up, network.down)
        self._parts = [self._weights.tensor(*part.shape) for part in parts]
        try:
            if device.memory_free < F16.row_bytes(self._vocab_size) * self._width + _SPARE_BYTES:
                raise BackendError("the device has no memory for a second embedding table")
            self._weights.allocate()
            for tensor, part in zip(self._parts, parts, strict=True):
                self._weights.put(tensor, part)
            self._copy_table(table)
        except BackendError:
            self.close()
            raise

    def record(self, weights: Floats, prediction: Prediction) -> Floats:
        """See `HostFeedback.record`: the mean embedding, shape (L, H)."""
        return self.sums(weights) * (prediction.confidence[:, None] * self._scale)

    def condition(self, embedded: Floats, record: Floats) -> Floats:
        """See `HostFeedback.condition`."""
        return self._computed(self._network_graph, embedded, record)

    def sums(self, weights: Floats) -> Floats:
        """Weighted sums of all embeddings, shape (L, H), by weights of shape (L, V).

        Raises:
            BackendError: the device failed, or lacks memory.
        """
        return self._computed(self._sum_graph, weights)

    def close(self) -> None:
        """Frees its memory. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for graph in (*self._graphs.values(), self._weights):
            graph.close()
        self._device.close()

    def _computed(self, make: Callable[[int], DeviceGraph], *values: Floats) -> Floats:
        """Computes rows of width H with the graph for this canvas length."""
        length = len(values[0])
        graph = self._graphs.get((make, length))
        if graph is None:
            graph = self._graphs[make, length] = make(length)
        graph.compute(*values)
        return graph.result(length, self._width)

    def _sum_graph(self, length: int) -> DeviceGraph:
        graph = DeviceGraph(self._device, 2)
        graph.product(self._columns, graph.input(length, self._vocab_size))
        graph.allocate()
        return graph

    def _network_graph(self, length: int) -> DeviceGraph:
        """The same as `SelfConditioning.condition`."""
        graph = DeviceGraph(self._device, 16)
        pre_norm, gate_up, down = self._parts
        epsilon, inner = float(self._network.epsilon), self._network.down.shape[1]
        embedded, soft = graph.input(length, self._width), graph.input(length, self._width)
        normed = graph.apply("mul", graph.apply("rms_norm", soft, epsilon), pre_norm)
        gate, up = (
            graph.product(
                graph.view(gate_up, (inner, self._width), row_bytes=4 * self._width, start=4 * self._width * first),
                normed,
            )
            for first in (0, inner)
        )
        signal = graph.product(down, graph.apply("mul", graph.apply("gelu", gate), up))
        graph.apply("rms_norm", graph.apply("add", embedded, signal), epsilon)
        graph.allocate()
        return graph

    def _copy_table(self, table: EmbeddingTable) -> None:
        """Copies the table in blocks of rows and transposes them on the device."""
        for start in range(0, self._vocab_size, _BLOCK_TOKENS):
            count = min(_BLOCK_TOKENS, self._vocab_size - start)
            graph = DeviceGraph(self._device, 4)
            rows = graph.input(count, self._width)
            target = graph.view(self._columns, (self._width, count), row_bytes=2 * self._vocab_size, start=2 * start)
            graph.apply("cpy", graph.transposed(rows), target)
            graph.allocate()
            try:
                graph.compute(table.rows(slice(start, start + count)))
            finally:
                graph.close()


Feedback = HostFeedback | DeviceFeedback


def choose_feedback(
    table: EmbeddingTable, network: SelfConditioning, *, mass: float, kinds: tuple[str, ...]
) -> Feedback:
    """Uses the first device of these kinds if it works and agrees with the host, otherwise the host."""
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
    """Compares device and host on a few tokens."""
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
