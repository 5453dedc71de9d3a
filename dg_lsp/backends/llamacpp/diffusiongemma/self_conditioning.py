"""Feeds a canvas's last prediction into its next pass: embedding table and network, on the host or on a GPU.

The host sums few rows of the embedding table, as they are stored in the file. A GPU sums all rows. On a CPU numpy is as
fast as ggml. No GPU has run `DeviceFeedback`: it is tested on ggml's CPU device.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.device_graph import DeviceTensors
from dg_lsp.backends.llamacpp.library import Device, ggml_functions
from dg_lsp.canvas.layout import Flags, TokenIds
from dg_lsp.canvas.spec import SideFile
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import BackendError, ModelError, ModelUnsupportedError, RequestError
from dg_lsp.gguf import F16, F32, GGUFHeader, TensorType, map_file_errors, read_header
from dg_lsp.system import file_sha256

Rows = npt.NDArray[np.int32]
"""Numbers of rows of a device's memory, shape (L,)."""
_MAPPED_BYTES = 16 << 20
"""A smaller tensor is read, not mapped: if another program truncates a mapped file, this process crashes."""


class _Traits(ctypes.Structure):
    """The start of `ggml_type_traits`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block_weights", ctypes.c_int64),
        ("block_weights_interleaved", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


@functools.cache
def _traits(kind: int) -> Any:
    """ggml's properties of a number format."""
    return ggml_functions(get_type_traits=(ctypes.POINTER(_Traits), ctypes.c_int)).get_type_traits(kind).contents


@dataclass(frozen=True, slots=True, eq=False)
class StoredMatrix:
    """A matrix in its stored format, quantized or not."""

    raw: npt.NDArray[np.uint8]  # shape (N, bytes of a row)
    kind: TensorType
    width: int

    @classmethod
    def of(cls, header: GGUFHeader, name: str) -> "StoredMatrix":
        """A tensor of a file, a vector as one row; mapped if it is large. Raises `ModelUnsupportedError`."""
        stored = header.tensors.get(name)
        if stored is None:
            raise ModelUnsupportedError(f"{header.path} has no tensor {name}; convert the model again")
        if stored.kind != F32 and not _traits(stored.kind.number).to_float:
            raise ModelUnsupportedError(f"{header.path}: {name} cannot be read as {stored.kind.name}; use another type")
        rows = header.rows(name)
        return cls(rows if stored.size >= _MAPPED_BYTES else np.array(rows), stored.kind, stored.shape[-1])

    def floats(self) -> Floats:
        """The whole matrix, shape (N, width)."""
        rows = np.empty((len(self.raw), self.width), dtype=np.float32)
        self.decode(np.arange(len(self.raw), dtype=np.int32), rows)
        return rows

    def decode(self, rows: npt.NDArray[np.int32], out: Floats) -> None:
        """Writes rows to `out`, shape (number of rows, width)."""
        packed = np.ascontiguousarray(self.raw[rows])  # in a variable: the address of a temporary would dangle
        if self.kind == F32:
            out[:] = packed.view(np.float32)
        else:
            _traits(self.kind.number).to_float(packed.ctypes.data, out.ctypes.data, out.size)


_EMBEDDINGS = "token_embd.weight"
_PIECE_ROWS = 256
"""Rows that one thread decodes at a time: 3 MB for a width of 2,816, which fits into the cache of a core."""


