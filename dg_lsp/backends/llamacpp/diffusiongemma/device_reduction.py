"""The reduction of a step's logits in llama.cpp's graph, and what the next step needs of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.diffusiongemma.runtime_check import functions
from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import DeviceFeedback, HostFeedback, mixture
from dg_lsp.backends.llamacpp.reduction import (
    NEVER,
    NO_NUMBERS,
    Reducer,
    inverse_temperature,
)
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Floats, Prediction, Rng, TopK
from dg_lsp.errors import BackendError
from dg_lsp.runtime import COMMAND

NUM_TOP = 64
"""Tokens of a position that leave the graph with their logits for a sum on the host."""
REDUCTION_ARRAYS = 6
"""Arrays of the size of the logits that a device may hold. ggml may end the process if one cannot be allocated."""
_NUM_FACTS = 6
"""Numbers of a packed row before them."""
_PACKED, _FEEDBACK, _LOGITS = range(3)
_OFF, _BY_ROWS, _BY_OPERATIONS = range(3)
"""Values of `dg_mode`: one function over the rows on a CPU, or ggml's operations on a device."""

Decode = Callable[[], None]
"""One decode of canvases whose tokens all need a prediction."""


class GraphReduction:
    """Predictions of a decode, from a few numbers of each position instead of its logits.

    Tokens are drawn from the whole vocabulary in the graph, or by the host from the best ones, which leave the graph
    with their logits. With a feedback on a device, the graph also sums the embeddings of all tokens, and one embedding
    of each position is read. Otherwise the host sums those of the `NUM_TOP` best tokens where they hold enough of the
    probability, and reads the logits of the other positions; with a `TopK` it sums those of its tokens only.
    """

    def __init__(
        self, context: LlamaContext, reducer: Reducer, feedback: HostFeedback | DeviceFeedback, spec: ModelSpec
    ) -> None:
        self.feedback = feedback
        self._context = context
        self._reducer = reducer
        self._native = functions()
        self._vocab_size = spec.vocab_size
        self._table = feedback.columns if isinstance(feedback, DeviceFeedback) else None
        self._num_top = 0 if isinstance(feedback, DeviceFeedback) else min(NUM_TOP, spec.vocab_size)
        self._banned = np.array(sorted(set(spec.banned_ids)), dtype=np.int32)
        self._bias: Floats = np.zeros(spec.vocab_size if len(self._banned) else 0, dtype=np.float32)
        self._bias[self._banned] = NEVER
        self._packed: Floats = np.empty((0, 0), dtype=np.float32)
        """Of the last reduction, shape (N, `_NUM_FACTS`)."""
        self._best = self._packed, token_ids([])
        """Of the last reduction, shape (N, K): probabilities of the best tokens, the highest first, and their ids."""
        self._is_limited = False  # the last reduction drew from these tokens only
        self._temperature = 0.0
        self._logits: Floats = np.empty((0, spec.vocab_size), dtype=np.float32)
        """Memory for rows."""

    def reduce(
        self, decode: Decode, num_rows: int, temperature: float, rng: Rng, top_k: TopK | None = None
    ) -> Prediction:
        """Decodes, and reduces the logits of all `num_rows` tokens. Raises `BackendError`."""
        mode = _BY_ROWS if self._table is None else _BY_OPERATIONS
        num_top = self._num_top
        if top_k is not None and top_k.size > num_top:  # a power of two: llama.cpp builds a graph for each number
            num_top = min(1 << (top_k.size - 1).bit_length(), self._vocab_size)
        scale = inverse_temperature(temperature)
        uniforms = rng.random(num_rows if temperature else 0).astype(np.float32)
        arrays = (_address(uniforms), len(uniforms), _address(self._bias), _address(self._banned), len(self._banned))
        self._native.dg_reduction_set(mode, num_top, self._table, scale, *arrays)
        try:
            decode()
        finally:  # other decodes need logits or nothing
            self._native.dg_reduction_set(_OFF, 0, None, 1.0, None, 0, None, None, 0)
        packed = self._read(_PACKED, slice(0, num_rows), _NUM_FACTS + 2 * num_top)
        self._packed, top_logits, top_ids = np.split(packed, (_NUM_FACTS, _NUM_FACTS + num_top), axis=1)
        self._temperature = temperature
        self._is_limited = top_k is not None
        log_z, entropy, best_ids, drawn_ids, best, drawn = self._packed.T
        if not np.isfinite(self._packed).all():
            raise BackendError(NO_NUMBERS)
        if top_k is not None:
            if self._table is not None:  # a device returns them in no order
                order = np.argsort(-top_logits, axis=1)
                top_logits, top_ids = (np.take_along_axis(columns, order, axis=1) for columns in (top_logits, top_ids))
            top_logits, top_ids = top_logits[:, : top_k.size], top_ids[:, : top_k.size]
        top_shares = np.exp((top_logits - best[:, None]) * scale - log_z[:, None])
        self._best = top_shares, top_ids.astype(np.int32)
        argmax_ids = best_ids.astype(np.int32)
        confidence = np.exp(-log_z)
        sampled_confidence = np.exp((drawn - best) * scale - log_z)
        # rounding can put the draw on a token without probability
        is_drawn = (sampled_confidence > 0) & (temperature > 0)
        prediction = Prediction(
            argmax_ids=argmax_ids,
            sampled_ids=np.where(is_drawn, drawn_ids.astype(np.int32), argmax_ids),
            confidence=confidence,
            entropy=np.maximum(entropy, 0.0, dtype=np.float32),
            sampled_confidence=np.where(is_drawn, sampled_confidence, confidence),
        )
        return prediction if top_k is None else self._limited(prediction, uniforms, top_k)

    def _limited(self, prediction: Prediction, uniforms: Floats, top_k: TopK) -> Prediction:
        """The prediction with tokens drawn from the best ones, whose probabilities are 1 without the tail."""
        shares, ids = self._best
        sums = shares.cumsum(axis=1, dtype=np.float64)
        wanted = uniforms[:, None] * sums[:, -1:] if len(uniforms) else 0.0
        # rounding can put the number beyond the last token
        places = np.minimum((sums <= wanted).sum(axis=1), (shares > 0).sum(axis=1) - 1)
        rows = np.arange(len(ids))
        entropy = prediction.entropy
        if not top_k.counts_tail:
            renormed = (shares / sums[:, -1:]).astype(np.float32)
            entropy = -(renormed * np.log(np.maximum(renormed, np.finfo(np.float32).tiny))).sum(axis=1)
        confidence = shares[rows, places]
        return replace(prediction, sampled_ids=ids[rows, places], sampled_confidence=confidence, entropy=entropy)

    def record(self, rows: slice) -> Any:
        """What `feedback.condition` needs of a canvas at these rows of the last reduction."""
        if isinstance(self.feedback, DeviceFeedback):
            return self._read(_FEEDBACK, rows, self.feedback.width)
        top_shares, top_ids = self._best[0][rows], self._best[1][rows]
        short = np.flatnonzero((top_shares.sum(axis=1) < self.feedback.mass) & (not self._is_limited))
        weights = self._weights(rows.start + short)
        entropy = self._packed[rows][short, 1]
        return mixture(top_ids, top_shares, short, weights, entropy, self.feedback.mass, self._vocab_size)

    def logits(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> Floats:
        """Logits of rows of the last reduction, shape (R, V), until the next call; banned tokens have any value."""
        if len(self._logits) < len(rows):
            self._logits = np.empty((len(rows), self._vocab_size), dtype=np.float32)
        for number, row in enumerate(rows):
            self._read(_LOGITS, slice(row, row + 1), self._vocab_size, out=self._logits[number : number + 1])
        return self._logits[: len(rows)]

    def _weights(self, rows: npt.NDArray[np.intp]) -> Floats:
        """Probabilities of all tokens relative to the best one, shape (R, V)."""
        logits = self.logits(rows)
        logits[:, self._banned] = NEVER
        return self._reducer.weigh(logits, self._packed[rows, 4], self._temperature)

    def _read(self, which: int, rows: slice, width: int, out: Floats | None = None) -> Floats:
        count = rows.stop - rows.start
        values: Floats = np.empty((count, width), dtype=np.float32) if out is None else out
        arguments = (self._context.native, which, values.ctypes.data, rows.start, count, width)
        if self._native.dg_reduction_read(*arguments) != count:
            raise BackendError(
                f"the installed llama.cpp computed the step, not the changed one; run: {COMMAND} --backend cpu"
            )
        return values


def _address(values: npt.NDArray[Any]) -> int | None:
    """Of the first number; the array must live longer. None without numbers."""
    return values.ctypes.data if len(values) else None


_AGREEMENT = 0.01
"""Largest accepted difference of entropies, in nats, and of the probability of the best token."""
_INPUT_AGREEMENT = 0.05
"""The same of the next step's input, root mean square, as a share of it: 0.01 of the probability may be left out."""


def agrees(step: tuple[Prediction, Floats], expected: tuple[Prediction, Floats]) -> bool:
    """Whether a step with a device computes what it computes without one: predictions, and inputs of the next step."""
    (prediction, next_input), (expected_prediction, expected_input) = step, expected
    entropy = prediction.entropy - expected_prediction.entropy
    confidence = prediction.confidence - expected_prediction.confidence
    error = np.sqrt(np.square(next_input - expected_input).mean())
    size = np.sqrt(np.square(expected_input).mean())
    # False for NaN
    is_close = (np.abs(np.concatenate([entropy, confidence])) <= _AGREEMENT).all()
    return bool(is_close and error <= _INPUT_AGREEMENT * size)
