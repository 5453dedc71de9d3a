"""Logits to what a sampler needs: argmax, draw, confidence, entropy. numpy, float32, in place."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import Floats
from dg_lsp.errors import BackendError

_NEVER = np.float32(-1e9)
"""Below any logit, and still finite when divided by the lowest temperature: 0 * -inf would be no number."""
_LOWEST_TEMPERATURE = 1e-6
_BLOCK = 128


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """N positions, every array of shape (N,)."""

    argmax_ids: TokenIds
    sampled_ids: TokenIds
    confidence: Floats
    entropy: Floats
    unexpanded_ids: TokenIds | None = None
    unexpanded_confidence: Floats | None = None
    """See `Prediction`."""

    def take(self, rows: npt.NDArray[np.intp] | slice) -> "Reduced":
        """Only these positions; one that is named twice stands there twice."""
        ids, confidence = self.unexpanded_ids, self.unexpanded_confidence
        return Reduced(
            self.argmax_ids[rows],
            self.sampled_ids[rows],
            self.confidence[rows],
            self.entropy[rows],
            None if ids is None else ids[rows],
            None if confidence is None else confidence[rows],
        )


class Reducer:
    """Holds the memory that a step's probabilities are computed in."""

    def __init__(self, banned_ids: tuple[int, ...], expand_id: int | None = None) -> None:
        """With `expand_id`, says also what would be best without that token."""
        self._banned = np.array(banned_ids, dtype=np.intp)
        self._expand_id = expand_id
        self._scratch: Floats = np.empty((0, 0), dtype=np.float32)

    @classmethod
    def of(cls, spec: ModelSpec) -> "Reducer":
        """As a model's spec wants it."""
        return cls(spec.banned_ids, spec.sampling.expand_id if isinstance(spec.sampling, MaskSampling) else None)

    def reduce(self, logits: Floats, temperature: float, rng: np.random.Generator) -> Reduced:
        """Reduces logits of shape (N, V), which are overwritten.

        Raises:
            BackendError: the model computed something that is not a number.
        """
        if len(self._banned):
            logits[:, self._banned] = _NEVER
        argmax = logits.argmax(axis=1)
        best = logits[np.arange(len(logits)), argmax]
        if not np.isfinite(best).all():
            raise BackendError("the model computed no numbers; its file may be damaged, try another one")
        # Every pass over (N, V) counts here: they are most of what a step costs beside the decode.
        np.subtract(logits, best[:, None], out=logits)
        if temperature not in (0.0, 1.0):
            np.multiply(logits, np.float32(1 / max(temperature, _LOWEST_TEMPERATURE)), out=logits)
        weights = np.exp(logits, out=self._memory(logits.shape))
        total = weights.sum(axis=1)
        # -sum p log p with p = w / total and log p = logit - log total
        entropy = np.log(total) - np.einsum("nv,nv->n", weights, logits) / total
        ids = argmax.astype(np.int32)
        unexpanded = (None, None) if self._expand_id is None else _without(self._expand_id, weights, total, ids)
        return Reduced(
            argmax_ids=ids,
            sampled_ids=ids if temperature == 0 else draw(weights, argmax, rng),
            confidence=np.reciprocal(total),
            entropy=np.maximum(entropy, 0.0, dtype=np.float32),
            unexpanded_ids=unexpanded[0],
            unexpanded_confidence=unexpanded[1],
        )

    def weights(self, num_rows: int) -> Floats:
        """Probabilities of what was reduced last, the best token's being 1; shape (num_rows, V), until the next."""
        return self._scratch[:num_rows]

    def _memory(self, shape: tuple[int, ...]) -> Floats:
        if self._scratch.shape[0] < shape[0] or self._scratch.shape[1] != shape[1]:
            self._scratch = np.empty(shape, dtype=np.float32)
        return self._scratch[: shape[0]]


def _without(token: int, weights: Floats, total: Floats, best_ids: TokenIds) -> tuple[TokenIds, Floats]:
    """The best of the other tokens, and its probability among them; weights of shape (N, V), all else of shape (N,)."""
    ids, of_token = best_ids.copy(), weights[:, token].copy()
    rows = np.flatnonzero(ids == token)
    weights[rows, token] = 0.0
    ids[rows] = weights[rows].argmax(axis=1)
    confidence = weights[np.arange(len(ids)), ids] / np.maximum(total - of_token, np.finfo(np.float32).tiny)
    weights[rows, token] = of_token[rows]
    return ids, np.minimum(confidence, 1.0, dtype=np.float32)


def draw(weights: Floats, argmax: npt.NDArray[np.intp], rng: np.random.Generator) -> TokenIds:
    """One token a row, in proportion to weights of shape (N, V); shape (N,).

    Inverts the cumulative sum, first over blocks of tokens, then inside one: a single random number a row, where
    adding Gumbel noise would need V of them.
    """
    num_rows, vocab_size = weights.shape
    starts = np.arange(0, vocab_size, _BLOCK)
    blocks = np.add.reduceat(weights, starts, axis=1).cumsum(axis=1, dtype=np.float64)
    wanted = rng.random(num_rows) * blocks[:, -1]
    drawn = argmax.astype(np.int32)
    for row in range(num_rows):
        block = int(blocks[row].searchsorted(wanted[row], side="right"))
        first = block * _BLOCK
        inside = weights[row, first : first + _BLOCK].cumsum(dtype=np.float64)
        rest = wanted[row] - (blocks[row, block - 1] if block else 0.0)
        found = int(inside.searchsorted(rest, side="right"))
        # Rounding can leave the number just beyond the last token; the argmax stays then.
        if found < len(inside) and weights[row, first + found] > 0:
            drawn[row] = first + found
    return drawn