class EmbeddingTable:
    """Converts rows to float32 on demand; they stay in the file in their stored format. One thread only."""

    def __init__(self, header: GGUFHeader, vocab_size: int, width: int, *, threads: int) -> None:
        """Decodes rows with `threads` threads; raises `ModelUnsupportedError` for a table of another shape."""
        self._matrix = StoredMatrix.of(header, _EMBEDDINGS)
        if self._matrix.raw.shape[0] != vocab_size or self._matrix.width != width:
            raise ModelUnsupportedError(f"{header.path}: {_EMBEDDINGS} does not fit its vocabulary; convert it again")
        self.shape = vocab_size, width
        self.scale = np.sqrt(np.float32(width))
        """Gemma's factor for embeddings; llama.cpp applies it to token ids only."""
        self._pool = ThreadPoolExecutor(threads, "embeddings")
        self._scratch: Floats = np.empty((_PIECE_ROWS * threads, width), dtype=np.float32)

    def rows(self, ids: TokenIds, out: Floats | None = None) -> Floats:
        """Rows by ids, shape (number of rows, width), not scaled; `out` is used as memory."""
        rows: Floats = np.empty((len(ids), self.shape[1]), dtype=np.float32) if out is None else out[: len(ids)]

        def decode_piece(first: int) -> None:
            piece = slice(first, first + _PIECE_ROWS)
            self._matrix.decode(ids[piece], rows[piece])

        # ctypes releases the GIL while ggml decodes
        list(self._pool.map(decode_piece, range(0, len(ids), _PIECE_ROWS)))
        return rows

    def mix(self, ids: TokenIds, shares: Floats) -> Floats:
        """Sums of the rows `ids`, shape (U,), weighted by `shares`, shape (L, U); shape (L, width)."""
        total: Floats = np.zeros((len(shares), self.shape[1]), dtype=np.float32)
        for start in range(0, len(ids), len(self._scratch)):
            part = slice(start, start + len(self._scratch))
            total += shares[:, part] @ self.rows(ids[part], self._scratch)
        return total

    def close(self) -> None:
        """Ends the threads. Idempotent."""
        self._pool.shutdown()


