"""One line from a prompt: autoregressively, or by denoising canvases. Measures; the product's loop is `diffusion`."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dg_lsp.training.runtime import Answer, Runtime
from dg_lsp.training.vocabulary import BANNED_IDS, END_OF_MIDDLE, MASK

MAX_TOKENS = 48
BANNED = list(BANNED_IDS)


@dataclass(frozen=True, slots=True)
class Way:
    """How an answer is made; `canvas` 0 is autoregressive."""

    canvas: int = 0
    threshold: float = 0.9
    leftmost: bool = True

    @property
    def name(self) -> str:
        """As in the table."""
        order = "leftmost" if self.leftmost else "confident"
        return (
            f"canvas {self.canvas}, threshold {self.threshold:g}, {order}" if self.canvas else "autoregressive, greedy"
        )


def answer(runtime: Runtime, after_prompt: npt.NDArray[np.float32], position: int, way: Way) -> Answer:
    """The first line after a prompt of `position` tokens; `after_prompt` is what `Runtime.prefill` returned."""
    return _denoise(runtime, position, way) if way.canvas else _autoregress(runtime, after_prompt, position)


def _autoregress(runtime: Runtime, logits: npt.NDArray[np.float32], position: int) -> Answer:
    ids: list[int] = []
    while len(ids) < MAX_TOKENS:
        row = logits[0].copy()
        row[BANNED] = -np.inf
        token = int(row.argmax())
        if token == END_OF_MIDDLE:
            break
        ids.append(token)
        if runtime.has_newline[token]:
            break
        logits = runtime.decode([token], position, causal=True, wanted=np.ones(1, bool))
        position += 1
    return Answer(tuple(ids), len(ids) + 1)


def _denoise(runtime: Runtime, position: int, way: Way) -> Answer:
    ids: list[int] = []
    passes = 0
    while len(ids) < MAX_TOKENS:
        canvas, steps = _settle(runtime, position, way)
        passes += steps
        ends = np.flatnonzero((canvas == END_OF_MIDDLE) | runtime.has_newline[canvas])
        if len(ends):
            return Answer((*ids, *map(int, canvas[: ends[0]])), passes)
        ids += map(int, canvas)
        # the next canvas sees this one causally
        runtime.decode(canvas, position, causal=True, wanted=np.arange(len(canvas)) == 0)
        position, passes = position + len(canvas), passes + 1
    return Answer(tuple(ids), passes)


def _settle(runtime: Runtime, position: int, way: Way) -> tuple[npt.NDArray[np.int64], int]:
    """One canvas from all masks to none; cut after the first end or line end. Returns it and the passes it took."""
    canvas = np.full(way.canvas, MASK)
    passes = 0
    while (masked := canvas == MASK).any():
        logits = runtime.decode(canvas, position, causal=False, wanted=masked)
        runtime.forget(position)
        passes += 1
        logits[:, BANNED] = -np.inf
        best = logits.argmax(1)
        confidence = 1 / np.exp(logits - logits.max(1, keepdims=True)).sum(1)
        taken = confidence > way.threshold
        if way.leftmost:
            taken &= best != END_OF_MIDDLE
            taken[0] = True
        else:
            taken[confidence.argmax()] = True
        canvas[np.flatnonzero(masked)[taken]] = best[taken]
        ends = np.flatnonzero((canvas == END_OF_MIDDLE) | runtime.has_newline[canvas])
        canvas = canvas[: ends[0] + 1] if len(ends) else canvas
    return canvas, passes
