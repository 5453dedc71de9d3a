"""Logits to predictions, compared with the definitions in float64."""

from dataclasses import fields

import numpy as np
import pytest

from dg_lsp.backends.llamacpp import reduction
from dg_lsp.backends.llamacpp.reduction import Reducer
from dg_lsp.canvas.layout import token_ids
from dg_lsp.diffusion.denoiser import Prediction, TopK
from dg_lsp.errors import BackendError


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("banned", [(), (0, 3, 999)])
def test_reduction_follows_the_definition(temperature, banned):
    logits = np.random.default_rng(1).normal(0, 3, (17, 1000)).astype(np.float32)
    exact = logits.astype(np.float64) / (temperature or 1.0)
    exact[:, list(banned)] = -np.inf
    p = np.exp(exact - exact.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    reduced = Reducer(banned).reduce(logits, temperature, np.random.default_rng(0))
    assert np.array_equal(reduced.argmax_ids, p.argmax(axis=1))
    assert np.allclose(reduced.confidence, p.max(axis=1), rtol=1e-4)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(p * np.log(p), axis=1)
    assert np.allclose(reduced.entropy, entropy, atol=2e-4)
    assert np.allclose(reduced.sampled_confidence, p[np.arange(17), reduced.sampled_ids], rtol=1e-4)
    assert not np.isin(reduced.sampled_ids, banned).any()
    assert temperature or np.array_equal(reduced.sampled_ids, reduced.argmax_ids)


def test_lowest_temperature_gives_numbers():
    logits = np.random.default_rng(1).normal(0, 3, (5, 50)).astype(np.float32)
    cold = Reducer((0, 1)).reduce(logits, 1e-30, np.random.default_rng(0))
    assert (cold.confidence > 0.99).all()
    assert np.isfinite(cold.entropy).all()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_threads_that_share_a_reduction_compute_the_same(monkeypatch, temperature, num_rows):
    monkeypatch.setattr(reduction, "_SHARED_LOGITS", 1)
    logits = np.random.default_rng(1).normal(0, 3, (num_rows, 1000)).astype(np.float32)
    allowed = {num_rows - 1: token_ids([5, 8, 13])}
    reductions = []
    for threads in (1, 3):
        reducer = Reducer((0, 3), expand_id=7, threads=threads)
        reductions.append(reducer.reduce(logits.copy(), temperature, np.random.default_rng(0), allowed))
    for field in fields(Prediction):
        alone, shared = (getattr(reduction, field.name) for reduction in reductions)
        assert np.allclose(alone, shared, rtol=1e-5, atol=1e-6), field.name
        assert alone.dtype == shared.dtype
    with pytest.raises(BackendError, match="no numbers"):
        reducer.reduce(np.full((num_rows, 1000), np.nan, np.float32), temperature, np.random.default_rng(0))


@pytest.mark.parametrize("counts_tail", [False, True], ids=["entropy of the best", "entropy of all"])
@pytest.mark.parametrize("size", [2, 30, 999])
def test_best_tokens_follow_the_definition(size, counts_tail):
    logits = np.random.default_rng(1).normal(0, 3, (17, 1000)).astype(np.float32)
    exact = logits.astype(np.float64) / 0.7
    exact[:, :5] = -np.inf
    whole = np.exp(exact - exact.max(axis=1, keepdims=True))
    whole /= whole.sum(axis=1, keepdims=True)
    kept = np.where(whole < np.sort(whole, axis=1)[:, -size, None], 0.0, whole)
    of_entropy = whole if counts_tail else kept / kept.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(of_entropy * np.log(of_entropy), axis=1)
    rows = np.arange(17)
    for seed in range(40):
        top_k = TopK(size, counts_tail)
        rng = np.random.default_rng(seed)
        reduced = Reducer((0, 1, 2, 3, 4)).reduce(logits.copy(), 0.7, rng, top_k=top_k)
        assert np.allclose(reduced.entropy, entropy, atol=2e-4)
        assert np.allclose(reduced.confidence, whole.max(axis=1), rtol=1e-4)
        assert np.allclose(reduced.sampled_confidence, kept[rows, reduced.sampled_ids], rtol=1e-4)
        assert (kept[rows, reduced.sampled_ids] > 0).all()


def test_draws_from_the_best_tokens_follow_their_probabilities():
    """Counts of 20,000 draws from 5 of 8 tokens by the chi-square test of 4 degrees of freedom."""
    shares = np.array([0.3, 0.02, 0.2, 0.05, 0.25, 0.01, 0.1, 0.07])
    logits = np.tile(np.log(shares).astype(np.float32), (20_000, 1))
    drawn = Reducer(()).reduce(logits, 1.0, np.random.default_rng(4), top_k=TopK(5)).sampled_ids
    counts = np.bincount(drawn, minlength=8)
    best = np.sort(np.argsort(-shares)[:5])
    expected = 20_000 * shares[best] / shares[best].sum()
    assert counts[best].sum() == 20_000
    assert (np.square(counts[best] - expected) / expected).sum() < 18.5  # exceeded by chance once in 1,000
