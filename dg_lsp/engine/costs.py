"""What a forward pass costs on this machine, measured once when a model is opened."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dg_lsp.canvas.fim import open_canvas
from dg_lsp.canvas.plan import token_ids
from dg_lsp.diffusion.denoiser import Denoiser

CAUSAL_TOKENS = (1, 8)
CANVAS_TOKENS = (8, 32)
_PROMPT_TOKENS = 64
_ROUNDS = 4
_KINDS = ("causal", "canvas")

Points = tuple[tuple[int, float], ...]
"""(tokens, milliseconds), by ascending tokens."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Milliseconds of a forward pass by the number of its tokens."""

    causal: Points = ()
    """Empty without a causal head."""
    canvas: Points = ()
    """All canvases of the pass together; empty without a canvas."""

    def extend(self, num_tokens: float) -> float:
        """A causal pass; infinite where there is none."""
        return _between(self.causal, num_tokens)

    def predict(self, num_tokens: float) -> float:
        """A pass over canvases; infinite where there is none."""
        return _between(self.canvas, num_tokens)


def measure_costs(denoiser: Denoiser, *, clock: Callable[[], float] = time.perf_counter) -> StepCosts:
    """The best of a few passes of each kind over a short prompt; the slot that it takes is empty again afterwards.

    The best, not the middle: on a busy machine most passes are held up, and no plan is to be blamed for that.

    Raises:
        BackendError: the runtime failed.
    """
    spec, slot = denoiser.spec, denoiser.num_slots - 1
    rng = np.random.default_rng(0)
    prompt = token_ids(rng.integers(0, spec.vocab_size, min(_PROMPT_TOKENS, spec.max_prompt_tokens)))
    steps: list[tuple[str, int, Callable[[], object]]] = []
    if spec.has_causal_head:
        steps += [("causal", size, partial(denoiser.extend, slot, prompt[:size])) for size in CAUSAL_TOKENS]
    for size in sorted({min(size, spec.longest_block) for size in CANVAS_TOKENS}) if spec.sampling else ():
        canvas = open_canvas(prompt, spec, size, rng).canvas_ids
        steps.append(("canvas", size, partial(denoiser.predict, slot, [canvas], 0.0, rng)))
    best = [math.inf] * len(steps)
    for number, (_, _, step) in enumerate(steps):
        for _ in range(_ROUNDS):  # in a row, as in a fill: a pass like the one before it is cheaper
            denoiser.prefill(slot, prompt)
            start = clock()
            step()
            best[number] = min(best[number], 1e3 * (clock() - start))
    denoiser.prefill(slot, prompt[:0])
    points = {kind: tuple((s, ms) for (k, s, _), ms in zip(steps, best, strict=True) if k == kind) for kind in _KINDS}
    return StepCosts(**points)


def _between(points: Points, x: float) -> float:
    """On the line through the two points next to `x`; never less than the cheapest."""
    if len(points) < 2:
        return points[0][1] if points else float("inf")
    after = next((i for i in range(1, len(points)) if x <= points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[after - 1 : after + 1]
    return max(min(y0, y1), y0 + (y1 - y0) * (x - x0) / (x1 - x0))