MASS = 0.99
"""Probability mass that the host keeps for a position. The error depends on the rest, not on the number of rows."""
_DENSE_SHARE = 0.25
"""Share of the vocabulary from which on tokens are not sorted to leave out the last few."""
_FIRST_LEVEL = np.float32(1 / 8)
_NEXT_LEVEL = np.float32(1 / 16)


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Probabilities of the same U tokens at L positions."""

    ids: TokenIds  # shape (U,), ascending
    shares: Floats  # shape (L, U); each row adds up to 1

    def __len__(self) -> int:
        return len(self.shares)


def mixture(
    top_ids: TokenIds,
    top_shares: Floats,
    short: npt.NDArray[np.intp],
    weights: Floats,
    entropy: Floats,
    mass: float,
    vocab_size: int,
) -> Mixture:
    """One set of tokens for all positions, as small as possible, that holds at least `mass` at each of them.

    The most probable tokens of L positions and their probabilities, the highest first, have the shape (L, K). At the
    positions `short`, shape (S,), they hold less than `mass`. `weights`, shape (S, V), are relative to the best token,
    and `entropy`, shape (S,), is of the same distributions.
    """
    kept = np.cumsum(top_shares, axis=1, dtype=np.float32) - top_shares < mass
    kept[short] = False
    rows, _ = np.nonzero(kept)
    tokens = top_ids[kept]
    needed: Flags = np.zeros(vocab_size, dtype=np.bool_)
    needed[tokens] = True
    for row_weights, row_entropy in zip(weights, entropy, strict=True):
        needed[_most_probable(row_weights, row_entropy, mass)] = True
    ids = np.flatnonzero(needed).astype(np.int32)
    shares: Floats = np.zeros((len(top_ids), len(ids)), dtype=np.float32)
    shares[rows, ids.searchsorted(tokens)] = top_shares[kept]
    shares[short] = weights[:, ids]
    shares /= shares.sum(axis=1, keepdims=True)
    return Mixture(ids, shares)


def _most_probable(weights: Floats, entropy: np.float32, mass: float) -> npt.NDArray[np.intp]:
    """The fewest tokens with this mass, or somewhat more if they are very many; weights of shape (V,)."""
    total = weights.sum(dtype=np.float64)
    wanted = mass * total
    # all tokens below this probability have less than the rest together
    lowest = np.float32((1 - mass) / len(weights))
    level = max(_FIRST_LEVEL * np.exp(-entropy), lowest)
    while True:
        ids = np.flatnonzero(weights >= level * total)
        kept = weights[ids]
        if kept.sum(dtype=np.float64) >= wanted or level <= lowest:
            break
        level = max(level * _NEXT_LEVEL, lowest)
    if len(ids) > _DENSE_SHARE * len(weights):
        return ids
    order = np.argsort(-kept)
    fewest: npt.NDArray[np.intp] = ids[order[: int(np.cumsum(kept[order], dtype=np.float64).searchsorted(wanted)) + 1]]
    return fewest


_CURVE = np.float32(math.sqrt(2 / math.pi))


class SelfConditioning:
    """The network: a gated MLP of inner width M between two norms of width H."""

    def __init__(self, model_path: Path, side: SideFile, width: int, epsilon: float) -> None:
        """Reads the side file of a model; `epsilon` is the one of the model's norms.

        Raises `ModelError`: the file is missing, damaged, another one, or has other tensors.
        """
        path = model_path.with_name(side.filename)
        if not path.is_file():
            advice = "put it there or convert the model again"
            raise ModelError(f"{path} is missing: {model_path.name} needs it beside it; {advice}")
        with map_file_errors(path):
            digest = file_sha256(path)
        if digest != side.sha256:
            problem = f"is not the file that {model_path.name} was written with"
            raise ModelError(f"{path} {problem}; convert the model again")
        header = read_header(path)
        self.epsilon = np.float32(epsilon)
        norm, gate, up, down = (
            StoredMatrix.of(header, f"self_cond.{name}").floats() for name in ("pre_norm", "gate", "up", "down")
        )
        if norm.shape != (1, width) or not gate.shape == up.shape == down.T.shape == (len(gate), width):
            raise ModelUnsupportedError(f"{header.path} does not fit its model; convert the model again")
        self.pre_norm = norm
        """Shape (1, H)."""
        self.gate_up = np.concatenate([gate, up])
        """Shape (2M, H): both have the same input, so one product computes them."""
        self.down = down
        """Shape (H, M)."""

    def condition(self, embedded: Floats, soft: Floats | None) -> Floats:
        """The model's input instead of the canvas's scaled embeddings; both have the shape (L, H).

        `soft` is the scaled mean embedding of the last prediction, shape (L, H); None at the first step.
        """
        if soft is None:
            return self._normed(embedded)
        gate, up = np.hsplit((self._normed(soft) * self.pre_norm) @ self.gate_up.T, 2)
        # the tanh approximation of GELU
        opened = np.float32(0.5) * gate * (1 + np.tanh(_CURVE * (gate + np.float32(0.044715) * gate * gate * gate)))
        return self._normed(embedded + (opened * up) @ self.down.T)

    def _normed(self, rows: Floats) -> Floats:
        square = np.einsum("lh,lh->l", rows, rows) / np.float32(rows.shape[1])
        normed: Floats = rows / np.sqrt(square + self.epsilon)[:, None]
        return normed


class HostFeedback:
    """Feeds predictions back on the host: sums the rows of the most probable tokens."""

    def __init__(self, table: EmbeddingTable, network: SelfConditioning, mass: float = MASS) -> None:
        self._table = table
        self._network = network
        self.mass = mass
        """Probability mass that is fed back."""

    def inputs(
        self, canvases: Sequence[TokenIds], records: Sequence[Mixture | None], _held: Sequence[Mixture] = ()
    ) -> Floats:
        """The model's input for N tokens, shape (N, H), from what the last pass recorded of each canvas, if any."""
        rows = [self._input(ids, record) for ids, record in zip(canvases, records, strict=True)]
        inputs = rows[0] if len(rows) == 1 else np.concatenate(rows)
        if not np.isfinite(inputs).all():
            raise BackendError("self-conditioning computed no numbers; the model's file may be damaged")
        return inputs

    def _input(self, ids: TokenIds, record: Mixture | None) -> Floats:
        embedded = self._table.rows(ids)
        embedded *= self._table.scale
        soft = None if record is None else self._table.mix(record.ids, record.shares) * self._table.scale
        return self._network.condition(embedded, soft)

    def close(self) -> None:
        """The caller closes the table."""


