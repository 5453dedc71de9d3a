"""How a canvas's last prediction gets into its next pass: on the host, or on the device that runs the model.

On the host few rows of the embedding table are summed, as they lie in the file. On a device all of them are, by one
product with a second copy of the table in its memory: exact, and for a flat canvas a hundred times the host's speed,
by the bytes that have to be read.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dg_lsp.backends.llamacpp.arena import F16, Arena, Device
from dg_lsp.backends.llamacpp.embeddings import EmbeddingTable
from dg_lsp.backends.llamacpp.mixture import MASS, Mixture, mixture
from dg_lsp.diffusion.denoiser import Floats, Prediction
from dg_lsp.errors import BackendError

_BLOCK_TOKENS = 4096
"""Rows of the table that are brought to the device at a time."""
_SPARE_BYTES = 512 << 20
"""Of the device's memory, left to whoever else needs it."""
_TRIED_TOKENS, _TRIED_LENGTH = 64, 4
_AGREEMENT = 0.02
"""How far the device's sums may be from the host's, as a share of the largest; half precision gives some 0.001."""


class Feedback(Protocol):
    """Sums of embeddings in proportion to what was said."""

    def keep(self, weights: Floats, prediction: Prediction) -> Any:
        """What the next pass needs of a prediction; weights of shape (L, V), the best token's being 1."""
        ...

    def soft(self, kept: Any) -> Floats:
        """Shape (L, H): the mean embedding of what was kept, not scaled."""
        ...

    def close(self) -> None:
        """Gives memory back. Harmless when repeated."""
        ...


class HostFeedback:
    """Sparse, by probability mass."""

    def __init__(self, table: EmbeddingTable, mass: float = MASS) -> None:
        self._table = table
        self._mass = mass

    def keep(self, weights: Floats, prediction: Prediction) -> Mixture:
        """See `Feedback.keep`: the tokens that hold the mass."""
        return mixture(weights, prediction, self._mass)

    def soft(self, kept: Mixture) -> Floats:
        """See `Feedback.soft`; nothing is summed before it is asked for."""
        return self._table.mix(kept.ids, kept.shares)

    def close(self) -> None:
        """The table is not its own."""


class DeviceFeedback:
    """Dense, on a device; the table lies there in half precision and transposed, so that it takes one product."""

    def __init__(self, device: Device, table: EmbeddingTable, vocab_size: int, width: int) -> None:
        """Takes the device over and copies the table there.

        Raises:
            BackendError: the device lacks the memory or an operation for it.
        """
        self._device = device
        self._shape = (vocab_size, width)
        self._is_closed = False
        self._graphs: dict[int, _Product] = {}
        """By canvas length."""
        self._arena = Arena(device, 1)
        self._columns = self._arena.tensor(width, vocab_size, F16)
        try:
            if device.memory_free < 2 * vocab_size * width + _SPARE_BYTES:
                raise BackendError("the device has no memory for a second table of embeddings")
            self._arena.place()
            self._fill(table)
        except BackendError:
            self.close()
            raise

    def keep(self, weights: Floats, prediction: Prediction) -> Floats:
        """See `Feedback.keep`: the sum itself, shape (L, H)."""
        return self.sums(weights) * prediction.confidence[:, None]

    def soft(self, kept: Floats) -> Floats:
        """See `Feedback.soft`."""
        return kept

    def sums(self, weights: Floats) -> Floats:
        """Weighted sums of all embeddings, shape (L, H); weights of shape (L, V).

        Raises:
            BackendError: the device failed, or has no memory for so many.
        """
        length = len(weights)
        if length not in self._graphs:
            self._graphs[length] = self._graph(length)
        self._graphs[length].run(weights)
        return self._graphs[length].arena.get(self._graphs[length].result, length, self._shape[1])

    def close(self) -> None:
        """See `Feedback.close`; takes the device with it."""
        if self._is_closed:
            return
        self._is_closed = True
        for graph in self._graphs.values():
            graph.arena.close()
        self._arena.close()
        self._device.close()

    def _graph(self, length: int) -> "_Product":
        arena = Arena(self._device, 2, 1)
        given = arena.tensor(length, self._shape[0])
        return _Product.placed(arena, given, arena.product(self._columns, given))

    def _fill(self, table: EmbeddingTable) -> None:
        """Brings the rows there by blocks, each transposed on the way."""
        vocab_size, width = self._shape
        for start in range(0, vocab_size, _BLOCK_TOKENS):
            count = min(_BLOCK_TOKENS, vocab_size - start)
            arena = Arena(self._device, 4, 1)
            rows = arena.tensor(count, width)
            target = arena.view(self._columns, (width, count), row_bytes=2 * vocab_size, start=2 * start)
            block = _Product.placed(arena, rows, arena.transposed(rows, target))
            try:
                block.run(table.span(start, start + count))
            finally:
                block.arena.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Product:
    """A graph of one input, placed on its device."""

    arena: Arena
    given: Any
    result: Any
    graph: Any

    @classmethod
    def placed(cls, arena: Arena, given: Any, result: Any) -> "_Product":
        graph = arena.graph(result)
        try:
            arena.place(result)
        except BackendError:
            arena.close()
            raise
        return cls(arena, given, result, graph)

    def run(self, values: Floats) -> None:
        self.arena.put(self.given, values)
        self.arena.compute(self.graph)


def feedback_of(table: EmbeddingTable, vocab_size: int, width: int, *, mass: float, kinds: tuple[int, ...]) -> Feedback:
    """On the first device of these kinds if it can do it and agrees with the host, else on the host."""
    device = Device.first(kinds) if kinds else None
    if device is None:
        return HostFeedback(table, mass)
    try:
        found = DeviceFeedback(device, table, vocab_size, width)
    except BackendError:
        return HostFeedback(table, mass)
    if _agrees(found, table, vocab_size):
        return found
    found.close()
    return HostFeedback(table, mass)


def _agrees(feedback: DeviceFeedback, table: EmbeddingTable, vocab_size: int) -> bool:
    """Tried on a few tokens: a device that computes something else must not go unnoticed."""
    rng = np.random.default_rng(0)
    ids = np.sort(rng.choice(vocab_size, min(vocab_size, _TRIED_TOKENS), replace=False)).astype(np.int32)
    weights = np.zeros((_TRIED_LENGTH, vocab_size), dtype=np.float32)
    weights[:, ids] = rng.random((_TRIED_LENGTH, len(ids)), dtype=np.float32)
    weights[:, ids[0]] = 1
    totals = weights.sum(axis=1)
    host = table.mix(ids, weights[:, ids] / totals[:, None])
    try:
        error = np.abs(feedback.sums(weights) / totals[:, None] - host).max()
    except BackendError:
        return False
    return bool(error < _AGREEMENT * np.abs(host).max())
