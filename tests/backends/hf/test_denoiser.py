"""What `Denoiser` promises, over transformers; what a canvas said before is forgotten with the next prefill."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dg_lsp.canvas.layout import Canvas
from dg_lsp.diffusion.loop import race
from dg_lsp.errors import BackendError, ModelUnsupportedError, RequestError


def ids(rng, count):
    return rng.integers(110, 500, count).astype(np.int32)


def say(denoiser, prompt, canvas, temperature=0.7, slot=0, seed=3):
    denoiser.prefill(slot, prompt[:0])
    denoiser.prefill(slot, prompt)
    return denoiser.predict(slot, [canvas], temperature, np.random.default_rng(seed))[0]


def same(left, right):
    assert np.array_equal(left.argmax_ids, right.argmax_ids)
    assert np.array_equal(left.sampled_ids, right.sampled_ids)
    assert np.allclose(left.confidence, right.confidence, atol=1e-6)
    assert np.allclose(left.entropy, right.entropy, atol=1e-5)


def test_a_prediction_has_one_value_for_each_position(open_hf, rng):
    denoiser = open_hf()
    for length in (1, 8, 13, 64):
        prediction = say(denoiser, ids(rng, 9), ids(rng, length))
        for found in (prediction.argmax_ids, prediction.sampled_ids):
            assert found.shape == (length,) and found.dtype == np.int32
        for floats in (prediction.confidence, prediction.entropy):
            assert floats.shape == (length,) and floats.dtype == np.float32
        assert ((prediction.confidence > 0) & (prediction.confidence <= 1)).all()
        assert ((prediction.entropy >= 0) & (prediction.entropy <= np.log(512) + 1e-3)).all()


@pytest.mark.parametrize("temperature", [0.0, 0.5, 3.0])
def test_banned_ids_are_never_predicted_nor_fed_back(open_hf, rng, temperature):
    banned = tuple(range(0, 512, 2))
    denoiser = open_hf(spec=replace(open_hf.spec, banned_ids=banned))
    denoiser.prefill(0, ids(rng, 20))
    for _ in range(3):
        (prediction,) = denoiser.predict(0, [ids(rng, 32)], temperature, rng)
        assert (prediction.argmax_ids % 2 == 1).all() and (prediction.sampled_ids % 2 == 1).all()
        assert (prediction.entropy <= np.log(256) + 1e-3).all()


def test_samples_follow_the_seed_and_are_the_argmax_at_temperature_0(open_hf, rng):
    denoiser, prompt, canvas = open_hf(), ids(rng, 30), ids(rng, 32)
    same(say(denoiser, prompt, canvas, 2.0), say(denoiser, prompt, canvas, 2.0))
    other = say(denoiser, prompt, canvas, 2.0, seed=4)
    assert not np.array_equal(other.sampled_ids, say(denoiser, prompt, canvas, 2.0).sampled_ids)
    greedy = say(denoiser, prompt, canvas, 0.0)
    assert np.array_equal(greedy.argmax_ids, greedy.sampled_ids)


def test_a_canvas_is_conditioned_on_what_was_said_of_it_until_the_next_prefill(open_hf, rng):
    denoiser, prompt, canvas = open_hf(), ids(rng, 30), ids(rng, 16)
    first = say(denoiser, prompt, canvas)
    (second,) = denoiser.predict(0, [canvas], 0.7, np.random.default_rng(3))
    assert np.abs(first.entropy - second.entropy).max() > 1e-3
    assert denoiser.prefill(0, prompt) == 0
    same(first, denoiser.predict(0, [canvas], 0.7, np.random.default_rng(3))[0])
    (other_lane,) = denoiser.predict(0, [canvas], 0.7, np.random.default_rng(3), (5,))
    same(first, other_lane)
    denoiser.predict(0, [ids(rng, 24)], 0.7, rng, (5,))  # another length: nothing of it was said before


def test_slots_are_independent(open_hf, rng):
    denoiser, canvas = open_hf(), ids(rng, 8)
    prompts = [ids(rng, size) for size in (5, 60, 200)]
    alone = [say(denoiser, prompt, canvas, slot=slot) for slot, prompt in enumerate(prompts)]
    for slot in (1, 0, 2):
        assert denoiser.prefill(slot, prompts[slot]) == 0
        same(alone[slot], denoiser.predict(slot, [canvas], 0.7, np.random.default_rng(3))[0])


def test_an_empty_prompt_is_a_prompt(open_hf, rng):
    denoiser, canvas = open_hf(), ids(rng, 8)
    assert denoiser.prefill(0, ids(rng, 30)) == 30
    assert denoiser.prefill(0, ids(rng, 0)) == 0
    first = denoiser.predict(0, [canvas], 0.0, rng)[0]
    same(first, open_hf().predict(0, [canvas], 0.0, rng)[0])


BAD_PROMPTS = {"-1": [5, -1], "beyond the vocabulary": [5, 10**6], "a table": [[5]], "points": [1.5], "long": [5] * 999}


@pytest.mark.parametrize("prompt", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_a_bad_prompt_is_refused_and_the_slot_keeps_its_own(open_hf, rng, prompt):
    denoiser, good = open_hf(), ids(rng, 12)
    denoiser.prefill(0, good)
    with pytest.raises(RequestError):
        denoiser.prefill(0, np.array(prompt))
    assert denoiser.prefill(0, good) == 0


BAD_STEPS = {"none": [], "empty": [[]], "one is empty": [[9], []], "-1": [[-1]], "long": [[9] * 500], "many": [[9]] * 9}


@pytest.mark.parametrize("canvases", BAD_STEPS.values(), ids=BAD_STEPS)
def test_bad_canvases_are_refused(open_hf, rng, canvases):
    denoiser = open_hf()
    with pytest.raises(RequestError):
        denoiser.predict(0, [np.array(canvas, dtype=int) for canvas in canvases], 0.0, rng)


def test_what_is_not_there_is_refused(open_hf, rng):
    denoiser = open_hf()
    for slot in (-1, 4):
        with pytest.raises(RequestError):
            denoiser.prefill(slot, ids(rng, 3))
        with pytest.raises(RequestError):
            denoiser.predict(slot, [ids(rng, 8)], 0.0, rng)
    with pytest.raises(RequestError, match="lanes"):
        denoiser.predict(0, [ids(rng, 8)], 0.0, rng, (0, 1))
    with pytest.raises(RequestError):
        denoiser.predict(0, [ids(rng, 8)], float("nan"), rng)
    with pytest.raises(BackendError, match="causally"):
        denoiser.extend(0, ids(rng, 1))
    with pytest.raises(ModelUnsupportedError, match="vocabulary"):
        open_hf(spec=replace(open_hf.spec, vocab_size=600))


def test_a_failed_prefill_leaves_the_slot_empty(open_hf, rng, double, monkeypatch):
    denoiser, prompt = open_hf(), ids(rng, 40)
    denoiser.prefill(0, prompt[:10])

    def broken(prefix, new):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(double[1], "encode", broken)
        with pytest.raises(BackendError, match="no memory for the prefill"):
            denoiser.prefill(0, prompt)
    assert denoiser.prefill(0, prompt) == 40
    same(say(denoiser, prompt, prompt[:8], slot=1), denoiser.predict(0, [prompt[:8]], 0.7, np.random.default_rng(3))[0])


def test_weights_that_are_no_numbers_are_an_error(open_hf, rng):
    def nothing(raw, cap, banned_ids, temperature, chances):
        from dg_lsp.backends.hf.reduce import reduce

        return reduce(raw * float("nan"), cap, banned_ids, temperature, chances)

    denoiser = open_hf(reduce=nothing)
    denoiser.prefill(0, ids(rng, 4))
    with pytest.raises(BackendError, match="no numbers"):
        denoiser.predict(0, [ids(rng, 8)], 0.5, rng)


def test_whoever_stops_asking_has_cancelled(open_hf, rng):
    """Between two steps nothing runs, and what was cancelled leaves nothing behind in the cache."""
    denoiser, prompt = open_hf(), ids(rng, 30)
    before = say(denoiser, prompt, prompt[:16])
    denoiser.prefill(0, prompt)
    plan = Canvas(prompt, ids(rng, 16), np.zeros(16, np.bool_))
    steps = race(denoiser, 0, [plan, plan], open_hf.spec.sampling, rng)
    assert [step.number for step in next(steps)] == [1, 1]
    steps.close()
    assert denoiser.prefill(0, prompt) == 0
    same(before, denoiser.predict(0, [prompt[:16]], 0.7, np.random.default_rng(3))[0])


def test_nothing_runs_after_close_and_closing_twice_is_harmless(open_hf, rng):
    denoiser = open_hf()
    denoiser.close()
    denoiser.close()
    with pytest.raises(BackendError, match="closed"):
        denoiser.prefill(0, ids(rng, 3))
    with pytest.raises(BackendError, match="closed"):
        denoiser.predict(0, [ids(rng, 3)], 0.0, rng)
