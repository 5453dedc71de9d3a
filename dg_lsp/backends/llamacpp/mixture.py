"""A canvas's last prediction as few rows of the embedding table: per position, the tokens that hold most of it.

What a model is conditioned on is the sum of all embeddings, each in proportion to its probability. Nearly all of
that is in few of them, except while a canvas is still flat.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.plan import Flags, TokenIds
from dg_lsp.diffusion.denoiser import Floats, Prediction

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
