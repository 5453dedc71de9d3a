"""The reduction of logits.

`tests/backends/test_contract.py` has what all backends have in common.
"""

import pytest
import torch
from margins import predict

from dg_lsp.backends.transformers.network import draw, reduce_logits
from dg_lsp.diffusion.denoiser import TopK
from dg_lsp.errors import BackendError

BANNED_IDS = torch.tensor([3, 7])


@pytest.mark.parametrize("vocab_size", [1, 5, 127, 128, 129, 1000])
def test_draw_inverts_the_cumulative_sum(vocab_size):
    probabilities = torch.full((1, vocab_size), 1 / vocab_size)
    middles = (torch.arange(vocab_size) + 0.5) / vocab_size
    assert torch.equal(draw(probabilities.expand(vocab_size, -1), middles), torch.arange(vocab_size))
    assert draw(probabilities, torch.tensor([0.0])).item() == 0
    assert draw(probabilities, torch.tensor([1 - 1e-9], dtype=torch.float64)).item() == vocab_size - 1


def test_nan_logits_are_an_error(open_denoiser, draw_ids):
    denoiser = open_denoiser(reduce=lambda raw, *arguments: reduce_logits(raw * float("nan"), *arguments))
    denoiser.prefill(0, draw_ids(4))
    with pytest.raises(BackendError, match="NaN"):
        predict(denoiser, draw_ids(8), temperature=0.7)


@pytest.mark.parametrize("counts_tail", [False, True], ids=["entropy of the best", "entropy of all"])
def test_best_tokens_are_drawn_and_fed_back(counts_tail):
    raw = torch.randn(6, 500, generator=torch.Generator().manual_seed(0)) * 20
    uniforms = torch.linspace(0, 0.99, 6)
    whole = reduce_logits(raw, 30.0, BANNED_IDS, torch.tensor(0.6), uniforms)
    best = reduce_logits(raw, 30.0, BANNED_IDS, torch.tensor(0.6), uniforms, TopK(9, counts_tail))
    kept = whole.probabilities.topk(9)
    expected = torch.zeros_like(raw).scatter(1, kept.indices, kept.values / kept.values.sum(dim=-1, keepdim=True))
    torch.testing.assert_close(best.probabilities, expected)
    assert torch.equal(best.rows[1].long(), draw(expected, uniforms))
    assert torch.equal(best.rows[2], whole.rows[2])
    entropy = whole.rows[3] if counts_tail else torch.special.entr(expected).sum(dim=-1)
    torch.testing.assert_close(best.rows[3], entropy)
    torch.testing.assert_close(best.rows[4], whole.probabilities.gather(1, best.rows[1].long()[:, None])[:, 0])
