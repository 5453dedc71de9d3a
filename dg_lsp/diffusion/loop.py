"""The denoising loop: a generator with one forward pass per step. Whoever stops asking has cancelled.

Knows no text, no deadline and no cache: the caller has prefilled the slot, looks at each step, and decides.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from dg_lsp.canvas.layout import Canvas, token_ids
from dg_lsp.canvas.spec import MaskSampling, Sampling
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.diffusion.samplers import renoise, unmask
from dg_lsp.diffusion.step import Step


def temperature(sampling: Sampling, number: int, *, explore: bool = False) -> float:
    """Temperature of step `number` (from 1).

    Uniform noise cools linearly from `t_max` at the first step to almost `t_min` at the last (transformers 5.23).
    Mask noise is greedy, 0, unless samples are wanted, 1: a prediction's confidence is the same at both.
    """
    if isinstance(sampling, MaskSampling):
        return 1.0 if explore else 0.0
    num_left = sampling.max_denoising_steps - number + 1
    return sampling.t_min + (sampling.t_max - sampling.t_min) * num_left / sampling.max_denoising_steps


def denoise(
    denoiser: Denoiser,
    slot: int,
    plan: Canvas,
    sampling: Sampling,
    rng: np.random.Generator,
) -> Iterator[Step]:
    """Steps of one canvas until it stops, the last with `stop` set.

    Raises:
        RequestError, BackendError: as the denoiser's `predict` does.
    """
    for (step,) in race(denoiser, slot, [plan], sampling, rng):
        yield step


def race(
    denoiser: Denoiser,
    slot: int,
    plans: Sequence[Canvas],
    sampling: Sampling,
    rng: np.random.Generator,
    *,
    explores: bool = True,
) -> Iterator[tuple[Step, ...]]:
    """The states of several canvases over one prompt after each forward pass, until all have stopped.

    All canvases still running share each pass. Those after the first differ from it by what they sample: with mask
    noise their first forced token, unless told not to explore; with uniform noise everything.
    """
    spec = denoiser.spec
    end_ids = token_ids(spec.end_ids)
    steps = [Step.before(plan) for plan in plans]
    number = 0
    while running := [i for i, step in enumerate(steps) if step.stop is None]:
        number += 1
        explore = explores and number == 1 and len(plans) > 1
        heat = temperature(sampling, number, explore=explore)
        predictions = denoiser.predict(slot, [steps[i].canvas_ids for i in running], heat, rng, running)
        for i, prediction in zip(running, predictions, strict=True):
            if isinstance(sampling, MaskSampling):
                steps[i] = unmask(steps[i], prediction, sampling, end_ids, explore=explore and i > 0)
            else:
                steps[i] = renoise(steps[i], prediction, sampling, spec.vocab_size, rng)
        yield tuple(steps)
