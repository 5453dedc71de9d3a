"""The embedding table of a model, for what llama.cpp does not do: rows, and sums of many rows."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.tensors import Tensor
from dg_lsp.canvas.plan import TokenIds
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.weights.header import Header

TENSOR = "token_embd.weight"

_PIECE_ROWS = 256
"""Rows that one thread decodes at a time: 3 MB at 2,816 numbers each, which a core's own cache holds."""


class EmbeddingTable:
    """Rows stay in the file as they are stored, and are made float32 where they are asked for. One thread only."""

    def __init__(self, header: Header, vocab_size: int, width: int, *, threads: int) -> None:
        """`threads` decode rows.

        Raises:
            ModelUnsupportedError: there is no such table in the file, or of another shape.
        """
        self._tensor = Tensor.of(header, TENSOR)
        if self._tensor.raw.shape[0] != vocab_size or self._tensor.width != width:
            raise ModelUnsupportedError(f"{header.path}: {TENSOR} does not fit its vocabulary; repack the model again")
        self._pool: Executor | None = ThreadPoolExecutor(threads, "embeddings") if threads > 1 else None
        self._scratch: Floats = np.empty((_PIECE_ROWS * threads, width), dtype=np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        """Tokens of the vocabulary, and numbers of a row."""
        return len(self._tensor.raw), self._tensor.width

    def rows(self, ids: TokenIds) -> Floats:
        """Shape (len(ids), width)."""
        out = np.empty((len(ids), self._tensor.width), dtype=np.float32)
        self._tensor.decode(ids, out)
        return out

    def span(self, start: int, stop: int) -> Floats:
        """Neighbouring rows, shape (stop - start, width)."""
        out = np.empty((stop - start, self._tensor.width), dtype=np.float32)
        self._decode(start, None, out)
        return out

    def mix(self, ids: TokenIds | None, shares: Floats) -> Floats:
        """Sums of rows, shape (L, width).

        Args:
            ids: which rows, shape (U,); None means all of them.
            shares: how much of each, shape (L, U).
        """
        count = shares.shape[1]
        total = np.zeros((len(shares), self._tensor.width), dtype=np.float32)
        for start in range(0, count, len(self._scratch)):
            stop = min(start + len(self._scratch), count)
            rows = self._scratch[: stop - start]
            self._decode(start, ids, rows)
            total += shares[:, start:stop] @ rows
        return total

    def close(self) -> None:
        """Ends the threads. Harmless when repeated."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _decode(self, start: int, ids: TokenIds | None, out: Floats) -> None:
        """Fills `out` with the rows of `ids` from `start` on, a piece a thread."""

        def piece(first: int, last: int) -> None:
            where: slice | npt.NDArray[np.int32] = slice(start + first, start + last)
            self._tensor.decode(where if ids is None else ids[where], out[first:last])

        bounds = [*range(0, len(out), _PIECE_ROWS), len(out)]
        self._each(piece, list(pairwise(bounds)))

    def _each(self, piece: Callable[[int, int], None], bounds: list[tuple[int, int]]) -> None:
        if self._pool is None or len(bounds) == 1:
            for first, last in bounds:
                piece(first, last)
        else:
            # the foreign function that decodes lets other threads run
            for job in [self._pool.submit(piece, *ends) for ends in bounds]:
                job.result()
