"""What `Denoiser` promises, over every backend."""

import numpy as np
import pytest
from margins import check_close

from dg_lsp.backends import scripted
from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.backends.transformers import open_checkpoint
from dg_lsp.errors import RequestError
from dg_lsp.models.metadata import read_folder
from dg_lsp.settings import RuntimeSettings

MASK = 0


@pytest.fixture(
    params=["scripted-mask", "scripted-uniform", "llamacpp-mask", "llamacpp-uniform", "transformers-uniform"]
)
def denoiser(request, open_denoiser):
    backend, noise = request.param.split("-")
    if backend == "transformers":
        made = open_checkpoint(*read_folder(request.getfixturevalue("tiny_checkpoint")), RuntimeSettings(threads=1))
        yield made
        made.close()
    elif backend == "scripted":
        made = ScriptedDenoiser("return 1\n", spec=scripted.MASK_SPEC if noise == "mask" else scripted.UNIFORM_SPEC)
        yield made
        made.close()
    else:
        yield open_denoiser(open_denoiser.mask if noise == "mask" else open_denoiser.uniform)


def rng():
    return np.random.default_rng(7)


def prompt(denoiser, text="def f(self):\n    "):
    return denoiser.tokenizer.encode(text)


def canvas(length, **held):
    ids = np.full(length, MASK, dtype=np.int32)
    for position, token in held.items():
        ids[int(position[1:])] = token
    return ids


def same(left, right):
    """The same computation twice."""
    assert np.array_equal(left.argmax_ids, right.argmax_ids)
    assert np.array_equal(left.sampled_ids, right.sampled_ids)
    check_close(left, right, 1e-6)


def first_step(denoiser, canvases, temperature=0.0, seed=7):
    """Predictions that no earlier step of the same canvases conditions."""
    denoiser.prefill(0, prompt(denoiser))
    return denoiser.predict(0, canvases, temperature, np.random.default_rng(seed))


def test_a_prediction_has_one_value_for_each_position(denoiser):
    denoiser.prefill(0, prompt(denoiser))
    for length in (1, 8, 13, 32):
        (prediction,) = denoiser.predict(0, [canvas(length)], 0.0, rng())
        for ids in (prediction.argmax_ids, prediction.sampled_ids):
            assert ids.shape == (length,) and ids.dtype == np.int32
            assert ((ids >= 0) & (ids < denoiser.spec.vocab_size)).all()
        for floats in (prediction.confidence, prediction.entropy):
            assert floats.shape == (length,) and floats.dtype == np.float32
        assert ((prediction.confidence > 0) & (prediction.confidence <= 1)).all()
        assert ((prediction.entropy >= 0) & (prediction.entropy <= np.log(denoiser.spec.vocab_size) + 1e-3)).all()


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 3.0])
def test_banned_ids_are_never_predicted(denoiser, temperature):
    denoiser.prefill(0, prompt(denoiser))
    for _ in range(5):
        (prediction,) = denoiser.predict(0, [canvas(32)], temperature, rng())
        assert not np.isin(prediction.argmax_ids, denoiser.spec.banned_ids).any()
        assert not np.isin(prediction.sampled_ids, denoiser.spec.banned_ids).any()


def test_the_sample_is_the_argmax_at_temperature_0(denoiser):
    denoiser.prefill(0, prompt(denoiser))
    (prediction,) = denoiser.predict(0, [canvas(16)], 0.0, rng())
    assert np.array_equal(prediction.argmax_ids, prediction.sampled_ids)


def test_samples_differ_at_a_high_temperature_and_follow_the_seed(denoiser):
    first, again, other = (first_step(denoiser, [canvas(32)], 2.0, seed)[0] for seed in (1, 1, 2))
    check_close(first, again, 1e-3)
    assert not np.array_equal(first.sampled_ids, other.sampled_ids)


@pytest.mark.parametrize("denoiser", ["scripted-mask", "llamacpp-mask"], indirect=True)
def test_a_held_token_predicts_itself_under_mask_noise(denoiser):
    denoiser.prefill(0, prompt(denoiser))
    (prediction,) = denoiser.predict(0, [canvas(8, p0=20, p5=21)], 1.0, rng())
    for position, token in ((0, 20), (5, 21)):
        assert prediction.argmax_ids[position] == prediction.sampled_ids[position] == token
        assert prediction.confidence[position] == 1
        assert prediction.entropy[position] == 0
    full = np.arange(20, 28, dtype=np.int32)
    (prediction,) = denoiser.predict(0, [full], 1.0, rng())
    assert np.array_equal(prediction.argmax_ids, full)
    assert prediction.entropy.max() == 0


