"""Matrices in 8 bits: how far they are from the wide ones, and that a whole model of them runs."""

import copy

import numpy as np
import torch
from tiny_diffusiongemma import TinyShape, tiny_model
from torch import nn

from dg_lsp.backends.hf import float8
from dg_lsp.backends.hf.network import Network


def noise(*size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(0))


def off(found, expected):
    return float((found - expected).detach().norm() / expected.detach().norm())


def test_rows_keep_their_scale():
    matrix = noise(5, 64) * torch.tensor([[1e-6], [1.0], [1e4], [0.0], [1.0]])
    rounded, scales = float8.rounded_rows(matrix)
    assert rounded.dtype is torch.float8_e4m3fn and scales.shape == (5, 1)
    wide = rounded.float() * scales
    assert ((wide - matrix).abs() <= matrix.abs() / 16 + matrix.abs().amax(1, keepdim=True) * 2e-5).all()


def test_a_layer_is_almost_what_it_was():
    layer, rows = nn.Linear(64, 48, bias=False), noise(2, 7, 64)
    found = float8.Float8Linear(layer, torch.device("cpu"))(rows)
    assert found.shape == (2, 7, 48)
    assert 0.005 < off(found, layer(rows)) < 0.06


def test_experts_are_almost_what_they_were():
    experts = tiny_model(TinyShape(layers=3, experts=8, top_k=2)).model.decoder.layers[0].experts
    rows = noise(9, 64)
    index = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(i))[:2] for i in range(9)])
    weights = torch.rand(9, 2, generator=torch.Generator().manual_seed(1))
    expected = experts(rows, index, weights)
    found = float8.Float8Experts(experts, torch.device("cpu"))(rows, index, weights)
    assert 0.005 < off(found, expected) < 0.08


def test_a_model_in_8_bits_is_half_as_large_and_shares_its_halves(open_hf, rng):
    model = tiny_model(TinyShape(window=24)).to(torch.bfloat16)
    wide = copy.deepcopy(model)
    float8.squeeze(model, torch.device("cpu"))
    encoder, decoder = model.model.encoder.language_model, model.model.decoder
    for ours, theirs in zip(decoder.layers, encoder.layers, strict=True):
        assert ours.experts is theirs.experts and ours.self_attn.q_proj is theirs.self_attn.q_proj
    kept = sum(t.numel() for t in decoder.layers.parameters())
    squeezed = sum(t.numel() for t in decoder.layers.buffers() if t.dtype is torch.float8_e4m3fn)
    assert squeezed > 20 * kept
    prompt, canvas = (rng.integers(110, 500, size).astype(np.int32) for size in (50, 16))
    said = []
    for network in (Network(wide), Network(model)):
        denoiser = open_hf(network)
        denoiser.prefill(0, prompt)
        said.append(denoiser.predict(0, [canvas], 0.8, np.random.default_rng(0))[0].entropy)
    assert np.abs(said[0] - said[1]).mean() < 0.5
