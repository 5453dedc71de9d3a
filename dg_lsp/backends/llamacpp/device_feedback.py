"""Self-conditioning on a GPU: small ggml graphs on the device that has llama.cpp's logits. On a CPU numpy is as fast.

No GPU has run this module: it is tested on ggml's CPU device.
"""

import contextlib
import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.library import devices, ggml_functions
from dg_lsp.backends.llamacpp.self_conditioning import EmbeddingTable, HostFeedback, Mixture, SelfConditioning
from dg_lsp.diffusion.denoiser import Floats, Prediction
from dg_lsp.errors import BackendError
from dg_lsp.gguf import F16, F32, TensorType

GPU_KINDS = ("gpu", "igpu")
"""Kinds of `Device`; only without the first one llama.cpp uses the second."""
_FOR_WEIGHTS = 1  # GGML_BACKEND_BUFFER_USAGE_WEIGHTS: operations go to the tensors, not the tensors to the operations
_FLOAT_PRECISION = 10  # GGML_PREC_F32
_GRAPH_NODES = 32
_HANDLE, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


class _InitParams(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _HANDLE), ("no_alloc", ctypes.c_bool))


@functools.cache
def functions() -> Any:
    """ggml's functions with their types."""
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
        backend_buffer_set_usage=(None, _HANDLE, ctypes.c_int),
    )


@dataclass(frozen=True, slots=True, eq=False)
class GraphDevice:
    """A device of ggml that is ready to compute."""

    native: Any
    backend: Any
    memory_free: int  # bytes, before anything is allocated

    @classmethod
    def open(cls, kinds: tuple[str, ...], number: int = 0) -> "GraphDevice | None":
        """The device with this number among those of the first kind that there is."""
        listed = devices() if kinds else ()
        by_kind = ([index for index, each in enumerate(listed) if each.kind == kind] for kind in kinds)
        if number >= len(found := next(filter(None, by_kind), [])):
            return None
        native = functions().backend_dev_get(found[number])
        backend = functions().backend_dev_init(native, None)
        return cls(native, backend, listed[found[number]].memory_free) if backend else None

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
        is_supported = all(ggml.backend_dev_supports_op(device.native, each) for each in self._operations)
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

    def view(self, tensor: Any, rows: int, width: int, *, row_bytes: int, start: int) -> Any:
        """Declares a part of a tensor's memory, from the byte `start` on."""
        return self._ggml.view_2d(self._context, tensor, width, rows, row_bytes, start)

    def apply(self, name: str, *arguments: Any) -> Any:
        """Declares an operation of ggml; products are accumulated in float32. Returns its result."""
        self._operations.append(getattr(self._ggml, name)(self._context, *arguments))
        if name == "mul_mat":
            self._ggml.prec_set_acc(self._operations[-1], _FLOAT_PRECISION)
        return self._operations[-1]

    def keep_in_place(self) -> None:
        """Other graphs that read the tensors compute with them on this device."""
        self._ggml.backend_buffer_set_usage(self._buffer, _FOR_WEIGHTS)

    def put(self, tensor: Any, values: Floats) -> None:
        """Copies numbers to the start of a tensor."""
        content = np.ascontiguousarray(values)  # in a variable: the address of a temporary would dangle
        self._ggml.backend_tensor_set(tensor, content.ctypes.data, 0, content.nbytes)

    def compute(self, *values: Floats) -> None:
        """Computes the result from the values of all inputs."""
        for tensor, content in zip(self._inputs, values, strict=True):
            self.put(tensor, content)
        if status := self._ggml.backend_graph_compute(self._device.backend, self._graph):
            raise BackendError(f"llama.cpp: self-conditioning failed on the device ({status}); try gpu_layers = 0")

    def result(self, rows: int, width: int) -> Floats:
        """The result, which is float32 and has this shape."""
        values = np.empty((rows, width), dtype=np.float32)
        self._ggml.backend_tensor_get(self._operations[-1], values.ctypes.data, 0, values.nbytes)
        return values

    def close(self) -> None:
        """Called once, before the device is closed."""
        if self._buffer:
            self._ggml.backend_buffer_free(self._buffer)
        self._ggml.free(self._context)


_BLOCK_TOKENS = 4096
"""Rows of the table that are copied to the device at a time."""
_SPARE_BYTES = 512 << 20
"""Memory of the device that stays free for others."""
_TRIED_TOKENS, _TRIED_LENGTH = 64, 4
_AGREEMENT = 0.02
"""Largest accepted difference from the host, as a share of the largest number; half precision causes about 0.001."""


