"""How a canvas's last prediction gets into its next pass: what is kept of it, and what the model reads then.

On the host few rows of the embedding table are summed, as they lie in the file; see `device_feedback` for a GPU.
"""

import ctypes
import functools
import hashlib
import math
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.errors import file_error
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.canvas.layout import Flags, TokenIds
from dg_lsp.canvas.spec import SideFile
from dg_lsp.diffusion.denoiser import Floats, Prediction
from dg_lsp.errors import ModelBrokenError, ModelNotFoundError, ModelUnsupportedError
from dg_lsp.gguf import F32, GGUFHeader, TensorType, read_header

Rows = npt.NDArray[np.uint8]

MAPPED_BYTES = 16 << 20
"""A smaller tensor is read, not mapped: then nobody who cuts its file short later can end this process."""


class _Traits(ctypes.Structure):
    """The beginning of `ggml_type_traits`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block_weights", ctypes.c_int64),
        ("block_weights_interleaved", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A matrix as it is stored, quantized or not."""

    raw: Rows
    """Shape (N, bytes of a row)."""
    kind: TensorType
    width: int
    """Numbers of a row."""

    @classmethod
    def of(cls, header: GGUFHeader, name: str, *, mapped_bytes: int = MAPPED_BYTES) -> "Tensor":
        """One of a file's, a vector as one row; mapped from so many bytes on.

        Raises:
            ModelUnsupportedError: there is none of that name, or in a number format that ggml cannot make float32.
        """
        stored = header.tensors.get(name)
        if stored is None:
            raise ModelUnsupportedError(f"{header.path} has no tensor {name}; repack the model again")
        if stored.kind != F32 and not _traits(stored.kind.number).to_float:
            raise ModelUnsupportedError(f"{header.path}: {name} cannot be read as {stored.kind.name}; use another type")
        rows = header.rows(name)
        return cls(rows if stored.size >= mapped_bytes else np.array(rows), stored.kind, stored.shape[-1])

    def floats(self) -> Floats:
        """All of it, shape (N, width)."""
        rows = np.empty((len(self.raw), self.width), dtype=np.float32)
        self.decode(slice(None), rows)
        return rows

    def decode(self, rows: npt.NDArray[np.int32] | slice, out: Floats) -> None:
        """Fills `out`, of shape (number of rows, width), with rows."""
        # kept in a variable: a temporary's address would dangle
        packed = np.ascontiguousarray(self.raw[rows])
        if self.kind == F32:
            out[:] = packed.view(np.float32)
        else:
            _traits(self.kind.number).to_float(packed.ctypes.data, out.ctypes.data, out.size)


@functools.cache
def _traits(kind: int) -> Any:
    """ggml's own record of a number format."""
    function = library().ggml.ggml_get_type_traits
    function.restype, function.argtypes = ctypes.POINTER(_Traits), [ctypes.c_int]
    return function(kind).contents


TENSOR = "token_embd.weight"

_PIECE_ROWS = 256
"""Rows that one thread decodes at a time: 3 MB at 2,816 numbers each, which a core's own cache holds."""


class EmbeddingTable:
    """Rows stay in the file as they are stored, and are made float32 where they are asked for. One thread only."""

    def __init__(self, header: GGUFHeader, vocab_size: int, width: int, *, threads: int) -> None:
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


