"""What `tests/backends/test_contract.py` does not cover: self-conditioning by lane, failures, cancellation."""

import numpy as np
import pytest
import torch

from dg_lsp.backends.transformers.cache import RollbackSlidingLayer
from dg_lsp.backends.transformers.network import reduce_logits
from dg_lsp.errors import BackendError, RequestError


def predict(denoiser, canvas, temperature=0.7, slot=0, lanes=()):
    return denoiser.predict(slot, [canvas], temperature, np.random.default_rng(3), lanes)[0]


def first_step(denoiser, prompt, canvas, temperature=0.7, slot=0):
    denoiser.prefill(slot, prompt[:0])
    denoiser.prefill(slot, prompt)
    return predict(denoiser, canvas, temperature, slot)


def assert_equal(left, right):
    assert np.allclose(left.confidence, right.confidence, atol=1e-6)
    assert np.allclose(left.entropy, right.entropy, atol=1e-5)


def test_a_canvas_is_conditioned_on_its_last_prediction_until_the_next_prefill(open_denoiser, draw_ids):
    denoiser, prompt, canvas = open_denoiser(), draw_ids(30), draw_ids(16)
    first = first_step(denoiser, prompt, canvas)
    assert np.abs(first.entropy - predict(denoiser, canvas).entropy).max() > 1e-3
    assert denoiser.prefill(0, prompt) == 0
    assert_equal(first, predict(denoiser, canvas))
    assert_equal(first, predict(denoiser, canvas, lanes=(5,)))
    shorter = canvas[:8]
    assert_equal(first_step(open_denoiser(), prompt, shorter), predict(denoiser, shorter, lanes=(5,)))


def test_each_canvas_needs_a_lane(open_denoiser, draw_ids):
    with pytest.raises(RequestError, match="lanes"):
        predict(open_denoiser(), draw_ids(8), lanes=(0, 1))


def test_a_failed_prefill_leaves_the_slot_empty(open_denoiser, draw_ids, float64_models, monkeypatch):
    denoiser, prompt = open_denoiser(), draw_ids(40)
    denoiser.prefill(0, prompt[:10])

    def fail(prefix, ids):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(float64_models[1], "encode", fail)
        with pytest.raises(BackendError, match="not enough memory for the prefill"):
            denoiser.prefill(0, prompt)
    assert denoiser.prefill(0, prompt) == 40
    assert_equal(first_step(denoiser, prompt, prompt[:8], slot=1), predict(denoiser, prompt[:8]))


def test_a_sliding_layer_keeps_only_the_tokens_of_its_limit_in_memory():
    layer = RollbackSlidingLayer(sliding_window=24, rollback=10)
    for length in (5, 100, 1, 300):
        states = torch.zeros(1, 2, length, 16)
        layer.update(states, states)
        num_kept = min(layer.get_seq_length(), 33)
        assert layer.keys.shape == (1, 2, num_kept, 16)
        assert layer.keys.untyped_storage().nbytes() == 4 * layer.keys.numel()


def test_nan_logits_are_an_error(open_denoiser, draw_ids):
    denoiser = open_denoiser(reduce=lambda raw, *arguments: reduce_logits(raw * float("nan"), *arguments))
    denoiser.prefill(0, draw_ids(4))
    with pytest.raises(BackendError, match="NaN"):
        predict(denoiser, draw_ids(8))


def test_a_closed_denoiser_refuses_requests(open_denoiser, draw_ids):
    denoiser = open_denoiser()
    denoiser.close()
    denoiser.close()
    with pytest.raises(BackendError, match="closed"):
        denoiser.prefill(0, draw_ids(3))
    with pytest.raises(BackendError, match="closed"):
        predict(denoiser, draw_ids(3))
