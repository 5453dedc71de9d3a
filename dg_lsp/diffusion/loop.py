"""The denoising loop: a generator that runs one forward pass per step. The caller cancels by not asking for more.

The loop handles no text, deadline or cache: the caller prefills the slot, inspects each step, and decides when to stop.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from dg_lsp.canvas.layout import Canvas, token_ids
from dg_lsp.canvas.spec import MaskSampling, Sampling
from dg_lsp.diffusion.denoiser import Passes
from dg_lsp.diffusion.samplers import Step, renoise, unmask


def temperature(sampling: Sampling, number: int, *, explore: bool = False) -> float:
    """Temperature of step `number` (from 1).

    Uniform noise: linear from `t_max` at the first step to almost `t_min` at the last, as in transformers 5.23.
    Mask noise: 0 (greedy), or 1 to explore; a prediction's confidence is the same at both.
    """
    if isinstance(sampling, MaskSampling):
        return 1.0 if explore else 0.0
    num_left = sampling.max_denoising_steps - number + 1
    return sampling.t_min + (sampling.t_max - sampling.t_min) * num_left / sampling.max_denoising_steps


def denoise(
    denoiser: Passes, slot: int, canvas: Canvas, sampling: Sampling, rng: np.random.Generator
) -> Iterator[Step]:
    """Steps of one canvas until it stops; the last one has `stop` set. Raises as `Passes.predict` does."""
    for (step,) in race(denoiser, slot, [canvas], sampling, rng):
        yield step


def race(
    denoiser: Passes,
    slot: int,
    canvases: Sequence[Canvas],
    sampling: Sampling,
    rng: np.random.Generator,
    *,
    explores: bool = True,
    closes_gaps: bool = False,
) -> Iterator[tuple[Step, ...]]:
    """States of several canvases after the same prompt, one tuple per forward pass, until all canvases have stopped.

    All running canvases share each pass. Later canvases differ from the first by their samples: with mask noise only
    their first forced token is sampled (if `explores`), with uniform noise every token is. See `unmask` for
    `closes_gaps`.
    """
    spec = denoiser.spec
    end_ids = token_ids(spec.end_ids)
    steps = [Step.before(canvas) for canvas in canvases]
    number = 0
    while running := [i for i, step in enumerate(steps) if step.stop is None]:
        number += 1
        explore = explores and number == 1 and len(canvases) > 1
        heat = temperature(sampling, number, explore=explore)
        predictions = denoiser.predict(slot, [steps[i].canvas_ids for i in running], heat, rng, running)
        for i, prediction in zip(running, predictions, strict=True):
            if isinstance(sampling, MaskSampling):
                explored = explore and i > 0
                steps[i] = unmask(steps[i], prediction, sampling, end_ids, explore=explored, closes_gaps=closes_gaps)
            else:
                steps[i] = renoise(steps[i], prediction, sampling, spec.vocab_size, rng)
        yield tuple(steps)
