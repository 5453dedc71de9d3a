"""How long prefill and denoising steps take. Knows a denoiser, not what runtime is behind it.

Everything is measured in rounds, one of each kind per round, and the medians are reported: a machine that gets slower
meanwhile favours none of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dg_lsp.bench.clock import milliseconds
from dg_lsp.canvas.fim import open_canvas
from dg_lsp.canvas.plan import TokenIds, token_ids
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest

NUM_EXTENDED = 8
"""Prompt tokens of a typical keystroke burst."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds on one prompt."""

    prefill: float
    """The whole prompt into a slot that shares nothing with it."""
    extend: float
    """`NUM_EXTENDED` more tokens at its end."""
    steps: dict[int, float]
    """One forward pass over an all-open canvas, by its length."""


def measure_steps(
    denoiser: Denoiser, num_prompt_tokens: int, canvas_lengths: Sequence[int], *, rounds: int, seed: int = 0
) -> StepTimes:
    """Times on a prompt of random tokens: which they are makes no difference to a forward pass."""
    rng = np.random.default_rng(seed)
    prompt = token_ids(rng.integers(0, denoiser.spec.vocab_size, num_prompt_tokens))
    canvases = [open_canvas(prompt, denoiser.spec, length, rng).canvas_ids for length in canvas_lengths]
    # the first round warms caches and threads up
    times = [_round(denoiser, prompt, canvases, rng) for _ in range(rounds + 1)][1:]
    prefill, extend, *steps = np.median(times, axis=0).tolist()
    return StepTimes(prefill, extend, dict(zip(canvas_lengths, steps, strict=True)))


def _round(denoiser: Denoiser, prompt: TokenIds, canvases: Sequence[TokenIds], rng: np.random.Generator) -> list[float]:
    """Milliseconds: the prefill, the extension, each canvas."""
    other = token_ids([(int(prompt[0]) + 1) % denoiser.spec.vocab_size])
    denoiser.prefill(0, other)
    prefill = milliseconds(lambda: denoiser.prefill(0, prompt))
    denoiser.prefill(0, prompt[:-NUM_EXTENDED])
    extend = milliseconds(lambda: denoiser.prefill(0, prompt))
    steps = [milliseconds(partial(denoiser.predict, 0, [canvas], 0.0, rng)) for canvas in canvases]
    return [prefill, extend, *steps]


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the engine adds to the backend's own decode time, in milliseconds per denoising step."""

    num_steps: int
    decode: float
    """Inside the backend's `predict`."""
    engine: float
    """Around it: loop, sampler, frames."""

    @property
    def share(self) -> float:
        """Engine time over decode time."""
        return self.engine / self.decode if self.decode else 0.0


def measure_overhead(engine: Engine, requests: Sequence[FillRequest]) -> Overhead:
    """Over real fills; their prefill and postprocessing are left out of both sides."""
    timings = [(result.steps, result.timings) for result in map(engine.fill, requests)]
    num_steps = sum(steps for steps, _ in timings)
    predict = sum(t.predict for _, t in timings)
    denoise = sum(t.denoise for _, t in timings)
    per_step = 1 / max(1, num_steps)
    return Overhead(num_steps, predict * per_step, (denoise - predict) * per_step)
