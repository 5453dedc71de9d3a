"""transformers' own model and our network over the same tiny random weights.

Both compute the same numbers in float64. In float32 they differ, because sums have another order.
"""

import numpy as np
import pytest
from diffusiongemma_reference import Reference, calm_model

from dg_lsp.backends.transformers import network as network_module
from dg_lsp.backends.transformers.denoiser import TransformersDenoiser
from dg_lsp.backends.transformers.network import DiffusionGemmaNetwork, reduce_logits
from dg_lsp.canvas.spec import ModelSpec, UniformSampling

WINDOW = 24
VOCAB_SIZE = 512
SPEC = ModelSpec(
    "tiny-diffusiongemma", VOCAB_SIZE, UniformSampling(), (1,), canvas_lengths=(8, 16, 32, 64), max_prompt_tokens=256
)


def _model():
    model = calm_model(WINDOW).double().requires_grad_(False)
    model.set_experts_implementation("eager")  # torch has no grouped multiplication in float64
    return model


@pytest.fixture(scope="session")
def reference():
    return Reference(_model())


@pytest.fixture
def open_denoiser(opened, monkeypatch):
    """Opens denoisers over a tiny network; `reduce` replaces the reduction of all of them."""
    network = DiffusionGemmaNetwork(_model())

    def open_network(reduce=reduce_logits):
        monkeypatch.setattr(network_module, "reduce_logits", reduce)
        return opened(TransformersDenoiser(network, SPEC, None, 4))

    return open_network


@pytest.fixture
def draw_ids():
    rng = np.random.default_rng(11)
    return lambda count: rng.integers(0, VOCAB_SIZE, count).astype(np.int32)
