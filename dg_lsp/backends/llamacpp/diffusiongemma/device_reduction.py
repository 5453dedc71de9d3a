"""The reduction of a step's logits in llama.cpp's graph, and what the next step needs of them."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import DeviceFeedback, HostFeedback, Mixture, mixture
from dg_lsp.backends.llamacpp.library import reduction_functions
from dg_lsp.backends.llamacpp.reduction import NEVER, NO_NUMBERS, inverse_temperature, weigh
from dg_lsp.canvas.layout import Flags, TokenIds, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Floats, Prediction, Rng, TopK
from dg_lsp.errors import BackendError
from dg_lsp.runtime import COMMAND

NUM_TOP = 64
"""Tokens of a position that leave the graph with their logits for a sum on the host."""
REDUCTION_ARRAYS = 6
"""Arrays of the size of the logits that a device may hold. ggml may end the process if one cannot be allocated."""
NUM_FACTS = 6
"""Numbers of a packed row before them."""
_PACKED, _INPUT, _LOGITS, _HISTORY = range(4)
_OFF, _BY_ROWS, _BY_OPERATIONS = range(3)
"""Values of `dg_mode`: one function over the rows on a CPU, or ggml's operations on a device."""

Decode = Callable[[], None]
"""One decode of canvases whose tokens all need a prediction."""


class ChainStep(ctypes.Structure):
    """`dg_chain` of gemma4_reduction.h: a step of one canvas after which the device chooses the next canvas."""

    _fields_ = (
        ("is_first", ctypes.c_int),
        ("bound", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("frozen", "noise", "history")),
    )

    def __init__(self, number: int, frozen: Flags, noise: TokenIds, entropy_bound: float) -> None:
        """`number` counts from 0; the noise has the ids of positions that are not accepted, shape (L,)."""
        rows = np.arange(number * len(noise), (number + 1) * len(noise), dtype=np.int64)
        self._arrays = (frozen.astype(np.float32), noise.astype(np.float32), rows)  # they must live as long as the step
        super().__init__(number == 0, entropy_bound, *(values.ctypes.data for values in self._arrays))


