"""The one batch of a context: numpy arrays that llama.cpp reads in place."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.plan import Flags, TokenIds
from dg_lsp.diffusion.denoiser import Floats


class Batch:
    """Filled with a few slice assignments; writing it token by token through ctypes costs more than a small step.

    Every token belongs to exactly one sequence, so the table of sequence lists is written once.
    """

    def __init__(self, api: Any, capacity: int, embedding_length: int) -> None:
        self.capacity = capacity
        self._embedding_length = embedding_length
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._counts = np.ones(capacity, dtype=np.int32)
        self._sequences = np.zeros(capacity, dtype=np.int32)
        self._outputs = np.zeros(capacity, dtype=np.int8)
        step = self._sequences.itemsize
        self._lists = (self._sequences.ctypes.data + step * np.arange(capacity, dtype=np.uintp)).astype(np.uintp)
        self._rows: Floats | None = None
        batch = api.llama_batch()
        batch.pos = _pointer(self._positions, api.llama_pos)
        batch.n_seq_id = _pointer(self._counts, ctypes.c_int32)
        batch.seq_id = _pointer(self._lists, ctypes.POINTER(api.llama_seq_id))
        batch.logits = _pointer(self._outputs, ctypes.c_int8)
        self._token_pointer = _pointer(self._tokens, api.llama_token)
        self.native = batch

    def put_tokens(
        self,
        ids: TokenIds,
        positions: TokenIds,
        sequences: TokenIds | int,
        outputs: Flags | npt.NDArray[np.int8] | int,
    ) -> None:
        """All of shape (N,), N at most `capacity`, or one number for all; `outputs` says whose logits are wanted."""
        count = len(ids)
        self._tokens[:count] = ids
        self.native.token, self.native.embd = self._token_pointer, None
        self._put_places(count, positions, sequences, outputs)

    def put_rows(self, rows: Floats, positions: TokenIds, sequences: TokenIds) -> None:
        """`rows` has shape (N, embedding length); logits are wanted of all of them."""
        if self._rows is None:
            self._rows = np.zeros((self.capacity, self._embedding_length), dtype=np.float32)
        count = len(rows)
        # Copied into memory that lives as long as the batch: a temporary's address would dangle.
        self._rows[:count] = rows
        self.native.token, self.native.embd = None, _pointer(self._rows, ctypes.c_float)
        self._put_places(count, positions, sequences, 1)

    def _put_places(
        self, count: int, positions: TokenIds, sequences: TokenIds | int, outputs: Flags | npt.NDArray[np.int8] | int
    ) -> None:
        self._positions[:count] = positions
        self._sequences[:count] = sequences
        self._outputs[:count] = outputs
        self.native.n_tokens = count


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
