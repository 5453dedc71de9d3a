"""The contract of `Denoiser`, for every backend."""

from contextlib import closing
from unittest.mock import Mock

import numpy as np
import pytest
import scripted
from margins import check_close, predict
from scripted import ScriptedDenoiser

from dg_lsp.backends.llamacpp.diffusiongemma.denoiser import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.reduction import take
from dg_lsp.backends.transformers import open_checkpoint
from dg_lsp.backends.transformers.denoiser import TransformersDenoiser
from dg_lsp.canvas.layout import token_ids
from dg_lsp.errors import BackendError, RequestError
from dg_lsp.models.metadata import read_folder
from dg_lsp.settings import ModelSettings

MASK = 0
ATOL = 1e-2
"""Keys and values are half-precision numbers."""
BEFORE, AFTER = "class A:\n    def method(self, other):\n        ", "return 1\n"
CAUSAL = ["scripted-mask", "scripted-uniform", "llamacpp-mask", "llamacpp-uniform"]
"""Denoisers with a causal prompt in a cache, and a causal head."""
BIDIRECTIONAL = ["exact", "per_request"]
CONDITIONED = ["gemma-llamacpp", "gemma-transformers"]
"""`gemma-device` keeps the predictions on a device of ggml, which computes the graphs of a GPU."""
only_causal = pytest.mark.parametrize("denoiser", CAUSAL, indirect=True)
only_conditioned = pytest.mark.parametrize("denoiser", [*CONDITIONED, "gemma-device"], indirect=True)


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint):
    """Opening it takes a quarter of a second."""
    with closing(open_checkpoint(*read_folder(tiny_checkpoint), ModelSettings(threads=1, gpu_layers=0))) as denoiser:
        yield denoiser


@pytest.fixture(params=[*CAUSAL, *BIDIRECTIONAL, *CONDITIONED])
def denoiser(request, open_denoiser, open_gemma, open_masked, opened):
    backend, _, noise = request.param.partition("-")
    if request.param == "gemma-transformers":
        return request.getfixturevalue("checkpoint")
    if backend == "gemma":
        made = open_gemma(on_device=noise == "device")
        assert (made.footprint.gpu_estimate > 0) == (noise == "device")
        return made
    if backend == "scripted":
        spec = scripted.MASK_SPEC if noise == "mask" else scripted.UNIFORM_SPEC
        return opened(ScriptedDenoiser(AFTER, spec=spec))
    if backend == "llamacpp":
        return open_denoiser(open_denoiser.mask if noise == "mask" else open_denoiser.uniform)
    return open_masked("dream", prompt_attention=backend)


def encoded(denoiser, text=BEFORE):
    return denoiser.tokenizer.encode(text)


def masks(length, **held):
    ids = np.full(length, MASK, dtype=np.int32)
    for position, token in held.items():
        ids[int(position[1:])] = token
    return ids


def predict_fresh(denoiser, *canvases, text=BEFORE, slot=0):
    """A step that no earlier step conditions."""
    if isinstance(denoiser, SelfConditionedDenoiser | TransformersDenoiser):
        denoiser.prefill(slot, encoded(denoiser, text))
    return predict(denoiser, *canvases, slot=slot)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 3.0])
def test_each_position_has_a_prediction_that_is_not_banned(denoiser, temperature):
    spec = denoiser.spec
    for text, length in ((BEFORE, 1), (BEFORE, 8), (BEFORE, 13), (BEFORE, 32), ("", 32)):
        denoiser.prefill(0, encoded(denoiser, text))
        (prediction,) = predict(denoiser, masks(length), temperature=temperature, seed=length)
        for ids in (prediction.argmax_ids, prediction.sampled_ids):
            assert ids.shape == prediction.entropy.shape == prediction.sampled_confidence.shape == (length,)
            assert np.isin(ids, np.setdiff1d(np.arange(spec.vocab_size), spec.banned_ids)).all()
        assert ((prediction.confidence > 0) & (prediction.confidence <= 1)).all()
        assert ((prediction.entropy >= 0) & (prediction.entropy <= np.log(spec.vocab_size) + 1e-3)).all()
        assert temperature or np.array_equal(prediction.argmax_ids, prediction.sampled_ids)