_BLOCK_TOKENS = 4096
"""Rows of the table that are decoded at a time, for the copy on the device."""
_SPARE_BYTES = 512 << 20
"""Memory of the device that stays free for others."""


class DeviceFeedback:
    """Feeds predictions back on a device.

    The graph of a step computes the network and sums all rows of the table. It reads the sums of earlier steps from the
    device's memory and writes its own sums there, so that the host copies numbers of rows and no embeddings.
    """

    def __init__(
        self,
        device: Device,
        table: EmbeddingTable,
        network: SelfConditioning,
        bias: Floats,
        num_rows: int,
        history_shape: tuple[int, int],
        needed_bytes: int = 0,
    ) -> None:
        """Copies table and network to the device, of which others need `needed_bytes`.

        `bias` is added to the logits, shape (V,); `num_rows` is the most positions whose predictions are kept.
        `history_shape` is that of the numbers which the steps of a chain keep for the host.

        Raises:
            BackendError: the driver fails, or the device lacks memory.
        """
        vocab_size, width = table.shape
        self.reads: Rows = np.zeros(0, dtype=np.int32)
        """Shape (N,): the row of the memory with the last prediction of each token of a pass; 0 without one."""
        self.writes: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """Shape (N,): the row for the prediction of this pass."""
        self._num_rows = 1 + num_rows
        parts = (bias, network.pre_norm, network.gate_up, network.down)
        shapes = [*(np.atleast_2d(part).shape for part in parts), (self._num_rows, width)]
        shapes += [(self._num_rows, 1), history_shape]
        self.size_bytes = F16.row_bytes(vocab_size) * width + sum(4 * rows * size for rows, size in shapes)
        """Bytes on the device."""
        if device.memory_free < self.size_bytes + needed_bytes + _SPARE_BYTES:
            raise BackendError(f"{device.name} has no memory for a second embedding table")
        self._weights = DeviceTensors(device, [(width, vocab_size, F16), *((*shape, F32) for shape in shapes)])
        first_row: Floats = np.zeros((1, width), dtype=np.float32)  # a token without a prediction reads it
        canvas: Floats = np.zeros(self._num_rows, dtype=np.float32)
        columns = np.empty((width, vocab_size), dtype=np.float16)
        for start in range(0, vocab_size, _BLOCK_TOKENS):
            ids = np.arange(start, min(start + _BLOCK_TOKENS, vocab_size), dtype=np.int32)
            columns[:, ids] = table.rows(ids).T
        tensors = self._weights.tensors
        contents: list[npt.NDArray[Any]] = [columns, *parts, first_row, canvas]
        for tensor, content in zip(tensors[:-1], contents, strict=True):
            self._weights.put(tensor, content)
        self.tensors = (ctypes.c_void_p * len(tensors))(*tensors)
        """`dg_device` of gemma4_reduction.h."""

    def inputs(
        self, canvases: Sequence[TokenIds], records: Sequence[Rows | None], held: Sequence[Rows] = ()
    ) -> TokenIds:
        """The ids of N tokens, shape (N,); chooses `reads` and `writes`. The rows `held` belong to other canvases."""
        pairs = zip(canvases, records, strict=True)
        rows_by_canvas = [np.zeros(len(ids), dtype=np.int32) if rows is None else rows for ids, rows in pairs]
        self.reads = np.concatenate(rows_by_canvas)
        is_free = np.ones(self._num_rows, dtype=np.bool_)
        is_free[0] = False
        for rows in held:
            is_free[rows] = False
        # the graph reads all rows before it writes one
        self.writes = np.flatnonzero(is_free)[: len(self.reads)].astype(np.int64)
        if len(self.writes) < len(self.reads):
            raise RequestError("too many canvases of one prompt keep their predictions; send the prompt again")
        return np.concatenate(canvases)

    def close(self) -> None:
        """Frees its memory. Idempotent."""
        self._weights.close()
