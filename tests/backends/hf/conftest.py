"""The reference, transformers' own forward pass and `generate`, and our network over the same tiny random weights.

In float64 both compute the same numbers up to the last bits; in float32 the order of sums shows, a few 1e-5.
"""

import numpy as np
import pytest
import torch
from tiny_diffusiongemma import TinyShape, tiny_model
from transformers import DynamicCache

from dg_lsp.backends.hf.denoiser import HfDenoiser, Limits
from dg_lsp.backends.hf.network import Network
from dg_lsp.canvas.spec import ModelSpec, PromptFormat, UniformSampling

WINDOW = 24
VOCAB = 512
SHAPE = TinyShape(window=WINDOW)
SPEC = ModelSpec(
    name="tiny-diffusiongemma",
    vocab_size=VOCAB,
    sampling=UniformSampling(),
    end_ids=(1, 106, 50),
    prompt_format=PromptFormat.INSTRUCT,
    canvas_lengths=(8, 16, 32, 64),
    max_prompt_tokens=256,
    has_causal_head=False,
    template="gemma4",
)


class Bytes:
    """A tokenizer for tests that never look at text."""

    def encode(self, text):
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 108

    def decode(self, ids):
        return bytes(int(i) - 108 for i in ids if 108 <= i < 364)

    def special(self, spelling):
        del spelling


class Reference:
    """transformers, untouched: DynamicCache, torch's own attention, experts one by one."""

    def __init__(self, model):
        self.model = model
        self.dtype = model.dtype

    @torch.inference_mode()
    def encode(self, prompt):
        cache = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        if len(prompt):
            self.model.model.encoder(input_ids=torch.tensor(np.array(prompt))[None], past_key_values=cache)
        return cache

    @torch.inference_mode()
    def logits(self, cache, canvas, said=None):
        """Of one canvas after an encoded prompt; `said` are the tempered logits of the step before."""
        if said is not None:
            said = said[None].to(self.dtype)
        ids = torch.tensor(np.array(canvas))[None]
        return self.model(decoder_input_ids=ids, past_key_values=cache, self_conditioning_logits=said).logits[0]


def _calm(model):
    """Attention spread and feedback damped: as they are drawn, each layer and each step blows a rounding up tenfold."""
    for layer in model.model.decoder.layers:  # the encoder's are the same tensors
        layer.self_attn.q_norm.weight.data.mul_(0.25)
    model.model.decoder.self_conditioning.down_proj.weight.data.mul_(0.3)
    return model


def _models(dtype):
    torch.set_num_threads(1)
    reference, ours = _calm(tiny_model(SHAPE)).to(dtype), _calm(tiny_model(SHAPE)).to(dtype)
    for model in (reference, ours):
        model.requires_grad_(False)
    reference.set_experts_implementation("eager")
    # torch groups experts in one multiplication for the types that it has kernels for
    ours.set_experts_implementation("eager" if dtype is torch.float64 else "grouped_mm")
    return Reference(reference), Network(ours)


@pytest.fixture(scope="session")
def double():
    """Reference and network in float64."""
    return _models(torch.float64)


@pytest.fixture(scope="session")
def single():
    """Reference and network in float32."""
    return _models(torch.float32)


@pytest.fixture
def open_hf(double):
    """Opens denoisers over the tiny network; closes them after the test."""
    opened = []

    def open_one(network=double[1], spec=SPEC, *, num_slots=4, **options):
        limits = Limits(num_slots, spec.max_prompt_tokens, 128)
        denoiser = HfDenoiser(network, spec, Bytes(), limits, **options)
        opened.append(denoiser)
        return denoiser

    open_one.spec, open_one.window = SPEC, WINDOW
    yield open_one
    for denoiser in opened:
        denoiser.close()


@pytest.fixture
def rng():
    return np.random.default_rng(11)
