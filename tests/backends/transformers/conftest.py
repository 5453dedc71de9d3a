"""transformers' own model and our network over the same tiny random weights.

Both compute the same numbers in float64. `test_loader.py` compares float32 and bfloat16.
"""

import numpy as np
import pytest
import torch
from diffusiongemma_reference import Reference
from tiny_diffusiongemma import tiny_model

from dg_lsp.backends.transformers import network as network_module
from dg_lsp.backends.transformers.denoiser import TransformersDenoiser
from dg_lsp.backends.transformers.network import DiffusionGemmaNetwork, reduce_logits
from dg_lsp.canvas.spec import ModelSpec, PromptFormat, UniformSampling

WINDOW = 24
VOCAB_SIZE = 512
SPEC = ModelSpec(
    name="tiny-diffusiongemma",
    vocab_size=VOCAB_SIZE,
    sampling=UniformSampling(),
    end_ids=(1, 106, 50),
    prompt_format=PromptFormat.INSTRUCT,
    canvas_lengths=(8, 16, 32, 64),
    max_prompt_tokens=256,
    has_causal_head=False,
    template="gemma4",
)


def _damp(model):
    """Damps attention and self-conditioning: with the drawn weights each layer multiplies a rounding error by ten."""
    for layer in model.model.decoder.layers:  # the encoder has the same tensors
        layer.self_attn.q_norm.weight.data.mul_(0.25)
    model.model.decoder.self_conditioning.down_proj.weight.data.mul_(0.3)
    return model.requires_grad_(False)


@pytest.fixture(scope="session")
def float64_models():
    torch.set_num_threads(1)
    reference, ours = (_damp(tiny_model(WINDOW)).to(torch.float64) for _ in range(2))
    for model in (reference, ours):
        model.set_experts_implementation("eager")  # torch has no grouped multiplication in float64
    return Reference(reference), DiffusionGemmaNetwork(ours)


@pytest.fixture
def open_denoiser(float64_models, opened, monkeypatch):
    """Opens denoisers over the tiny network; `reduce` replaces the reduction of all of them."""

    def open_network(*, reduce=reduce_logits):
        monkeypatch.setattr(network_module, "reduce_logits", reduce)
        return opened(TransformersDenoiser(float64_models[1], SPEC, None, 4))

    return open_network


@pytest.fixture
def draw_ids():
    rng = np.random.default_rng(11)
    return lambda count: rng.integers(0, VOCAB_SIZE, count).astype(np.int32)
