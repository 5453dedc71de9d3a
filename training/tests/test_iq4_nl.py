"""Weights in IQ4_NL: their bytes are those of llama.cpp's format, and a network is trained with what they hold."""

import gguf
import numpy as np
import torch
from torch import nn

from dg_training.iq4_nl import BLOCK, RoundedWeights, best_scales, pack, round_matrices, rounded


def weights():
    weight = torch.randn(6, 96, generator=torch.Generator().manual_seed(1)) * 0.1
    weight[2] = 0.0
    return weight


def test_a_reader_of_the_format_gets_the_rounded_weights():
    weight = weights()
    stored = gguf.quants.dequantize(pack(weight), gguf.GGMLQuantizationType.IQ4_NL)
    np.testing.assert_array_equal(stored, rounded(weight, best_scales(weight)).numpy())


def test_rounded_weights_are_near_and_are_not_changed_by_another_rounding():
    weight = weights()
    near = rounded(weight, best_scales(weight))
    assert (near - weight).square().mean().sqrt() < 0.12 * weight.std()
    again = rounded(near, best_scales(near))
    assert (again - near).abs().max() < 1e-3 * weight.std()


def test_a_step_sees_rounded_weights_and_updates_exact_ones():
    torch.manual_seed(2)
    network = nn.Sequential(nn.Linear(BLOCK, BLOCK, bias=False), nn.Linear(BLOCK, 4, bias=False))
    before = [weight.detach().clone() for weight in network.parameters()]
    rounding = RoundedWeights(network)
    for _ in range(6):
        with rounding.step():
            for weight, exact in zip(network.parameters(), before, strict=True):
                assert torch.allclose(weight, rounded(exact, best_scales(exact)), atol=1e-6)
        for weight, exact in zip(network.parameters(), before, strict=True):
            assert torch.allclose(weight, exact, atol=1e-6)
    round_matrices(network)
    for weight, exact in zip(network.parameters(), before, strict=True):
        assert torch.equal(weight, rounded(exact, best_scales(exact)))
