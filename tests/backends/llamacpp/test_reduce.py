"""Logits to predictions, compared with the definitions in float64."""

from dataclasses import fields

import numpy as np
import pytest
from margins import entropy_of, shares_of

from dg_lsp.backends.llamacpp import reduction
from dg_lsp.backends.llamacpp.reduction import Reducer
from dg_lsp.canvas.layout import token_ids
from dg_lsp.diffusion.denoiser import Prediction, TopK
from dg_lsp.errors import BackendError

ROWS = np.arange(17)


def random_logits(num_rows=17):
    return np.random.default_rng(1).normal(0, 3, (num_rows, 1000)).astype(np.float32)


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("banned", [(), (0, 3, 999)])
def test_reduction_follows_the_definition(temperature, banned):
    shares = shares_of(random_logits(), temperature, banned)
    reduced = Reducer(banned).reduce(random_logits(), temperature, np.random.default_rng(0))
    assert np.array_equal(reduced.argmax_ids, shares.argmax(axis=1))
    assert np.allclose(reduced.confidence, shares.max(axis=1), rtol=1e-4)
    assert np.allclose(reduced.entropy, entropy_of(shares), atol=2e-4)
    assert np.allclose(reduced.sampled_confidence, shares[ROWS, reduced.sampled_ids], rtol=1e-4)
    assert not np.isin(reduced.sampled_ids, banned).any()
    assert temperature or np.array_equal(reduced.sampled_ids, reduced.argmax_ids)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_threads_that_share_a_reduction_compute_the_same(monkeypatch, temperature, num_rows):
    monkeypatch.setattr(reduction, "_SHARED_LOGITS", 1)
    allowed = {num_rows - 1: token_ids([5, 8, 13])}
    reductions = []
    for threads in (1, 3):
        reducer = Reducer((0, 3), expand_id=7, threads=threads)
        reductions.append(reducer.reduce(random_logits(num_rows), temperature, np.random.default_rng(0), allowed))
    for field in fields(Prediction):
        alone, shared = (getattr(reduction, field.name) for reduction in reductions)
        assert np.allclose(alone, shared, rtol=1e-5, atol=1e-6), field.name
        assert alone.dtype == shared.dtype
    with pytest.raises(BackendError, match="no numbers"):
        reducer.reduce(np.full((num_rows, 1000), np.nan, np.float32), temperature, np.random.default_rng(0))


@pytest.mark.parametrize("counts_tail", [False, True], ids=["entropy of the best", "entropy of all"])
@pytest.mark.parametrize("size", [2, 30, 999])
def test_best_tokens_follow_the_definition(size, counts_tail):
    banned = (0, 1, 2, 3, 4)
    whole, best = (shares_of(random_logits(), 0.7, banned, number) for number in (0, size))
    for seed in range(40):
        rng = np.random.default_rng(seed)
        reduced = Reducer(banned).reduce(random_logits(), 0.7, rng, top_k=TopK(size, counts_tail))
        assert np.allclose(reduced.entropy, entropy_of(whole if counts_tail else best), atol=2e-4)
        assert np.allclose(reduced.confidence, whole.max(axis=1), rtol=1e-4)
        assert np.allclose(reduced.sampled_confidence, whole[ROWS, reduced.sampled_ids], rtol=1e-4)
        assert (best[ROWS, reduced.sampled_ids] > 0).all()


@pytest.mark.parametrize("size", [None, 5], ids=["all tokens", "5 tokens"])
def test_draws_follow_the_probabilities(size):
    """Counts of 20,000 draws from 8 tokens by the chi-square test."""
    logits = np.log([[0.3, 0.02, 0.2, 0.05, 0.25, 0.01, 0.1, 0.07]]).astype(np.float32)
    top_k = TopK(size) if size else None
    drawn = Reducer(()).reduce(logits.repeat(20_000, axis=0), 1.0, np.random.default_rng(4), top_k=top_k).sampled_ids
    counts = np.bincount(drawn, minlength=8)
    expected = 20_000 * shares_of(logits, 1.0, size=size or 0)[0]
    assert counts[expected == 0].sum() == 0
    # of at most 7 degrees of freedom; exceeded by chance once in 1,000
    assert (np.square(counts - expected)[expected > 0] / expected[expected > 0]).sum() < 24.3