class GraphReduction:
    """Predictions of a decode, from a few numbers of each position instead of its logits.

    Tokens are drawn from the whole vocabulary in the graph, or by the host from the best ones, which leave the graph
    with their logits. With a feedback on a device, the graph also sums the embeddings of all tokens, and keeps the sums
    there. Otherwise the host sums those of the `NUM_TOP` best tokens where they hold enough of the probability, and
    reads the logits of the other positions; with a `TopK` it sums those of its tokens only.
    """

    def __init__(self, context: LlamaContext, feedback: HostFeedback | DeviceFeedback, spec: ModelSpec) -> None:
        self.feedback = feedback
        self._context = context
        self._native = reduction_functions()
        self._vocab_size = spec.vocab_size
        self._num_top = 0 if isinstance(feedback, DeviceFeedback) else min(NUM_TOP, spec.vocab_size)
        self._banned = np.array(sorted(set(spec.banned_ids)), dtype=np.int32)
        self._packed: Floats = np.empty((0, 0), dtype=np.float32)
        """Of the last reduction, shape (N, `NUM_FACTS`)."""
        self._best = self._packed, token_ids([])
        """Of the last reduction, shape (N, K): probabilities and ids of the best tokens, on the host the best first."""
        self._is_limited = False  # the last reduction drew from these tokens only
        self._temperature = 0.0

    def reduce(
        self, decode: Decode, num_rows: int, temperature: float, rng: Rng, top_k: TopK | None = None
    ) -> Prediction:
        """Decodes, and reduces the logits of all `num_rows` tokens. Raises `BackendError`."""
        num_top = self._num_top
        if top_k is not None and top_k.size > num_top:  # a power of two: llama.cpp builds a graph for each number
            num_top = min(1 << (top_k.size - 1).bit_length(), self._vocab_size)
        uniforms = rng.random(num_rows if temperature else 0).astype(np.float32)
        self.compute(decode, temperature, uniforms, num_top)
        packed = self._read(_PACKED, slice(0, num_rows), NUM_FACTS + 2 * num_top)
        self._packed, top_logits, top_ids = np.split(packed, (NUM_FACTS, NUM_FACTS + num_top), axis=1)
        self._temperature = temperature
        self._is_limited = top_k is not None
        prediction = _prediction(self._packed, temperature)
        if top_k is not None:  # a device returns them in no order
            best_first = np.argsort(-top_logits, axis=1, kind="stable")[:, : top_k.size]
            top_logits, top_ids = (np.take_along_axis(values, best_first, axis=1) for values in (top_logits, top_ids))
        log_z, best = self._packed[:, :1], self._packed[:, 4:5]
        top_shares = np.exp((top_logits - best) * inverse_temperature(temperature) - log_z)
        self._best = top_shares, top_ids.astype(np.int32)
        return prediction if top_k is None else self._limited(prediction, uniforms, top_k)

    def _limited(self, prediction: Prediction, uniforms: Floats, top_k: TopK) -> Prediction:
        """The prediction with tokens drawn from the best ones, whose probabilities are 1 without the tail."""
        shares, ids = self._best
        if not top_k.counts_tail:
            renormed = shares / shares.sum(axis=1, keepdims=True)
            entropy = -(renormed * np.log(np.maximum(renormed, np.finfo(np.float32).tiny))).sum(axis=1)
            prediction = replace(prediction, entropy=np.maximum(entropy, 0.0))
        if not len(uniforms):
            return prediction
        sums = shares.cumsum(axis=1, dtype=np.float64)
        rows = np.arange(len(ids))
        # float32 rounds up to 1, which is beyond the last token
        wanted = np.minimum(uniforms, np.nextafter(np.float32(1), np.float32(0)))[:, None] * sums[:, -1:]
        places = np.count_nonzero(sums <= wanted, axis=1)
        return replace(prediction, sampled_ids=ids[rows, places], sampled_confidence=shares[rows, places])

    def history(self, num_rows: int, temperatures: Sequence[float]) -> list[Prediction]:
        """The predictions of the last chain, of `num_rows` tokens and one step for each temperature."""
        packed = self._read(_HISTORY, slice(0, num_rows * len(temperatures)), NUM_FACTS)
        return list(map(_prediction, np.split(packed, len(temperatures)), temperatures))

    def compute(
        self, decode: Decode, temperature: float, uniforms: Floats, num_top: int = 0, chain: ChainStep | None = None
    ) -> None:
        """Decodes, and draws tokens by random numbers, shape (N,); `num_top` of each row leave the graph too."""
        scale = inverse_temperature(temperature)
        arrays = (_address(uniforms), len(uniforms), _address(self._banned), len(self._banned))
        if isinstance(feedback := self.feedback, DeviceFeedback):
            rows = (_address(feedback.reads), _address(feedback.writes))
            last = None if chain is None else ctypes.byref(chain)
            self._native.dg_reduction_set(_BY_OPERATIONS, num_top, feedback.tensors, scale, *arrays, *rows, last)
        else:
            self._native.dg_reduction_set(_BY_ROWS, num_top, None, scale, *arrays, None, None, None)
        try:
            decode()
        finally:  # other decodes need logits or nothing
            self._native.dg_reduction_set(_OFF, 0, None, 1.0, None, 0, None, 0, None, None, None)

    def record(self, rows: slice) -> Any:
        """What `feedback.inputs` needs of a canvas at these rows of the last reduction."""
        if isinstance(self.feedback, DeviceFeedback):
            return self.feedback.writes[rows].astype(np.int32)
        return self.mixture(rows, self.feedback.mass)

    def mixture(self, rows: slice, mass: float) -> Mixture:
        """The tokens with this probability mass at these rows of the last reduction."""
        top_shares, top_ids = self._best[0][rows], self._best[1][rows]
        short = np.flatnonzero((top_shares.sum(axis=1) < mass) & (not self._is_limited))
        weights = self._weights(rows.start + short)
        return mixture(top_ids, top_shares, short, weights, self._packed[rows][short, 1], mass, self._vocab_size)

    def layer_inputs(self, num_rows: int, width: int) -> Floats:
        """What the first layer read in the last reduction, shape (N, width)."""
        return self._read(_INPUT, slice(0, num_rows), width)

    def logits(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> Floats:
        """Logits of rows of the last reduction, shape (R, V); banned tokens have any value."""
        logits: Floats = np.empty((len(rows), self._vocab_size), dtype=np.float32)
        for number, row in enumerate(rows):
            self._read(_LOGITS, slice(row, row + 1), self._vocab_size, out=logits[number : number + 1])
        return logits

    def _weights(self, rows: npt.NDArray[np.intp]) -> Floats:
        """Probabilities of all tokens relative to the best one, shape (R, V), in place of the logits."""
        weights = self.logits(rows)
        weights[:, self._banned] = NEVER
        weigh(weights, self._packed[rows, 4], self._temperature, weights)
        return weights

    def _read(self, which: int, rows: slice, width: int, out: Floats | None = None) -> Floats:
        count = rows.stop - rows.start
        values: Floats = np.empty((count, width), dtype=np.float32) if out is None else out
        arguments = (self._context.native, which, values.ctypes.data, rows.start, count, width)
        if self._native.dg_reduction_read(*arguments) != count:
            raise BackendError(
                f"the installed llama.cpp computed the step, not the changed one; run: {COMMAND} --backend cpu"
            )
        return values


def _prediction(packed: Floats, temperature: float) -> Prediction:
    """From rows of the graph; raises `BackendError` if they are not numbers."""
    log_z, entropy, best_ids, drawn_ids, best, drawn = packed[:, :NUM_FACTS].T
    if not np.isfinite(packed[:, :NUM_FACTS]).all():
        raise BackendError(NO_NUMBERS)
    argmax_ids = best_ids.astype(np.int32)
    confidence = np.exp(-log_z)
    sampled_confidence = np.exp((drawn - best) * inverse_temperature(temperature) - log_z)
    # rounding can put the draw on a token without probability
    is_drawn = (sampled_confidence > 0) & (temperature > 0)
    return Prediction(
        argmax_ids=argmax_ids,
        sampled_ids=np.where(is_drawn, drawn_ids.astype(np.int32), argmax_ids),
        confidence=confidence,
        entropy=np.maximum(entropy, 0.0, dtype=np.float32),
        sampled_confidence=np.where(is_drawn, sampled_confidence, confidence),
    )


def _address(values: npt.NDArray[Any]) -> int | None:
    """Of the first number; the array must live longer. None without numbers."""
    return values.ctypes.data if len(values) else None


_AGREEMENT = 0.01
"""Largest accepted difference of entropies, in nats, and of the probability of the best token."""
_INPUT_AGREEMENT = 0.05
"""The same of the layers' input, root mean square, as a share of it: 0.01 of the probability may be left out."""


def agrees(step: tuple[Prediction, Floats], expected: tuple[Prediction, Floats]) -> bool:
    """Whether a device computes what the host computes: the prediction of a step, and the input of its layers."""
    (prediction, layer_input), (expected_prediction, expected_input) = step, expected
    entropy = prediction.entropy - expected_prediction.entropy
    confidence = prediction.confidence - expected_prediction.confidence
    error = np.sqrt(np.square(layer_input - expected_input).mean())
    size = np.sqrt(np.square(expected_input).mean())
    # False for NaN
    is_close = (np.abs(np.concatenate([entropy, confidence])) <= _AGREEMENT).all()
    return bool(is_close and error <= _INPUT_AGREEMENT * size)
