"""Teacher-forced parity with transformers' own forward pass: logits, entropies, accept masks; noise is injected.

Never sampled tokens: on random weights one flipped token changes all that follow.
"""

import numpy as np
import pytest
import torch
from diffusiongemma_reference import clear_bounds

from dg_lsp.backends.hf.reduce import reduce, soft_cap
from dg_lsp.backends.hf.step import StepInput
from dg_lsp.diffusion.samplers import accept

WINDOW = 24
PROMPTS = (1, WINDOW - 1, WINDOW, WINDOW + 1, 200)
CANVASES = (8, 24, 64)
SCHEDULE = tuple(0.4 + 0.4 * left / 5 for left in (5, 4, 3, 2, 1))
BOUND = 2.0
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Of logits around 1. The reference computes norms and the cap in float32 in any case."""


def ids(rng, count):
    return rng.integers(0, 512, count).astype(np.int32)


class Watched:
    """A reduction that keeps the logits which it was given."""

    def __init__(self):
        self.logits = None

    def __call__(self, raw, cap, banned_ids, temperature, chances):
        self.logits = soft_cap(raw, cap)
        return reduce(raw, cap, banned_ids, temperature, chances)


@pytest.fixture(params=["double", "single"])
def pair(request):
    reference, network = request.getfixturevalue(request.param)
    return reference, network, TOLERANCE[reference.dtype]


def entropies(logits):
    return torch.distributions.Categorical(logits=logits).entropy().numpy()


def check_accepted(entropy, expected, tolerance):
    """The same positions are accepted, at every bound that no rounding decides."""
    for bound in clear_bounds(expected, tolerance):
        assert np.array_equal(accept(entropy, bound), accept(expected.astype(np.float32), bound))


@pytest.mark.parametrize("length", PROMPTS)
def test_every_step_says_what_the_reference_says(pair, open_hf, rng, length):
    """First and self-conditioned steps; the prompt below, at and above the sliding window; canvas 8 to 64."""
    reference, network, tolerance = pair
    watched = Watched()
    denoiser = open_hf(network, reduce=watched)
    prompt = ids(rng, length)
    cache = reference.encode(prompt)
    for size in CANVASES:
        denoiser.prefill(0, prompt[:0])
        denoiser.prefill(0, prompt)
        said = None
        for temperature in SCHEDULE[:3]:
            canvas = ids(rng, size)
            (prediction,) = denoiser.predict(0, [canvas], temperature, rng)
            logits = reference.logits(cache, canvas, said)
            said = logits / temperature
            assert (watched.logits - logits).abs().max() < tolerance
            expected = entropies(said)
            assert np.abs(prediction.entropy - expected).max() < 10 * tolerance
            check_accepted(prediction.entropy, expected, 10 * tolerance)
            confidence = said.softmax(-1).max(-1).values.numpy()
            assert np.abs(prediction.confidence - confidence).max() < tolerance


def test_conditioning_matters(double, rng):
    """A parity that holds without self-conditioning would prove nothing of it."""
    reference, _ = double
    cache, canvas = reference.encode(ids(rng, 40)), ids(rng, 16)
    first = reference.logits(cache, canvas)
    assert (first - reference.logits(cache, canvas, first / 0.8)).abs().max() > 0.1


def test_frozen_positions_change_nothing_of_the_forward_pass(double, open_hf, rng):
    """A canvas with the file's own tokens around a hole, as pinned formats make it, over five steps with renoising."""
    reference, network = double
    watched = Watched()
    denoiser = open_hf(network, reduce=watched)
    prompt, canvas = ids(rng, 90), ids(rng, 24)
    frozen = np.zeros(24, np.bool_)
    frozen[:8] = frozen[16:] = True
    cache, said = reference.encode(prompt), None
    denoiser.prefill(0, prompt)
    for temperature in SCHEDULE:
        (prediction,) = denoiser.predict(0, [canvas], temperature, rng)
        logits = reference.logits(cache, canvas, said)
        said = logits / temperature
        assert (watched.logits - logits).abs().max() < 1e-6
        mine, theirs = (np.where(frozen, 0, e).astype(np.float32) for e in (prediction.entropy, entropies(said)))
        check_accepted(mine, theirs, 1e-5)
        drawn = np.where(frozen, canvas, prediction.sampled_ids)
        canvas = np.where(frozen | accept(theirs, BOUND), drawn, ids(rng, 24)).astype(np.int32)


def test_keystrokes_leave_the_same_prompt(double, open_hf, rng):
    """Typed, taken back and typed otherwise, across the window's edge and far past it, token by token and in bursts."""
    reference, network = double
    watched = Watched()
    denoiser = open_hf(network, reduce=watched)
    text, canvas = ids(rng, 200), ids(rng, 16)
    denoiser.prefill(0, text[:10])
    typed = [text[:size] for size in (11, 12, 20, 23, 24, 25, 26, 60, 61, 150, 149, 100, 24, 23, 5, 90)]
    typed += [np.concatenate([text[:70], ids(rng, 20)]), np.concatenate([text[:40], ids(rng, 3)]), text]
    before = text[:10]
    for prompt in typed:
        shared = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), None)
        kept = min(len(before), len(prompt)) if shared is None else shared
        assert denoiser.prefill(0, prompt) == len(prompt) - kept
        denoiser.predict(0, [canvas], 0.8, rng)
        assert (watched.logits - reference.logits(reference.encode(prompt), canvas)).abs().max() < 1e-6
        before = prompt


def test_canvases_of_one_pass_are_each_what_they_are_alone(double, open_hf, rng):
    """Three lengths in one pass, and each lane is conditioned on its own last prediction."""
    reference, network = double
    watched = Watched()
    denoiser = open_hf(network, reduce=watched)
    prompt = ids(rng, 50)
    cache, said = reference.encode(prompt), [None, None, None]
    denoiser.prefill(0, prompt)
    for lanes in ((0, 1, 2), (0, 1, 2), (0, 2), (2,)):
        canvases = [ids(rng, (8, 32, 16)[lane]) for lane in lanes]
        denoiser.predict(0, canvases, 0.7, rng, lanes)
        parts = watched.logits.split([len(canvas) for canvas in canvases])
        for lane, canvas, part in zip(lanes, canvases, parts, strict=True):
            logits = reference.logits(cache, canvas, said[lane])
            assert (part - logits).abs().max() < 1e-6
            said[lane] = logits / 0.7


def test_a_larger_capacity_changes_nothing(double, open_hf, rng):
    """Fixed shapes: unused room for a longer prompt is masked, so one graph serves every prompt length."""
    reference, network = double
    watched = Watched()
    denoiser = open_hf(network, reduce=watched)
    denoiser.prefill(1, ids(rng, 250))
    denoiser.predict(1, [ids(rng, 64)], 0.8, rng)  # leaves keys of another prompt in that room
    for length in (1, 5, 24, 70):
        prompt, canvas = ids(rng, length), ids(rng, 16)
        denoiser.prefill(0, prompt)
        given = denoiser._input(0, [canvas], [(0, 0)], 0.8, rng)
        denoiser._show(0)
        logits = reference.logits(reference.encode(prompt), canvas)
        with torch.inference_mode():
            for capacity in (70, 128, 256):
                denoiser.stepper._step(capacity, *StepInput.tensors(given))
                assert (watched.logits - logits).abs().max() < 1e-6
