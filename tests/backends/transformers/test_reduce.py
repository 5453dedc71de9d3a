"""Compares the reduction of logits with plain definitions."""

import pytest
import torch

from dg_lsp.backends.transformers.network import draw, reduce_logits, soft_cap

BANNED_IDS = torch.tensor([3, 7])


def raw_logits(rows=6, vocab_size=500, scale=20.0):
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0)) * scale


def test_values_are_those_of_the_capped_banned_tempered_distribution():
    raw = raw_logits()
    logits = soft_cap(raw, 30.0)
    assert logits.abs().max() <= 30
    logits[:, BANNED_IDS] = float("-inf")
    expected = torch.distributions.Categorical(logits=logits / 0.6)
    reduced = reduce_logits(raw, 30.0, BANNED_IDS, torch.tensor(0.6), torch.full((6,), 0.5))
    assert torch.equal(reduced.rows[0].long(), logits.argmax(-1))
    assert torch.allclose(reduced.rows[2], expected.probs.max(-1).values)
    entropy = -(expected.probs * torch.where(expected.probs > 0, expected.probs.log(), 0.0)).sum(-1)
    assert torch.allclose(reduced.rows[3], entropy, atol=1e-5)
    assert torch.allclose(reduced.probabilities, expected.probs, atol=1e-6)
    assert (reduced.probabilities[:, BANNED_IDS] == 0).all()


def test_probabilities_are_rounded_as_in_transformers():
    raw = raw_logits().to(torch.bfloat16)
    reduced = reduce_logits(raw, 30.0, BANNED_IDS[:0], torch.tensor(0.6), torch.full((6,), 0.5))
    logits = (torch.tanh(raw.float() / 30) * 30 / 0.6).to(torch.bfloat16)
    assert torch.equal(reduced.probabilities, logits.softmax(-1, dtype=torch.float32).to(torch.bfloat16))


@pytest.mark.parametrize("vocab_size", [1, 5, 127, 128, 129, 1000])
def test_draw_inverts_the_cumulative_sum(vocab_size):
    probabilities = torch.full((1, vocab_size), 1 / vocab_size)
    middles = (torch.arange(vocab_size) + 0.5) / vocab_size
    assert torch.equal(draw(probabilities.expand(vocab_size, -1), middles), torch.arange(vocab_size))
    assert draw(probabilities, torch.tensor([0.0])).item() == 0
    assert draw(probabilities, torch.tensor([1 - 1e-9], dtype=torch.float64)).item() == vocab_size - 1


def test_draw_never_returns_a_token_of_probability_0():
    probabilities = torch.zeros(3, 300)
    probabilities[:, 200] = 1.0
    assert draw(probabilities, torch.tensor([0.0, 0.5, 1 - 1e-9], dtype=torch.float64)).tolist() == [200] * 3