def test_prefill_decodes_only_what_is_new(denoiser):
    ids = prompt(denoiser, "class A:\n    def method(self, other):\n        return ")
    assert denoiser.prefill(0, ids) == len(ids)
    assert denoiser.prefill(0, ids) == 0
    longer = np.concatenate([ids, prompt(denoiser, "x")])
    assert denoiser.prefill(0, longer) == 1
    assert denoiser.prefill(0, ids[:5]) == 0
    changed = ids.copy()
    changed[3] = 30 if ids[3] != 30 else 31
    assert denoiser.prefill(0, changed) == len(ids) - 3


def test_reusing_a_prefix_changes_nothing(denoiser):
    ids = prompt(denoiser, "class A:\n    def method(self, other):\n        return ")
    denoiser.prefill(1, ids)
    (fresh,) = denoiser.predict(1, [canvas(16)], 0.7, rng())
    denoiser.prefill(0, prompt(denoiser, "class A:\n    def met = 1"))
    denoiser.predict(0, [canvas(8)], 0.0, rng())
    assert denoiser.prefill(0, ids) < len(ids)
    (reused,) = denoiser.predict(0, [canvas(16)], 0.7, rng())
    check_close(fresh, reused, 1e-3)


def test_predicting_leaves_the_cache_as_it_was(denoiser):
    (first,) = first_step(denoiser, [canvas(16)], 0.5)
    denoiser.predict(0, [canvas(8), canvas(32), canvas(3)], 0.5, rng())
    assert denoiser.prefill(0, prompt(denoiser)) == 0
    check_close(first, first_step(denoiser, [canvas(16)], 0.5)[0], 1e-3)


def test_canvases_of_one_step_do_not_see_each_other(denoiser):
    canvases = [canvas(16), canvas(7, p2=40), canvas(32, p0=50, p31=60), canvas(1)]
    for alone, batched in zip(canvases, first_step(denoiser, canvases), strict=True):
        check_close(first_step(denoiser, [alone])[0], batched, 1e-3)


def test_slots_are_independent(denoiser):
    texts = ["import os\n", "x = [", "def f(self):\n    "]
    alone = []
    for slot, text in enumerate(texts):
        denoiser.prefill(slot, prompt(denoiser, text))
        alone.append(denoiser.predict(slot, [canvas(8)], 0.0, rng())[0])
    for slot in (1, 0, 2):
        assert denoiser.prefill(slot, prompt(denoiser, texts[slot])) == 0
        check_close(alone[slot], denoiser.predict(slot, [canvas(8)], 0.0, rng())[0], 1e-3)


def test_an_empty_prompt_is_a_prompt(denoiser):
    assert denoiser.prefill(0, prompt(denoiser)) > 0
    assert denoiser.prefill(0, prompt(denoiser, "")) == 0
    (prediction,) = denoiser.predict(0, [canvas(8)], 0.0, rng())
    assert len(prediction.argmax_ids) == 8


BAD_PROMPTS = {
    "an id of -1": [5, -1],
    "an id beyond the vocabulary": [5, 10**6],
    "an id beyond 32 bits": [5, 2**40],
    "a table": [[5, 6], [7, 8]],
    "numbers with a point": [1.5, 2.5],
    "too long": [5] * 100_000,
}


@pytest.mark.parametrize("ids", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_a_bad_prompt_is_refused_and_the_slot_keeps_its_own(denoiser, ids):
    good = prompt(denoiser)
    denoiser.prefill(0, good)
    with pytest.raises(RequestError):
        denoiser.prefill(0, np.array(ids))
    assert denoiser.prefill(0, good) == 0


BAD_STEPS = {
    "no canvas": [],
    "an empty canvas": [[]],
    "one of two is empty": [[0, 0], []],
    "an id of -1": [[0, -1]],
    "an id beyond the vocabulary": [[0, 10**6]],
    "a canvas longer than a step takes": [[0] * 5000],
    "canvases longer than a step takes": [[0] * 4000, [0] * 4000],
    "too many canvases": [[0]] * 100,
    "a table": [[[0, 0], [0, 0]]],
    "words": [["a", "b"]],
}


@pytest.mark.parametrize("canvases", BAD_STEPS.values(), ids=BAD_STEPS)
def test_bad_canvases_are_refused(denoiser, canvases):
    (before,) = first_step(denoiser, [canvas(8)])
    with pytest.raises(RequestError):
        denoiser.predict(0, [np.array(ids) for ids in canvases], 0.0, rng())
    check_close(before, first_step(denoiser, [canvas(8)])[0], 1e-3)


@pytest.mark.parametrize("slot", [-1, 4, 10**9])
def test_a_slot_that_does_not_exist_is_refused(denoiser, slot):
    with pytest.raises(RequestError):
        denoiser.prefill(slot, prompt(denoiser))
    with pytest.raises(RequestError):
        denoiser.predict(slot, [canvas(8)], 0.0, rng())


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf")])
def test_a_bad_temperature_is_refused(denoiser, temperature):
    with pytest.raises(RequestError):
        denoiser.predict(0, [canvas(8)], temperature, rng())


def test_closing_twice_is_harmless(denoiser):
    denoiser.close()
    denoiser.close()
