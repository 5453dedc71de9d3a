"""Logits to predictions, compared with the definitions in float64."""

from dataclasses import fields

import numpy as np
import pytest
from margins import entropy_of, shares_of

from dg_lsp.backends.llamacpp import reduction
from dg_lsp.backends.llamacpp.reduction import Reducer
from dg_lsp.canvas.layout import token_ids
from dg_lsp.diffusion.denoiser import Prediction
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


def test_draws_follow_the_probabilities():
    """Counts of 20,000 draws from 8 tokens by the chi-square test."""
    shares = np.array([0.3, 0.02, 0.2, 0.05, 0.25, 0.01, 0.1, 0.07])
    logits = np.log(shares).astype(np.float32)[None].repeat(20_000, axis=0)
    counts = np.bincount(Reducer(()).reduce(logits, 1.0, np.random.default_rng(4)).sampled_ids, minlength=8)
    # of 7 degrees of freedom; exceeded by chance once in 1,000
    assert (np.square(counts - 20_000 * shares) / (20_000 * shares)).sum() < 24.3
