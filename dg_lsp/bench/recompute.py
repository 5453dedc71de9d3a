"""A step over a cached prompt against the same step with the prompt computed again, as llama.cpp's own diffusion does.

Both sides run in one process, in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dg_lsp.bench.clock import milliseconds
from dg_lsp.canvas.fim import open_canvas
from dg_lsp.canvas.layout import token_ids
from dg_lsp.diffusion.denoiser import Denoiser


@dataclass(frozen=True, slots=True)
class Comparison:
    """One canvas length, median milliseconds per step."""

    canvas_length: int
    cached: float
    recomputed: float

    @property
    def ratio(self) -> float:
        """How many times faster the cache makes a step."""
        return self.recomputed / self.cached


def compare_recomputed(
    cached: Denoiser,
    recomputing: Denoiser,
    num_prompt_tokens: int,
    canvas_lengths: Sequence[int],
    *,
    rounds: int,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """Times on the same prompt of random tokens and the same open canvas; both models have the same vocabulary."""
    rng = np.random.default_rng(seed)
    prompt = token_ids(rng.integers(0, cached.spec.vocab_size, num_prompt_tokens))
    for denoiser in (cached, recomputing):
        denoiser.prefill(0, prompt)
    found = []
    for length in canvas_lengths:
        canvas = open_canvas(prompt, cached.spec, length, rng).canvas_ids
        steps = [partial(denoiser.predict, 0, [canvas], 0.0, rng) for denoiser in (cached, recomputing)]
        # the first round warms caches and threads up
        times = [[milliseconds(step) for step in steps] for _ in range(rounds + 1)][1:]
        found.append(Comparison(length, *np.median(times, axis=0).tolist()))
    return tuple(found)