MASS = 0.99
"""Probability that the rows kept for a position hold at least. Errors follow the mass that is left out, not the number
of rows."""
_DENSE_SHARE = 0.25
"""Share of the vocabulary from which on all of it is summed: neighbouring rows decode faster than chosen ones."""
_FIRST_LEVEL = np.float32(1 / 8)
_NEXT_LEVEL = np.float32(1 / 16)


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Probabilities of the same U tokens at L positions."""

    ids: TokenIds | None
    """Shape (U,), ascending; None means the whole vocabulary."""
    shares: Floats
    """Shape (L, U); each row adds up to 1."""


def mixture(weights: Floats, prediction: Prediction, mass: float = MASS) -> Mixture:
    """What holds at least `mass` at every position; what one position needs is taken along for the others.

    Args:
        weights: of all V tokens, the best with 1; shape (L, V).
        prediction: of the same distributions.
        mass: 1 keeps everything.
    """
    vocab_size = weights.shape[1]
    needed: Flags = np.zeros(vocab_size, dtype=np.bool_)
    is_sure = prediction.confidence >= mass  # the best token alone is enough
    needed[prediction.argmax_ids[is_sure]] = True
    for position in np.flatnonzero(~is_sure):
        total = 1 / prediction.confidence[position]
        needed[_kept(weights[position], total, prediction.entropy[position], mass)] = True
    ids = np.flatnonzero(needed).astype(np.int32)
    is_dense = len(ids) > _DENSE_SHARE * vocab_size
    kept = weights if is_dense else weights[:, ids]
    return Mixture(None if is_dense else ids, kept / kept.sum(axis=1, keepdims=True))


def _kept(weights: Floats, total: np.float32, entropy: np.float32, mass: float) -> npt.NDArray[np.intp]:
    """The fewest tokens that hold the mass, or somewhat more of them where there are very many."""
    vocab_size = len(weights)
    # tokens under this probability cannot hold more than the rest all together
    lowest = np.float32((1 - mass) / vocab_size)
    level = max(_FIRST_LEVEL * np.exp(-entropy), lowest)
    while True:
        ids = np.flatnonzero(weights >= level * total)
        kept = weights[ids]
        if kept.sum(dtype=np.float64) >= mass * float(total) or level <= lowest:
            break
        level = max(level * _NEXT_LEVEL, lowest)
    if len(ids) > _DENSE_SHARE * vocab_size:
        return ids
    order = np.argsort(-kept)
    held = np.cumsum(kept[order], dtype=np.float64)
    count = int(held.searchsorted(mass * float(total))) + 1
    fewest: npt.NDArray[np.intp] = ids[order[:count]]
    return fewest


_CURVE = math.sqrt(2 / math.pi)


class SelfConditioning:
    """The network: a gated MLP between two norms, H numbers wide with M inside."""

    def __init__(self, header: GGUFHeader, width: int, epsilon: float) -> None:
        """`epsilon` is the model's own, of all its norms.

        Raises:
            ModelUnsupportedError: a tensor is missing, or does not fit a model so wide.
        """
        self.epsilon = np.float32(epsilon)
        norm, gate, up, down = (
            Tensor.of(header, f"self_cond.{name}").floats() for name in ("pre_norm", "gate", "up", "down")
        )
        if norm.shape != (1, width) or not gate.shape == up.shape == down.T.shape == (len(gate), width):
            raise ModelUnsupportedError(f"{header.path} does not fit its model; repack the model again")
        self.pre_norm = norm
        """Shape (1, H)."""
        self.gate_up = np.concatenate([gate, up])
        """Shape (2M, H): both read the same numbers, so one product makes them."""
        self.down = down
        """Shape (H, M)."""

    @classmethod
    def open(cls, model_path: Path, side: SideFile, width: int, epsilon: float) -> "SelfConditioning":
        """Reads the file beside the model's.

        Raises:
            ModelNotFoundError: it is not there.
            ModelUnsupportedError, ModelBrokenError, ModelError: it is another one, or damaged.
        """
        path = model_path.with_name(side.filename)
        if not path.is_file():
            raise ModelNotFoundError(
                f"{path} is missing: {model_path.name} needs it beside it; put it there or repack the model again"
            )
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise file_error(path, error) from error
        if found != side.sha256:
            raise ModelBrokenError(
                f"{path} is not the file that {model_path.name} was written with; repack the model again"
            )
        return cls(read_header(path), width, epsilon)

    def condition(self, embedded: Floats, soft: Floats | None) -> Floats:
        """What the model reads instead of its tokens' embeddings, shape (L, H).

        Args:
            embedded: the canvas's tokens, scaled as the model wants them; shape (L, H).
            soft: the last prediction, scaled likewise; None at a first step.
        """
        if soft is None:
            return self._normed(embedded)
        gate, up = np.hsplit((self._normed(soft) * self.pre_norm) @ self.gate_up.T, 2)
        return self._normed(embedded + (gelu(gate) * up) @ self.down.T)

    def _normed(self, rows: Floats) -> Floats:
        square = np.einsum("lh,lh->l", rows, rows) / np.float32(rows.shape[1])
        normed: Floats = rows / np.sqrt(square + self.epsilon)[:, None]
        return normed


def gelu(x: Floats) -> Floats:
    """The tanh approximation."""
    curve: Floats = np.float32(0.5) * x * (1 + np.tanh(np.float32(_CURVE) * (x + np.float32(0.044715) * x * x * x)))
    return curve


class Feedback(Protocol):
    """What is kept belongs to the one that kept it."""

    def keep(self, weights: Floats, prediction: Prediction) -> Any:
        """What the next pass needs of a prediction; weights of shape (L, V), the best token's being 1."""
        ...

    def condition(self, embedded: Floats, kept: Any) -> Floats:
        """What the model reads, shape (L, H); `embedded`, of that shape, are the tokens' own embeddings, scaled."""
        ...

    def close(self) -> None:
        """Gives memory back. Harmless when repeated."""
        ...


class HostFeedback:
    """Sparse, by probability mass."""

    def __init__(self, table: EmbeddingTable, network: SelfConditioning, mass: float = MASS) -> None:
        self._table = table
        self._network = network
        self._mass = mass

    def keep(self, weights: Floats, prediction: Prediction) -> Mixture:
        """See `Feedback.keep`: the tokens that hold the mass. Nothing is summed before it is asked for."""
        return mixture(weights, prediction, self._mass)

    def condition(self, embedded: Floats, kept: Mixture) -> Floats:
        """See `Feedback.condition`."""
        soft = self._table.mix(kept.ids, kept.shares)
        return self._network.condition(embedded, soft * scale(soft.shape[1]))

    def close(self) -> None:
        """The table is not its own."""


def scale(width: int) -> np.float32:
    """Gemma's own of its embeddings, which llama.cpp applies to ids only."""
    return np.sqrt(np.float32(width))