def test_samples_follow_the_seed(denoiser):
    denoiser.prefill(0, encoded(denoiser))
    predict(denoiser, masks(32))  # the first step after a prefill may compute the prompt
    samples = []
    for seed in (1, 1, 2):
        predict_fresh(denoiser, masks(1))
        samples.append(predict(denoiser, masks(32), temperature=2.0, seed=seed)[0])
    first, repeated, reseeded = samples
    assert np.array_equal(first.sampled_ids, repeated.sampled_ids)
    assert not np.array_equal(first.sampled_ids, reseeded.sampled_ids)
    is_other = first.sampled_ids != first.argmax_ids
    assert (first.sampled_confidence[is_other] < first.confidence[is_other]).all()


@pytest.mark.parametrize("denoiser", ["scripted-mask", "llamacpp-mask"], indirect=True)
def test_only_allowed_tokens_follow_a_position_of_a_causal_pass(denoiser):
    ids, few = encoded(denoiser), token_ids([20, 21, 22])
    denoiser.prefill(0, ids[:-3])
    free = denoiser.extend(0, ids[-3:])
    denoiser.prefill(0, ids[:-3])
    prediction = denoiser.extend(0, ids[-3:], {1: few})
    assert prediction.argmax_ids[1] in few
    assert prediction.sampled_ids[1] == prediction.argmax_ids[1]
    assert 1 / 3 - 1e-6 <= prediction.confidence[1] <= 1
    assert prediction.argmax_ids[::2].tolist() == free.argmax_ids[::2].tolist()
    assert np.allclose(prediction.confidence[::2], free.confidence[::2], atol=1e-3)


def test_canvases_of_one_step_do_not_attend_to_each_other_and_leave_the_prompt_as_it_was(denoiser):
    denoiser.prefill(0, encoded(denoiser))
    canvases = [masks(16), masks(7, p2=40), masks(32, p0=50, p31=60), masks(1)]
    together = predict(denoiser, *canvases)
    assert denoiser.refresh(0) == 0, "the slot is exact"
    for alone, batched in zip(canvases, together, strict=True):
        check_close(*predict_fresh(denoiser, alone), batched, ATOL)


def test_slots_are_independent(denoiser):
    texts = ["import os\n", "x = [", "def f(self):\n    "]
    alone = []
    for slot, text in enumerate(texts):
        denoiser.prefill(slot, encoded(denoiser, text))
        alone.append(predict(denoiser, masks(8), slot=slot)[0])
    for slot in (1, 0, 2):
        check_close(alone[slot], *predict_fresh(denoiser, masks(8), text=texts[slot], slot=slot), ATOL)


def prefill(*ids):
    return lambda denoiser: denoiser.prefill(0, np.array(ids))


def step(*canvases):
    return lambda denoiser: denoiser.predict(0, list(map(np.array, canvases)), 0.0, np.random.default_rng(0))


