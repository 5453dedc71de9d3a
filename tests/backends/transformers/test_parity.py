"""Compares first steps with transformers' forward pass, and the tokens of all steps with its `generate`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from margins import predict
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from dg_lsp.backends.transformers.network import reduce_logits, soft_cap
from dg_lsp.canvas.layout import Canvas, common_prefix_length
from dg_lsp.diffusion.samplers import denoise

from .conftest import SPEC

TOLERANCE = 1e-6
"""Of logits around 1. transformers computes norms and the soft cap in float32 in any case."""


def test_a_prompt_that_grows_shrinks_and_changes_gives_the_same_numbers(float64_models, open_denoiser, draw_ids):
    """Across the edge of the sliding window and far beyond it, by single tokens and by many."""
    reference, _ = float64_models
    denoiser = open_denoiser()
    text, canvas = draw_ids(200), draw_ids(16)
    prompts = [text[:size] for size in (1, 10, 11, 12, 20, 23, 24, 25, 26, 60, 61, 150, 149, 100, 24, 23, 5, 90)]
    prompts += [np.concatenate([text[:70], draw_ids(20)]), np.concatenate([text[:40], draw_ids(3)]), text]
    before = text[:0]
    for prompt in prompts:
        assert denoiser.prefill(0, prompt) == len(prompt) - common_prefix_length(before, prompt)
        (prediction,) = predict(denoiser, canvas, temperature=0.8)
        expected = torch.distributions.Categorical(logits=reference.logits(reference.encoded(prompt), canvas) / 0.8)
        assert np.abs(prediction.entropy - expected.entropy().numpy()).max() < 10 * TOLERANCE
        assert np.abs(prediction.confidence - expected.probs.max(-1).values.numpy()).max() < TOLERANCE
        before = prompt


class TorchRng:
    """The part of numpy's generator that the loop uses, with the random numbers of torch."""

    def random(self, count):
        return np.full(count, 0.5)  # `multinomial` draws the samples

    def integers(self, low, high, count, dtype):
        return torch.randint(low, high, (1, count))[0].numpy().astype(dtype)


def multinomial(raw, cap, banned_ids, temperature, uniforms, _top_k):
    """`reduce_logits` with the sampling of transformers."""
    reduced = reduce_logits(raw, cap, banned_ids, temperature, uniforms)
    probabilities = torch.softmax(soft_cap(raw, cap) / temperature, dim=-1, dtype=torch.float32)
    reduced.rows[1] = torch.multinomial(probabilities, 1)[:, 0].float()
    return reduced


class CountDrafts:
    """A streamer that counts the steps of `generate`."""

    num_drafts = 0

    def put_draft(self, value):  # noqa: ARG002  (transformers passes it by name)
        self.num_drafts += 1

    def put(self, value):
        pass

    def end(self):
        pass


# generate imports torch's compiler
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("length", "size", "settings"),
    [
        (23, 16, {}),
        (60, 32, {"max_denoising_steps": 12}),
        (60, 8, {"max_denoising_steps": 20, "stability_threshold": 0, "confidence_threshold": 100.0}),
        (200, 16, {"max_denoising_steps": 30, "stability_threshold": 1, "confidence_threshold": 100.0}),
        (24, 32, {"max_denoising_steps": 9, "entropy_bound": 20.0, "t_max": 1.0, "t_min": 0.1}),
    ],
)
def test_the_loop_returns_the_tokens_of_generate(float64_models, open_denoiser, length, size, settings):
    """The loop draws from torch's generator in the order of `generate`; nothing is frozen."""
    reference, _ = float64_models
    sampling = replace(SPEC.sampling, **settings)
    prompt = np.random.default_rng(length).integers(0, 512, length).astype(np.int32)
    reference.model.config.canvas_length = size
    drafts = CountDrafts()
    torch.manual_seed(length)
    expected = reference.model.generate(
        torch.tensor(prompt.astype(np.int64))[None],
        max_new_tokens=size,
        max_denoising_steps=sampling.max_denoising_steps,
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=sampling.entropy_bound),
        t_min=sampling.t_min,
        t_max=sampling.t_max,
        stability_threshold=sampling.stability_threshold,
        confidence_threshold=sampling.confidence_threshold,
        eos_token_id=None,
        streamer=drafts,
    ).sequences[0, length:]
    denoiser = open_denoiser(reduce=multinomial)
    denoiser.prefill(0, prompt)
    torch.manual_seed(length)
    canvas = torch.randint(0, 512, (1, size))[0].numpy().astype(np.int32)
    plan = Canvas(canvas, np.zeros(size, np.bool_))
    *_, last = denoise(denoiser, 0, plan, sampling, TorchRng())
    assert last.number == drafts.num_drafts
    assert np.array_equal(last.draft_ids, expected.numpy())
