"""The reduction of logits to predictions on the host, and parts of predictions."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.layout import TokenIds
from dg_lsp.diffusion.denoiser import Allowed, Floats, Prediction, Rng
from dg_lsp.errors import BackendError

Uniforms = npt.NDArray[np.floating]
"""Random numbers from 0 to 1, shape (N,)."""
NEVER = np.float32(-1e9)
"""Lower than any logit, and finite when divided by the lowest temperature: 0 * -inf is not a number."""
_LOWEST_TEMPERATURE = 1e-6
_BLOCK = 128
_SHARED_LOGITS = 1 << 20
"""Logits from which on the threads share a reduction; fewer take a millisecond or less."""
NO_NUMBERS = "the model computed no numbers; its file may be damaged, try another one"


def inverse_temperature(temperature: float) -> np.float32:
    """The factor of the logits; 1 at temperature 0, where samples are the best tokens."""
    return np.float32(1 / max(temperature or 1.0, _LOWEST_TEMPERATURE))


class Reducer:
    """Reduces logits to predictions. Owns the memory for a step's probabilities."""

    def __init__(self, banned_ids: tuple[int, ...], expand_id: int | None = None, threads: int = 1) -> None:
        """With `expand_id`, predictions also have the best token other than that one."""
        self._banned = np.array(banned_ids, dtype=np.intp)
        self._expand_id = expand_id
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "reduction")  # starts its threads with the first large reduction
        self._scratch: Floats = np.empty((0, 0), dtype=np.float32)

    def reduce(self, logits: Floats, temperature: float, rng: Rng, allowed: Allowed | None = None) -> Prediction:
        """Reduces logits of shape (N, V), which are overwritten; raises `BackendError` if they are not numbers."""
        for row, ids in (allowed or {}).items():
            kept = logits[row, ids]
            logits[row] = NEVER
            logits[row, ids] = kept
        uniforms = rng.random(len(logits) if temperature else 0)
        weights = self._reserved(logits.shape)
        num_parts = min(self._threads, len(logits)) if logits.size >= _SHARED_LOGITS else 1
        stops = [len(logits) * number // num_parts for number in range(num_parts + 1)]

        def reduced(start: int, stop: int) -> Prediction:
            rows = slice(start, stop)
            return self._reduced(logits[rows], weights[rows], temperature, uniforms[rows])

        if num_parts == 1:
            return reduced(0, len(logits))
        # numpy releases the GIL in its loops over numbers
        return join(list(self._pool.map(reduced, stops[:-1], stops[1:])))

    def _reduced(self, logits: Floats, weights: Floats, temperature: float, uniforms: Uniforms) -> Prediction:
        if len(self._banned):
            logits[:, self._banned] = NEVER
        argmax = logits.argmax(axis=1)
        best = logits[np.arange(len(logits)), argmax]
        if not np.isfinite(best).all():
            raise BackendError(NO_NUMBERS)
        weigh(logits, best, temperature, weights)
        total = weights.sum(axis=1)
        # -sum p log p with p = w / total and log p = logit - log total
        entropy = np.log(total) - np.einsum("nv,nv->n", weights, logits) / total
        ids = argmax.astype(np.int32)
        unexpanded = (None, None) if self._expand_id is None else _without(self._expand_id, weights, total, ids)
        sampled = ids if temperature == 0 else draw(weights, argmax, uniforms)
        return Prediction(
            argmax_ids=ids,
            sampled_ids=sampled,
            confidence=np.reciprocal(total),
            entropy=np.maximum(entropy, 0.0, dtype=np.float32),
            sampled_confidence=weights[np.arange(len(ids)), sampled] / total,
            unexpanded_ids=unexpanded[0],
            unexpanded_confidence=unexpanded[1],
        )

    def _reserved(self, shape: tuple[int, ...]) -> Floats:
        """Memory for probabilities."""
        if self._scratch.shape[0] < shape[0] or self._scratch.shape[1] != shape[1]:
            self._scratch = np.empty(shape, dtype=np.float32)
        return self._scratch[: shape[0]]


def weigh(logits: Floats, best: Floats, temperature: float, weights: Floats) -> None:
    """Writes probabilities relative to the best token, whose logits are `best`, into `weights`; shape (N, V).

    `logits` become the tempered ones less the best one, unless `weights` are the same array.
    """
    # each pass over (N, V) counts: they are most of a step's cost besides the decode
    np.subtract(logits, best[:, None], out=logits)
    if (scale := inverse_temperature(temperature)) != 1:
        np.multiply(logits, scale, out=logits)
    np.exp(logits, out=weights)


def _without(token: int, weights: Floats, total: Floats, best_ids: TokenIds) -> tuple[TokenIds, Floats]:
    """The best of the other tokens, and its probability among them; shape (N,) each."""
    ids = best_ids.copy()
    of_token = weights[:, token].copy()
    rows = np.flatnonzero(ids == token)
    weights[rows, token] = 0.0
    ids[rows] = weights[rows].argmax(axis=1)
    confidence = weights[np.arange(len(ids)), ids] / np.maximum(total - of_token, np.finfo(np.float32).tiny)
    weights[rows, token] = of_token[rows]
    return ids, np.minimum(confidence, 1.0, dtype=np.float32)


def draw(weights: Floats, argmax: npt.NDArray[np.intp], uniforms: Uniforms) -> TokenIds:
    """Draws one token for each row of weights, shape (N, V), in proportion to them, by a random number for each row.

    Inverts the cumulative sum, first over blocks of tokens, then inside one block. Gumbel noise would take V random
    numbers for each row.
    """
    num_rows, vocab_size = weights.shape
    starts = np.arange(0, vocab_size, _BLOCK)
    blocks = np.add.reduceat(weights, starts, axis=1).cumsum(axis=1, dtype=np.float64)
    wanted = uniforms * blocks[:, -1]
    drawn = argmax.astype(np.int32)
    for row in range(num_rows):
        block = int(blocks[row].searchsorted(wanted[row], side="right"))
        first = block * _BLOCK
        inside = weights[row, first : first + _BLOCK].cumsum(dtype=np.float64)
        rest = wanted[row] - (blocks[row, block - 1] if block else 0.0)
        offset = int(inside.searchsorted(rest, side="right"))
        # rounding can put the number beyond the last token; then the argmax stays
        if offset < len(inside) and weights[row, first + offset] > 0:
            drawn[row] = first + offset
    return drawn


def take(prediction: Prediction, rows: npt.NDArray[np.intp] | slice) -> Prediction:
    """The prediction at some positions."""
    return _combined(lambda values: values[0][rows], prediction)


def join(predictions: Sequence[Prediction]) -> Prediction:
    """Predictions of the same model, one after the other."""
    return _combined(np.concatenate, *predictions)


def _combined(function: Callable[[list[Any]], Any], *predictions: Prediction) -> Prediction:
    columns = ([getattr(prediction, field.name) for prediction in predictions] for field in fields(Prediction))
    made: list[Any] = [None if values[0] is None else function(values) for values in columns]
    return Prediction(*made)
