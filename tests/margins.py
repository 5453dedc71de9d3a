"""Predictions of random weights: one way to request them, their definition, and comparisons on every processor.

Processors round differently, and of two nearly equal logits either may become the larger one. An argmax is therefore
compared only where a margin decides it.
"""

import numpy as np

from dg_lsp.canvas.layout import token_ids


def predict(denoiser, *canvases, slot=0, temperature=0.0, seed=7, lanes=(), top_k=None):
    rng = np.random.default_rng(seed)
    return denoiser.predict(slot, list(map(token_ids, canvases)), temperature, rng, lanes, top_k)


def shares_of(logits, temperature=0.0, banned=(), size=0):
    """Probabilities in float64, shape (N, V): of all tokens, or of the `size` best tokens alone."""
    exact = logits.astype(np.float64) / (temperature or 1.0)
    exact[:, list(banned)] = -np.inf
    weights = np.exp(exact - exact.max(axis=1, keepdims=True))
    if size:
        weights[weights < np.sort(weights, axis=1)[:, -size, None]] = 0.0
    return weights / weights.sum(axis=1, keepdims=True)


def entropy_of(shares):
    return -(shares * np.log(np.maximum(shares, 1e-30))).sum(axis=1)


def lead(logits, ids):
    """How far the best token of each row is ahead of the token in `ids`."""
    return logits.max(axis=-1) - logits[np.arange(len(ids)), ids]


def check_close(left, right, atol):
    """Two computations of the same prediction: equal to `atol`, and to ten times that in the entropy."""
    np.testing.assert_allclose(left.confidence, right.confidence, atol=atol)
    np.testing.assert_allclose(left.entropy, right.entropy, atol=10 * atol)
    is_clear = left.confidence > 0.5 + atol  # no other token can come close
    np.testing.assert_array_equal(left.argmax_ids[is_clear], right.argmax_ids[is_clear])


def check_logits(prediction, logits, atol):
    """A prediction at temperature 0 or 1, and the logits that it should be of, shape (N, V)."""
    assert lead(logits, prediction.argmax_ids).max() < 10 * atol
    shares = shares_of(logits)
    np.testing.assert_allclose(prediction.confidence, shares.max(axis=1), atol=atol)
    np.testing.assert_allclose(prediction.entropy, entropy_of(shares), atol=10 * atol)
