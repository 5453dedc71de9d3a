"""Comparisons of predictions of random weights that hold on every processor.

Processors round differently, and of two nearly equal logits either may become the larger one. An argmax is therefore
compared only where a margin decides it.
"""

import numpy as np


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
    exact = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exact / exact.sum(axis=1, keepdims=True)
    entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-30))).sum(axis=1)
    np.testing.assert_allclose(prediction.confidence, probabilities.max(axis=1), atol=atol)
    np.testing.assert_allclose(prediction.entropy, entropy, atol=10 * atol)
