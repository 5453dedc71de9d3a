"""Uniform noise: random tokens, of which the surest are kept for a step and the rest drawn anew.

The sampler of DiffusionGemma as in Hugging Face transformers 5.23 (`EntropyBoundSampler`, after arXiv 2505.24857),
with one change: frozen positions are left out of the mean entropy that ends the loop.
"""

from dataclasses import replace

import numpy as np

from dg_lsp.canvas.plan import Flags
from dg_lsp.canvas.spec import UniformSampling
from dg_lsp.diffusion.denoiser import Floats, Prediction
from dg_lsp.diffusion.step import Step, Stop


def renoise(
    step: Step, prediction: Prediction, sampling: UniformSampling, vocab_size: int, rng: np.random.Generator
) -> Step:
    """The canvas after one forward pass: sampled tokens where accepted, fresh noise elsewhere."""
    frozen = step.frozen
    draft = np.where(frozen, step.canvas_ids, prediction.argmax_ids)
    entropy = np.where(frozen, np.float32(0), prediction.entropy)
    accepted = frozen | accept(entropy, sampling.entropy_bound)
    noise = rng.integers(0, vocab_size, len(draft), dtype=np.int32)
    kept = np.where(frozen, step.canvas_ids, prediction.sampled_ids)
    is_repeated = step.number > 0 and np.array_equal(draft, step.draft_ids)
    num_stable = step.num_stable + 1 if is_repeated else 0
    stop = _stop(step.number + 1, num_stable, entropy, frozen, sampling)
    return replace(
        step,
        number=step.number + 1,
        canvas_ids=np.where(accepted, kept, noise) if stop is None else draft,
        draft_ids=draft,
        committed=frozen if stop is None else np.ones_like(frozen),
        confidence=np.where(frozen, np.float32(1), prediction.confidence),
        num_stable=num_stable,
        stop=stop,
    )


def accept(entropy: Floats, bound: float) -> Flags:
    """Positions kept, surest first, while the entropies of those before add up to at most `bound` nats.

    At least one is kept: the sum leaves the position's own entropy out.
    """
    order = np.argsort(entropy, kind="stable")
    ascending = entropy[order]
    accepted = np.empty(len(entropy), np.bool_)
    accepted[order] = np.cumsum(ascending) - ascending <= bound
    return accepted


def _stop(number: int, num_stable: int, entropy: Floats, frozen: Flags, sampling: UniformSampling) -> Stop | None:
    num_free = max(1, int((~frozen).sum()))
    is_confident = float(entropy.sum()) / num_free < sampling.confidence_threshold
    if is_confident and num_stable >= sampling.stability_threshold:
        return Stop.STABLE
    return Stop.MAX_STEPS if number >= sampling.max_denoising_steps else None
