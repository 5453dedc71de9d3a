"""The reduction of a step's logits in llama.cpp's graph, and the choice between it and the host.

The functions are those of `models/gemma4_reduction.h`, which only the changed llama.cpp has. No GPU has run `Mode.OPS`:
it is tested on ggml's CPU device.
"""

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.backends.llamacpp.context import LlamaContext
from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import MASS, DeviceFeedback, HostFeedback, top_mixture
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.backends.llamacpp.reduction import NEVER, NO_NUMBERS, Reducer, inverse_temperature, take
from dg_lsp.canvas.layout import TokenIds
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.diffusion.denoiser import Floats, Prediction
from dg_lsp.errors import BackendError

NUM_TOP = 64
"""Tokens of a position that leave the device with their logits for a sum on the host."""
REDUCTION_ARRAYS = 6
"""Arrays of the size of the logits that `Mode.OPS` may hold on the device. ggml may end the process if one fails."""
_NUM_FACTS = 6
"""Numbers of a packed row before them."""
_VERSION = 2
_PACKED, _FEEDBACK, _LOGITS = range(3)


class Mode(IntEnum):
    """Where logits are reduced; the values are those of `dg_mode`."""

    HOST = 0  # all logits are copied; numpy
    ROWS = 1  # one function over the rows of a CPU, with all threads of the step
    OPS = 2  # ggml's operations, on any device


@functools.cache
def functions() -> Any:
    """The native functions; None if the loaded llama.cpp has none, or others."""
    native = library().api._lib  # noqa: SLF001
    if not hasattr(native, "dg_reduction_version") or native.dg_reduction_version() != _VERSION:
        return None
    number, pointer = ctypes.c_int, ctypes.c_void_p
    native.dg_reduction_set.argtypes = [
        *(number, number, pointer, ctypes.c_float),
        *(pointer, number, pointer, pointer, number),
    ]
    native.dg_reduction_set.restype = None
    native.dg_reduction_read.argtypes = [pointer, number, pointer, number, number, number]
    return native


Decode = Callable[[], None]
"""One decode of canvases whose tokens all need a prediction."""


class HostReduction:
    """Predictions of a decode, and what the next pass needs of them; all logits are copied to the host."""

    mode: Mode = Mode.HOST
    """Where it computes."""

    def __init__(self, context: LlamaContext, reducer: Reducer, feedback: HostFeedback | DeviceFeedback) -> None:
        self._context = context
        self._reducer = reducer
        self._feedback = feedback

    def reduce(self, decode: Decode, num_rows: int, temperature: float, rng: np.random.Generator) -> Prediction:
        """Decodes, and reduces the logits of all tokens, shape (num_rows, V). Raises `BackendError`."""
        decode()
        return self._reducer.reduce(self._context.logits(num_rows), temperature=temperature, rng=rng)

    def record(self, rows: slice, prediction: Prediction) -> Any:
        """See `HostFeedback.record`; of a canvas at these rows of the last reduction, with its prediction."""
        return self._feedback.record(self._reducer.weights(rows.stop)[rows], prediction)


