"""Self-conditioning on the device that runs the model: sums over all embeddings, and the network.

A second copy of the table lies there in half precision and transposed, so that one product sums all of it: exact but
for the half precision, and for a flat canvas far fewer bytes than the host would have to decode.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dg_lsp.backends.llamacpp.arena import F16, Arena, Device
from dg_lsp.backends.llamacpp.embeddings import EmbeddingTable
from dg_lsp.backends.llamacpp.feedback import Feedback, HostFeedback, scale
from dg_lsp.backends.llamacpp.selfcond import SelfConditioning
from dg_lsp.diffusion.denoiser import Floats, Prediction
from dg_lsp.errors import BackendError

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

    arena: Arena
    given: tuple[Any, ...]
    result: Any
    graph: Any

    @classmethod
    def of(cls, arena: Arena, given: tuple[Any, ...], *operations: Any) -> "_Placed":
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

    def __init__(self, device: Device, table: EmbeddingTable, network: SelfConditioning) -> None:
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
        self._arena = Arena(device, 4)
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
        arena = Arena(self._device, 2, 1)
        weights = arena.tensor(length, self._vocab_size)
        return _Placed.of(arena, (weights,), arena.product(self._columns, weights))

    def _network_graph(self, length: int) -> _Placed:
        """As `SelfConditioning.condition`."""
        arena = Arena(self._device, 16, 1)
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
            arena = Arena(self._device, 4, 1)
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
    device = Device.first(kinds) if kinds else None
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