BAD_CALLS = {
    "prompt with a negative id": prefill(5, -1),
    "prompt with an id beyond the vocabulary": prefill(5, 10**6),
    "prompt with an id beyond 32 bits": prefill(5, 2**40),
    "too long prompt": prefill(*[5] * 100_000),
    "no canvas": step(),
    "empty canvas": step([]),
    "one of two canvases is empty": step([0, 0], []),
    "canvas with a negative id": step([0, -1]),
    "canvas with an id beyond the vocabulary": step([0, 10**6]),
    "too long canvas": step([0] * 5000),
    "canvases are too long together": step([0] * 4000, [0] * 4000),
    "too many canvases": step(*[[0]] * 100),
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_prompt_or_canvas_is_refused_and_the_slot_keeps_its_prompt(denoiser, call):
    denoiser.prefill(0, encoded(denoiser))
    (before,) = predict(denoiser, masks(8))
    with pytest.raises(RequestError):
        call(denoiser)
    check_close(before, *predict_fresh(denoiser, masks(8)), ATOL)


@pytest.mark.parametrize("denoiser", ["llamacpp-mask", *BIDIRECTIONAL, *CONDITIONED], indirect=True)
def test_failed_step_keeps_the_prompt_and_a_failed_prefill_or_extension_empties_the_slot(denoiser, monkeypatch):
    prompt, other = encoded(denoiser), encoded(denoiser, AFTER)
    denoiser.prefill(0, prompt)
    num_again = denoiser.prefill(0, prompt)  # of all prompts where each request decodes its own
    (before,) = predict(denoiser, masks(8))
    calls = [lambda: predict(denoiser, masks(8), masks(8))]
    calls += [] if num_again else [lambda: denoiser.prefill(0, other)]
    calls += [lambda: denoiser.extend(0, other)] if denoiser.spec.has_causal_head and not num_again else []
    for number, call in enumerate(calls):
        with monkeypatch.context() as patch:
            if isinstance(denoiser, TransformersDenoiser):
                patch.setattr(denoiser._network, "encode", Mock(side_effect=RuntimeError("out of memory")))
                patch.setattr(denoiser._network, "step", Mock(side_effect=RuntimeError("out of memory")))
            else:
                patch.setattr(denoiser._context, "decode", Mock(side_effect=BackendError("made up")))
            with pytest.raises(BackendError):
                call()
        assert denoiser.prefill(0, prompt) == (len(prompt) if number else num_again)
        check_close(before, *predict(denoiser, masks(8)), ATOL)


@only_causal
def test_extension_predicts_what_follows_each_token(denoiser):
    after = encoded(denoiser, AFTER)
    for slot in (0, 1):
        denoiser.prefill(slot, encoded(denoiser))
    prediction = denoiser.extend(0, after)
    assert prediction.argmax_ids.shape == prediction.confidence.shape == prediction.entropy.shape == after.shape
    assert np.array_equal(prediction.argmax_ids, prediction.sampled_ids)
    assert not np.isin(prediction.argmax_ids, denoiser.spec.banned_ids).any()
    for number in range(len(after)):
        position = slice(number, number + 1)
        check_close(denoiser.extend(1, after[position]), take(prediction, position), ATOL)


@only_causal
def test_extension_leaves_the_slot_as_a_prefill_would(denoiser):
    whole = encoded(denoiser, BEFORE + AFTER)
    denoiser.prefill(1, whole)
    denoiser.prefill(0, whole[:-4])
    denoiser.extend(0, whole[-4:-2])
    predict(denoiser, masks(8))
    denoiser.extend(0, whole[-2:])
    check_close(predict(denoiser, masks(8))[0], predict(denoiser, masks(8), slot=1)[0], ATOL)
    assert denoiser.prefill(0, whole) == 0
    assert denoiser.prefill(0, whole[:-3]) == 0
    assert denoiser.prefill(1, whole) == 0
    assert len(denoiser.extend(3, whole).argmax_ids) == len(whole), "an empty slot"
    assert denoiser.prefill(3, whole) == 0


@only_causal
def test_extension_of_a_full_slot_is_refused(denoiser):
    with pytest.raises(RequestError):
        for _ in range(100):
            denoiser.extend(0, token_ids([20] * 200))


CANVASES = np.random.default_rng(0).integers(110, 500, (3, 16)).astype(np.int32)


def conditioned(denoiser, *passes):
    """The predictions of the last of some passes after a prefill; a pass is (numbers of canvases, lanes)."""
    denoiser.prefill(0, encoded(denoiser))
    for numbers, lanes in passes:
        predictions = predict(denoiser, *CANVASES[numbers], temperature=0.4, lanes=lanes)
    return predictions


def difference(left, right):
    return np.abs(left.entropy - right.entropy).max()


@only_conditioned
def test_canvas_is_conditioned_on_its_own_lane(denoiser):
    [alone] = conditioned(denoiser, ([1], ()), ([1], ()))
    [raced] = conditioned(denoiser, ([0, 1, 2], ()), ([0], [0]), ([1], [1]))
    [mismatched] = conditioned(denoiser, ([0, 1, 2], ()), ([1], [2]))
    check_close(alone, raced, ATOL)
    assert difference(alone, mismatched) > 0.2


@only_conditioned
def test_canvas_of_an_earlier_prompt_another_slot_or_length_does_not_condition(denoiser):
    [first] = conditioned(denoiser, ([0], ()))
    check_close(first, *conditioned(denoiser, ([0], ())), ATOL)
    denoiser.prefill(1, encoded(denoiser))
    check_close(first, *predict(denoiser, CANVASES[0], slot=1, temperature=0.4), ATOL)
    denoiser.prefill(0, encoded(denoiser))
    predict(denoiser, CANVASES[1][:8], temperature=0.4)
    check_close(first, *predict(denoiser, CANVASES[0], temperature=0.4), ATOL)