class DeviceFeedback:
    """Feeds predictions back on a device, which it owns, by weighted sums of all rows. See `HostFeedback`."""

    def __init__(
        self, device: GraphDevice, table: EmbeddingTable, network: SelfConditioning, needed_bytes: int = 0
    ) -> None:
        """Copies table and network to the device, and compares it with the host. Others need `needed_bytes` of it.

        Raises:
            BackendError: the device lacks memory or an operation, or computes something else; it is closed.
        """
        self._device = device
        self._network = network
        self._vocab_size, self.width = table.shape
        self.scale = table.scale
        """Factor of the sums."""
        self._graphs: dict[tuple[Callable[[int, DeviceGraph], object], int], DeviceGraph] = {}
        """By the function that declares it, and canvas length."""
        self._is_closed = False
        parts = (network.pre_norm, network.gate_up, network.down)
        self.size_bytes = F16.row_bytes(self._vocab_size) * self.width + sum(part.nbytes for part in parts)
        """Bytes on the device."""
        try:
            if device.memory_free < self.size_bytes + needed_bytes + _SPARE_BYTES:
                raise BackendError("the device has no memory for a second embedding table")
            weights = self._graphs[self._declare_weights, 0] = DeviceGraph(device, partial(self._declare_weights, 0))
            weights.keep_in_place()
            for tensor, part in zip(self._parts, parts, strict=True):
                weights.put(tensor, part)
            for start in range(0, self._vocab_size, _BLOCK_TOKENS):
                self._copy_rows(start, table.rows(slice(start, min(start + _BLOCK_TOKENS, self._vocab_size))))
            self._compare(table)
        except BackendError:
            self.close()
            raise

    def record(self, weights: Floats, prediction: Prediction) -> Floats:
        """See `HostFeedback.record`: the mean embedding, shape (L, H)."""
        return self.sums(weights) * (prediction.confidence[:, None] * self.scale)

    def mix(self, kept: Mixture) -> Floats:
        """The record of a prediction of which these tokens are kept."""
        weights: Floats = np.zeros((len(kept), self._vocab_size), dtype=np.float32)
        weights[:, slice(None) if kept.ids is None else kept.ids] = kept.shares
        return self.sums(weights) * self.scale

    def condition(self, embedded: Floats, record: Floats) -> Floats:
        """See `HostFeedback.condition`."""
        return self._computed(self._declare_network, embedded, record)

    def sums(self, weights: Floats) -> Floats:
        """Weighted sums of all embeddings, shape (L, H), by weights of shape (L, V)."""
        length = len(weights)
        padded = 1 << max(0, length - 1).bit_length()  # every length has memory of its own
        if padded != length:
            weights = np.concatenate([weights, np.zeros((padded - length, self._vocab_size), np.float32)])
        return self._computed(self._declare_sums, weights)[:length]

    def close(self) -> None:
        """Frees its memory. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            for graph in self._graphs.values():
                graph.close()
            self._device.close()

    def _computed(self, declare: Callable[[int, DeviceGraph], object], *values: Floats) -> Floats:
        """Computes rows of width H with the graph for this canvas length."""
        length = len(values[0])
        graph = self._graphs.get((declare, length))
        if graph is None:
            graph = self._graphs[declare, length] = DeviceGraph(self._device, partial(declare, length))
        graph.compute(*values)
        return graph.result(length, self.width)

    def _declare_weights(self, _length: int, graph: DeviceGraph) -> None:
        network = self._network
        self.columns = graph.tensor(self.width, self._vocab_size, F16)
        """ggml's tensor of the transposed table."""
        self._parts = [graph.tensor(*part.shape) for part in (network.pre_norm, network.gate_up, network.down)]

    def _declare_sums(self, length: int, graph: DeviceGraph) -> None:
        graph.apply("mul_mat", self.columns, graph.input(length, self._vocab_size))

    def _declare_network(self, length: int, graph: DeviceGraph) -> None:
        """The same as `SelfConditioning.condition`."""
        pre_norm, gate_up, down = self._parts
        epsilon, inner = float(self._network.epsilon), self._network.down.shape[1]
        embedded, soft = graph.input(length, self.width), graph.input(length, self.width)
        normed = graph.apply("mul", graph.apply("rms_norm", soft, epsilon), pre_norm)
        row_bytes = 4 * self.width
        gate, up = (
            graph.apply("mul_mat", graph.view(gate_up, inner, self.width, row_bytes=row_bytes, start=start), normed)
            for start in (0, inner * row_bytes)
        )
        signal = graph.apply("mul_mat", down, graph.apply("mul", graph.apply("gelu", gate), up))
        graph.apply("rms_norm", graph.apply("add", embedded, signal), epsilon)

    def _copy_rows(self, first: int, rows: Floats) -> None:
        """Copies rows of the table, and transposes them on the device."""

        def declare(graph: DeviceGraph) -> None:
            row_bytes = F16.row_bytes(self._vocab_size)
            target = graph.view(self.columns, self.width, len(rows), row_bytes=row_bytes, start=2 * first)
            graph.apply("cpy", graph.apply("transpose", graph.input(*rows.shape)), target)

        graph = DeviceGraph(self._device, declare)
        try:
            graph.compute(rows)
        finally:
            graph.close()

    def _compare(self, table: EmbeddingTable) -> None:
        """Compares the device with the host on a few tokens."""
        rng = np.random.default_rng(0)
        ids = np.sort(rng.choice(self._vocab_size, min(self._vocab_size, _TRIED_TOKENS), replace=False)).astype(
            np.int32
        )
        weights = np.zeros((_TRIED_LENGTH, self._vocab_size), dtype=np.float32)
        weights[:, ids] = rng.random((_TRIED_LENGTH, len(ids)), dtype=np.float32)
        rows = rng.standard_normal((2, _TRIED_LENGTH, self.width), dtype=np.float32)
        for found, expected in (
            (self.sums(weights), table.mix(ids, weights[:, ids])),
            (self.condition(*rows), self._network.condition(*rows)),
        ):
            if not np.abs(found - expected).max() < _AGREEMENT * np.abs(expected).max():
                raise BackendError("the device computes another self-conditioning than the host")


def choose_feedback(
    table: EmbeddingTable,
    network: SelfConditioning,
    *,
    mass: float,
    kinds: tuple[str, ...],
    number: int = 0,
    needed_bytes: int = 0,
) -> HostFeedback | DeviceFeedback:
    """Uses a device (see `GraphDevice.open`) if it has room, works and agrees with the host, otherwise the host."""
    if device := GraphDevice.open(kinds, number):
        with contextlib.suppress(BackendError):
            return DeviceFeedback(device, table, network, needed_bytes)
    return HostFeedback(table, network, mass)
