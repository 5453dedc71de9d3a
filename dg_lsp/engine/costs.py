"""What a forward pass costs on this machine, measured once when a model is opened."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from dg_lsp.canvas.fim import open_canvas
from dg_lsp.canvas.plan import token_ids
from dg_lsp.diffusion.denoiser import Denoiser

CAUSAL_TOKENS = (1, 8)
CANVAS_TOKENS = (16, 32)
_PROMPT_TOKENS = 64
_ROUNDS = 3

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
    """Medians of a few passes over a short prompt; the slot that it takes is empty again afterwards.

    Raises:
        BackendError: the runtime failed.
    """
    spec, slot = denoiser.spec, denoiser.num_slots - 1
    rng = np.random.default_rng(0)
    prompt = token_ids(rng.integers(0, spec.vocab_size, min(_PROMPT_TOKENS, spec.max_prompt_tokens)))
    denoiser.prefill(slot, prompt)

    def timed(step: Callable[[], object]) -> float:
        times = []
        for _ in range(_ROUNDS):
            start = clock()
            step()
            times.append(1e3 * (clock() - start))
            denoiser.prefill(slot, prompt)
        return median(times)

    def points(sizes: Iterable[int], step_of: Callable[[int], Callable[[], object]]) -> Points:
        return tuple((size, timed(step_of(size))) for size in sizes)

    def extending(size: int) -> Callable[[], object]:
        return partial(denoiser.extend, slot, prompt[:size])

    def denoising(size: int) -> Callable[[], object]:
        return partial(denoiser.predict, slot, [open_canvas(prompt, spec, size, rng).canvas_ids], 0.0, rng)

    causal = points(CAUSAL_TOKENS, extending) if spec.has_causal_head else ()
    lengths = sorted({min(size, spec.longest_block) for size in CANVAS_TOKENS})
    canvas = points(lengths, denoising) if spec.sampling else ()
    denoiser.prefill(slot, prompt[:0])
    return StepCosts(causal, canvas)


def _between(points: Points, x: float) -> float:
    """On the line through the two points next to `x`; never less than the cheapest."""
    if len(points) < 2:
        return points[0][1] if points else float("inf")
    after = next((i for i in range(1, len(points)) if x <= points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[after - 1 : after + 1]
    return max(min(y0, y1), y0 + (y1 - y0) * (x - x0) / (x1 - x0))