class GraphReduction(HostReduction):
    """Reads a few numbers of a position instead of its logits.

    Draws from the whole vocabulary on the device. With `Mode.OPS` and a feedback on the device, the embeddings of all
    tokens are summed there, and one embedding of a position is read. Otherwise the host sums those of the `NUM_TOP`
    best tokens where they hold enough of the probability, and reads the logits of the other positions.
    """

    def __init__(
        self,
        context: LlamaContext,
        reducer: Reducer,
        feedback: HostFeedback | DeviceFeedback,
        spec: ModelSpec,
        mode: Mode,
    ) -> None:
        """Requires `functions`."""
        super().__init__(context, reducer, feedback)
        self.mode = mode
        self._native = functions()
        self._vocab_size = spec.vocab_size
        self._width = feedback.width
        self._embedding = feedback.columns if mode is Mode.OPS and isinstance(feedback, DeviceFeedback) else None
        self._num_top = 0 if self._embedding is not None else min(NUM_TOP, spec.vocab_size)
        self._mass = feedback.mass if isinstance(feedback, HostFeedback) else MASS
        self._banned = np.array(sorted(set(spec.banned_ids)), dtype=np.int32)
        self._bias: Floats = np.zeros(spec.vocab_size if len(self._banned) else 0, dtype=np.float32)
        self._bias[self._banned] = NEVER
        self._packed: Floats = np.empty((0, 0), dtype=np.float32)
        """Of the last reduction, shape (N, `_NUM_FACTS` + 2 `NUM_TOP`)."""
        self._temperature = 0.0
        self._logits: Floats = np.empty((0, spec.vocab_size), dtype=np.float32)
        """Memory for rows."""

    def reduce(self, decode: Decode, num_rows: int, temperature: float, rng: np.random.Generator) -> Prediction:
        """See `HostReduction.reduce`."""
        scale = inverse_temperature(temperature)
        uniforms = rng.random(num_rows if temperature else 0).astype(np.float32)
        arrays = (_address(uniforms), len(uniforms), _address(self._bias), _address(self._banned), len(self._banned))
        self._native.dg_reduction_set(self.mode, self._num_top, self._embedding, scale, *arrays)
        try:
            decode()
        finally:  # other decodes need logits or nothing
            self._native.dg_reduction_set(Mode.HOST, 0, None, 1.0, None, 0, None, None, 0)
        self._packed = self._read(_PACKED, slice(0, num_rows), _NUM_FACTS + 2 * self._num_top)
        self._temperature = temperature
        log_z, entropy, best_ids, drawn_ids, best, drawn = self._packed[:, :_NUM_FACTS].T
        if not np.isfinite(self._packed[:, :_NUM_FACTS]).all():
            raise BackendError(NO_NUMBERS)
        argmax_ids, confidence = best_ids.astype(np.int32), np.exp(-log_z)
        sampled_confidence = np.exp((drawn - best) * scale - log_z)
        # rounding can put the draw on a token without probability
        is_drawn = (sampled_confidence > 0) & (temperature > 0)
        return Prediction(
            argmax_ids=argmax_ids,
            sampled_ids=np.where(is_drawn, drawn_ids.astype(np.int32), argmax_ids),
            confidence=confidence,
            entropy=np.maximum(entropy, 0.0, dtype=np.float32),
            sampled_confidence=np.where(is_drawn, sampled_confidence, confidence),
        )

    def record(self, rows: slice, prediction: Prediction) -> Any:
        """See `HostReduction.record`."""
        feedback = self._feedback
        if self._embedding is not None:
            return self._read(_FEEDBACK, rows, self._width)
        top = self._top(rows)
        short = np.flatnonzero(top[1].sum(axis=1) < self._mass)
        weights = self._weights(rows.start + short)
        kept = top_mixture(top, short, weights, take(prediction, short), self._mass, self._vocab_size)
        return feedback.mix(kept) if isinstance(feedback, DeviceFeedback) else kept

    def logits(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> Floats:
        """Logits of rows of the last reduction, shape (R, V), until the next call; banned tokens have any value."""
        if len(self._logits) < len(rows):
            self._logits = np.empty((len(rows), self._vocab_size), dtype=np.float32)
        found = self._logits[: len(rows)]
        for number, row in enumerate(rows):
            self._read(_LOGITS, slice(row, row + 1), self._vocab_size, out=found[number : number + 1])
        return found

    def _top(self, rows: slice) -> tuple[TokenIds, Floats]:
        """The best tokens of each row and their probabilities, the best first."""
        packed, count = self._packed[rows], self._num_top
        ids = packed[:, _NUM_FACTS + count :].astype(np.int32)
        scale = inverse_temperature(self._temperature)
        shares = np.exp((packed[:, _NUM_FACTS : _NUM_FACTS + count] - packed[:, 4:5]) * scale - packed[:, :1])
        if self.mode is Mode.OPS:
            order = np.argsort(-shares, axis=1)
            ids, shares = np.take_along_axis(ids, order, 1), np.take_along_axis(shares, order, 1)
        return ids, shares

    def _weights(self, rows: npt.NDArray[np.intp]) -> Floats:
        """Probabilities of all tokens relative to the best one, shape (R, V)."""
        logits = self.logits(rows)
        logits[:, self._banned] = NEVER
        return self._reducer.weigh(logits, self._packed[rows, 4], self._temperature)

    def _read(self, which: int, rows: slice, width: int, out: Floats | None = None) -> Floats:
        count = rows.stop - rows.start
        found: Floats = np.empty((count, width), dtype=np.float32) if out is None else out
        arguments = (self._context.native, which, found.ctypes.data, rows.start, count, width)
        if self._native.dg_reduction_read(*arguments) != count:
            raise BackendError("llama.cpp reduced no logits; build its changed runtime again")
        return found


def _address(values: npt.NDArray[Any]) -> int | None:
    """Of the first number; the array must live longer. None without numbers."""
    return values.ctypes.data if len(values) else None


_ROUNDS = 2
_AGREEMENT = 0.01
"""Largest accepted difference of entropies, in nats, and of the probability of the best token."""
_INPUT_AGREEMENT = 0.05
"""The same of the next step's input, root mean square, as a share of it: 0.01 of the probability may be left out."""


def choose_reduction(
    host: HostReduction,
    others: Sequence[HostReduction],
    step: Callable[[HostReduction], Prediction],
    next_input: Callable[[HostReduction], Floats],
    clock: Callable[[], float] = time.perf_counter,
) -> HostReduction:
    """The fastest reduction that computes what the host computes; the host if none is faster.

    `step` is a step with its record, which is measured, always of the same canvas. `next_input` is the input after
    one, shape (L, H).
    """
    expected, expected_input = step(host), next_input(host)

    def agrees(reduction: HostReduction) -> bool:
        try:
            found, found_input = step(reduction), next_input(reduction)
        except BackendError:  # no memory
            return False
        error, size = (np.sqrt(np.square(each).mean()) for each in (found_input - expected_input, expected_input))
        differences = np.concatenate([found.entropy - expected.entropy, found.confidence - expected.confidence])
        # False for NaN
        return bool((np.abs(differences) <= _AGREEMENT).all() and error <= _INPUT_AGREEMENT * size)

    candidates = [host, *filter(agrees, others)]
    seconds = dict.fromkeys(range(len(candidates)), float("inf"))
    for _ in range(_ROUNDS if len(candidates) > 1 else 0):
        for number, each in enumerate(candidates):
            start = clock()
            step(each)
            seconds[number] = min(seconds[number], clock() - start)
    return candidates[min(seconds, key=lambda number: seconds[number])]
