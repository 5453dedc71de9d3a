"""How long prefill and denoising steps take. Knows a denoiser, not what runtime is behind it.

Everything is measured in rounds, one of each kind per round, and the medians are reported: a machine that gets slower
meanwhile favours none of them.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from dg_lsp.bench.clock import milliseconds
from dg_lsp.canvas.fim import open_canvas
from dg_lsp.canvas.layout import TokenIds, token_ids
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.errors import RequestError

NUM_EXTENDED = 8
"""Prompt tokens of a typical keystroke burst."""
BATCH_SIZES = (1, 2, 4, 8)
"""Canvases in one forward pass."""
CAUSAL_SIZES = (1, 8, 16)
"""Tokens of a causal pass: one is a step of plain decoding, more are a draft that is checked."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds on one prompt."""

    prefill: float
    """The whole prompt into a slot that shares nothing with it."""
    extend: float
    """`NUM_EXTENDED` more tokens at its end."""
    steps: dict[int, float]
    """One forward pass over an all-open canvas, by its length; empty for a model without canvases."""
    causal: dict[int, float]
    """One causal pass that says what follows each of its tokens, by their number; empty without a causal head."""

    @property
    def one_token_steps(self) -> dict[int, float]:
        """How many steps of one token a step over a canvas costs, by its length."""
        return {length: ms / self.causal[1] for length, ms in self.steps.items()} if self.causal else {}


def measure_steps(
    denoiser: Denoiser, num_prompt_tokens: int, canvas_lengths: Sequence[int], *, rounds: int, seed: int = 0
) -> StepTimes:
    """Times on a prompt of random tokens: which they are makes no difference to a forward pass."""
    rng = np.random.default_rng(seed)
    prompt = token_ids(rng.integers(0, denoiser.spec.vocab_size, num_prompt_tokens))
    lengths = list(canvas_lengths) if denoiser.spec.sampling else []
    canvases = [open_canvas(prompt, denoiser.spec, length, rng).canvas_ids for length in lengths]
    sizes = CAUSAL_SIZES if denoiser.spec.has_causal_head else ()
    # the first round warms caches and threads up
    times = [_round(denoiser, prompt, canvases, sizes, rng) for _ in range(rounds + 1)][1:]
    prefill, extend, *others = np.median(times, axis=0).tolist()
    steps, causal = others[: len(lengths)], others[len(lengths) :]
    return StepTimes(prefill, extend, dict(zip(lengths, steps, strict=True)), dict(zip(sizes, causal, strict=True)))


def _round(
    denoiser: Denoiser,
    prompt: TokenIds,
    canvases: Sequence[TokenIds],
    sizes: Sequence[int],
    rng: np.random.Generator,
) -> list[float]:
    """Milliseconds: the prefill, the extension, each canvas, each causal pass."""
    other = token_ids([(int(prompt[0]) + 1) % denoiser.spec.vocab_size])
    denoiser.prefill(0, other)
    prefill = milliseconds(lambda: denoiser.prefill(0, prompt))
    denoiser.prefill(0, prompt[:-NUM_EXTENDED])
    extend = milliseconds(lambda: denoiser.prefill(0, prompt))
    steps = [milliseconds(partial(denoiser.predict, 0, [canvas], 0.0, rng)) for canvas in canvases]
    causal = []
    for size in sizes:
        # the last tokens of the prompt once more, after those before them
        denoiser.prefill(0, prompt[:-size])
        causal.append(milliseconds(partial(denoiser.extend, 0, prompt[-size:])))
    return [prefill, extend, *steps, *causal]


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Several canvases of one length in one forward pass over one prompt."""

    canvas_length: int
    steps: dict[int, float]
    """Milliseconds, by the number of canvases; those that do not fit a pass are left out."""


def measure_batches(
    denoiser: Denoiser, num_prompt_tokens: int, canvas_lengths: Sequence[int], *, rounds: int, seed: int = 0
) -> tuple[BatchTimes, ...]:
    """As `measure_steps`, by number of canvases."""
    rng = np.random.default_rng(seed)
    prompt = token_ids(rng.integers(0, denoiser.spec.vocab_size, num_prompt_tokens))
    denoiser.prefill(0, prompt)
    return tuple(_batches(denoiser, prompt, length, rounds, rng) for length in canvas_lengths)


def _batches(denoiser: Denoiser, prompt: TokenIds, length: int, rounds: int, rng: np.random.Generator) -> BatchTimes:
    canvas = open_canvas(prompt, denoiser.spec, length, rng).canvas_ids
    jobs = {count: partial(denoiser.predict, 0, [canvas] * count, 0.0, rng) for count in BATCH_SIZES}
    found = {}
    for count, job in jobs.items():
        with suppress(RequestError):
            job()
            found[count] = job
    times = [[milliseconds(job) for job in found.values()] for _ in range(rounds)]
    return BatchTimes(length, dict(zip(found, np.median(times, axis=0).tolist(), strict=True)))


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
