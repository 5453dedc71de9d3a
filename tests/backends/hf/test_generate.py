"""transformers' `generate` token for token, by the product's own loop, where nothing is frozen.

The loop draws from the reference's generator in the reference's order: the canvas, then for each step the samples and
the noise. In float64, so that no sum's order decides a token.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from dg_lsp.backends.hf.reduce import Sampled, reduce, soft_cap
from dg_lsp.canvas.layout import Canvas
from dg_lsp.diffusion.loop import denoise

# generate imports torch's compiler
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


class TorchDraws:
    """numpy's generator as far as the loop asks it, drawing as torch does."""

    def random(self, count):
        return np.full(count, 0.5)  # the reduction draws for itself

    def integers(self, low, high, count, dtype):
        return torch.randint(low, high, (1, count))[0].numpy().astype(dtype)


def multinomial(raw, cap, banned_ids, temperature, chances):
    """As `reduce`, with the reference's own sampling."""
    found = reduce(raw, cap, banned_ids, temperature, chances)
    probabilities = torch.softmax(soft_cap(raw, cap) / temperature, dim=-1, dtype=torch.float32)
    found.rows[1] = torch.multinomial(probabilities, 1)[:, 0].float()
    return Sampled(found.rows, found.weights)


@pytest.mark.parametrize(
    ("length", "size", "settings"),
    [
        (30, 32, {}),
        (23, 16, {"entropy_bound": 1.0}),
        (60, 32, {"max_denoising_steps": 12}),
        (60, 8, {"max_denoising_steps": 20, "stability_threshold": 0, "confidence_threshold": 100.0}),
        (200, 16, {"max_denoising_steps": 30, "stability_threshold": 1, "confidence_threshold": 100.0}),
        (24, 32, {"max_denoising_steps": 9, "entropy_bound": 20.0, "t_max": 1.0, "t_min": 0.1}),
    ],
)
def test_generate_is_reproduced_token_for_token(double, open_hf, length, size, settings):
    reference, network = double
    sampling = replace(open_hf.spec.sampling, **settings)
    prompt = np.random.default_rng(length).integers(0, 512, length).astype(np.int32)
    reference.model.config.canvas_length = size
    num_steps = []
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
        streamer=_Drafts(num_steps),
    ).sequences[0, length:]
    denoiser = open_hf(network, reduce=multinomial)
    denoiser.prefill(0, prompt)
    torch.manual_seed(length)
    canvas = torch.randint(0, 512, (1, size))[0].numpy().astype(np.int32)
    plan = Canvas(prompt, canvas, np.zeros(size, np.bool_))
    *_, last = denoise(denoiser, 0, plan, sampling, TorchDraws())
    assert last.number == len(num_steps)
    assert np.array_equal(last.draft_ids, expected.numpy())


class _Drafts:
    """Counts the reference's steps."""

    def __init__(self, seen):
        self._seen = seen

    def put_draft(self, value):
        self._seen.append(value)

    def put(self, value):
        pass

    def end(self):
        pass
