"""The head's output reduced, against plain definitions; kernels of our own against what torch says."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dg_lsp.backends.hf.reduce import draw, reduce, soft_cap

BANNED = torch.tensor([3, 7])


def output(rows=6, vocab_size=500, scale=20.0, seed=0):
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def test_values_are_those_of_the_capped_banned_tempered_distribution():
    raw = output()
    logits = soft_cap(raw, 30.0)
    assert logits.abs().max() <= 30
    logits[:, BANNED] = float("-inf")
    expected = torch.distributions.Categorical(logits=logits / 0.6)
    found = reduce(raw, 30.0, BANNED, torch.tensor(0.6), torch.full((6,), 0.5))
    assert torch.equal(found.rows[0].long(), logits.argmax(-1))
    assert torch.allclose(found.rows[2], expected.probs.max(-1).values)
    plain = -(expected.probs * torch.where(expected.probs > 0, expected.probs.log(), 0.0)).sum(-1)
    assert torch.allclose(found.rows[3], plain, atol=1e-5)
    assert torch.allclose(found.weights, expected.probs, atol=1e-6)
    assert (found.weights[:, BANNED] == 0).all()


def test_conditioning_is_rounded_as_the_reference_rounds_it():
    raw = output().to(torch.bfloat16)
    found = reduce(raw, 30.0, BANNED[:0], torch.tensor(0.6), torch.full((6,), 0.5))
    logits = (torch.tanh(raw.float() / 30) * 30 / 0.6).to(torch.bfloat16)
    assert torch.equal(found.weights, logits.softmax(-1, dtype=torch.float32).to(torch.bfloat16))


def test_samples_follow_the_distribution():
    raw = output(rows=1, vocab_size=40, scale=2.0).expand(20_000, -1).contiguous()
    chances = torch.from_numpy(np.random.default_rng(0).random(20_000))
    found = reduce(raw, 30.0, BANNED, torch.tensor(1.0), chances)
    counts = torch.bincount(found.rows[1].long(), minlength=40) / 20_000
    assert (counts - found.weights[0]).abs().sum() / 2 < 0.02
    assert counts[BANNED].sum() == 0


@pytest.mark.parametrize("vocab_size", [1, 5, 127, 128, 129, 1000])
def test_chances_walk_through_the_vocabulary_in_order(vocab_size):
    probabilities = torch.full((1, vocab_size), 1 / vocab_size)
    middles = (torch.arange(vocab_size) + 0.5) / vocab_size
    drawn = draw(probabilities.expand(vocab_size, -1), middles)
    assert torch.equal(drawn, torch.arange(vocab_size))
    assert draw(probabilities, torch.tensor([0.0])).item() == 0
    assert draw(probabilities, torch.tensor([1 - 1e-9], dtype=torch.float64)).item() == vocab_size - 1


def test_what_cannot_be_is_never_drawn():
    probabilities = torch.zeros(3, 300)
    probabilities[:, 200] = 1.0
    chances = torch.tensor([0.0, 0.5, 1 - 1e-9], dtype=torch.float64)
    assert draw(probabilities, chances).tolist() == [200] * 3


FUSED = """
import torch
from dg_lsp.backends.hf import fused, reduce
for size, kind in ((500, torch.float32), (5000, torch.float32), (500, torch.bfloat16)):
    generator = torch.Generator().manual_seed(size)
    raw = (torch.randn(3, size, generator=generator) * torch.tensor([[0.1], [3.0], [15.0]])).to(kind)
    given = (30.0, torch.tensor([3, 7]), torch.tensor(0.7), torch.rand(3, generator=generator))
    expected, found = reduce.reduce(raw, *given), fused.reduce(raw, *given)
    assert torch.equal(expected.rows[0], found.rows[0])
    assert torch.allclose(expected.rows[2:], found.rows[2:], atol=2e-5), (expected.rows, found.rows)
    assert (expected.weights.gather(1, found.rows[1].long()[:, None]) > 0).all()
    if kind is torch.float32:  # the interpreter cuts bits off where a GPU rounds
        assert torch.allclose(expected.weights, found.weights, atol=1e-5)
from dg_lsp.backends.hf import float8, rows
from tiny_diffusiongemma import TinyShape, tiny_model
torch.set_grad_enabled(False)
model = tiny_model(TinyShape(layers=3))
layer = model.model.decoder.layers[0]
given = [(layer.input_layernorm, torch.randn(1, 5, 64) * 3), (layer.self_attn.q_norm, torch.randn(1, 3, 4, 16))]
given += [(layer.self_attn.v_norm, torch.randn(6, 32)[:, :16])]
expected = [norm(values) for norm, values in given]
assert rows.fuse_norms(model) > 60
for (norm, values), wanted in zip(given, expected):
    assert torch.allclose(norm(values), wanted, atol=2e-6)
matrix = torch.randn(7, 48) * torch.tensor([1e-6, 1.0, 1e4, 0.0, 1.0, 3.0, 7.0])[:, None]
rounded, scales = rows.rounded_rows(matrix)
wanted, expected = float8.rounded_rows(matrix)
assert torch.allclose(scales, expected)
assert (rounded.float() == wanted.float()).float().mean() > 0.9  # the interpreter loses a carry
raw = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.5, 9.0]]).expand(100, 6).contiguous()
given = (30.0, torch.tensor([5]), torch.tensor(1.0), torch.rand(100, generator=torch.Generator().manual_seed(2)))
found = fused.reduce(raw, *given)
counts = torch.bincount(found.rows[1].long(), minlength=6) / 100
assert (counts - found.weights[0]).abs().sum() / 2 < 0.15 and counts[5] == 0, counts
"""


def test_fused_kernels_say_what_torch_says():
    """In Triton's interpreter, which needs no GPU; torch's wheels for GPUs bring Triton along."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("this torch comes without Triton")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]),
    }
    process = subprocess.run(
        [sys.executable, "-c", FUSED], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert process.returncode == 0, process.stderr
