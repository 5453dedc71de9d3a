"""What `Denoiser.extend` promises, over every backend."""

import numpy as np
import pytest
from margins import check_close

from dg_lsp.backends import scripted
from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.canvas.layout import token_ids
from dg_lsp.errors import RequestError

MASK = 0
ATOL = 1e-3
BEFORE, AFTER = "class A:\n    def method(self, other):\n        ", "return 1\n"


@pytest.fixture(params=["scripted-mask", "scripted-uniform", "llamacpp-mask", "llamacpp-uniform"])
def denoiser(request, open_denoiser):
    backend, noise = request.param.split("-")
    if backend == "scripted":
        made = ScriptedDenoiser(AFTER, spec=scripted.MASK_SPEC if noise == "mask" else scripted.UNIFORM_SPEC)
        yield made
        made.close()
    else:
        yield open_denoiser(open_denoiser.mask if noise == "mask" else open_denoiser.uniform)


def encoded(denoiser, *texts):
    return [denoiser.tokenizer.encode(text) for text in texts]


def filled(denoiser, slot=0):
    canvas = np.full(8, MASK, dtype=np.int32)
    return denoiser.predict(slot, [canvas], 0.0, np.random.default_rng(7))[0]


def test_a_prediction_has_one_value_for_each_id(denoiser):
    before, after = encoded(denoiser, BEFORE, AFTER)
    denoiser.prefill(0, before)
    prediction = denoiser.extend(0, after)
    assert prediction.argmax_ids.shape == prediction.confidence.shape == prediction.entropy.shape == after.shape
    assert prediction.argmax_ids.dtype == np.int32
    assert np.array_equal(prediction.argmax_ids, prediction.sampled_ids)
    assert not np.isin(prediction.argmax_ids, denoiser.spec.banned_ids).any()
    assert ((prediction.confidence > 0) & (prediction.confidence <= 1)).all()


def test_what_was_appended_is_as_if_it_had_been_prefilled(denoiser):
    before, after = encoded(denoiser, BEFORE, AFTER)
    whole = np.concatenate([before, after])
    denoiser.prefill(1, whole)
    denoiser.prefill(0, before)
    denoiser.extend(0, after)
    check_close(filled(denoiser, 0), filled(denoiser, 1), ATOL)
    assert denoiser.prefill(0, whole) == 0


def test_one_by_one_and_all_at_once_predict_the_same(denoiser):
    before, after = encoded(denoiser, BEFORE, AFTER)
    for slot in (0, 1):
        denoiser.prefill(slot, before)
    at_once = denoiser.extend(0, after)
    one_by_one = [denoiser.extend(1, after[i : i + 1]) for i in range(len(after))]
    for number, alone in enumerate(one_by_one):
        check_close(alone, _part(at_once, slice(number, number + 1)), ATOL)


def test_a_later_prefill_takes_back_what_differs_and_keeps_the_rest(denoiser):
    before, after = encoded(denoiser, BEFORE, AFTER)
    denoiser.prefill(0, before)
    first = denoiser.extend(0, after)
    assert denoiser.prefill(0, np.concatenate([before, after[:3]])) == 0
    check_close(denoiser.extend(0, after[3:]), _part(first, slice(3, None)), ATOL)


def _part(prediction, rows):
    return type(prediction)(
        prediction.argmax_ids[rows], prediction.sampled_ids[rows], prediction.confidence[rows], prediction.entropy[rows]
    )


def test_other_slots_are_left_alone(denoiser):
    before, after = encoded(denoiser, BEFORE, AFTER)
    denoiser.prefill(1, before)
    alone = filled(denoiser, 1)
    denoiser.prefill(0, after)
    denoiser.extend(0, before)
    check_close(alone, filled(denoiser, 1), ATOL)
    assert denoiser.prefill(1, before) == 0


def test_a_canvas_between_two_extensions_changes_nothing(denoiser):
    before, after = encoded(denoiser, BEFORE, AFTER)
    for slot in (0, 1):
        denoiser.prefill(slot, before)
        denoiser.extend(slot, after[:2])
    filled(denoiser, 0)
    check_close(denoiser.extend(0, after[2:4]), denoiser.extend(1, after[2:4]), ATOL)


def test_an_empty_slot_can_be_extended(denoiser):
    (before,) = encoded(denoiser, BEFORE)
    assert len(denoiser.extend(3, before).argmax_ids) == len(before)
    assert denoiser.prefill(3, before) == 0


@pytest.mark.parametrize(
    "ids",
    [[], [-1], [10**6], [[5, 6]], [1.5], [5] * 100_000],
    ids=["none", "negative", "unknown", "a table", "no integers", "too many"],
)
def test_bad_ids_are_refused_and_the_slot_keeps_its_own(denoiser, ids):
    (before,) = encoded(denoiser, BEFORE)
    denoiser.prefill(0, before)
    with pytest.raises(RequestError):
        denoiser.extend(0, np.array(ids))
    assert denoiser.prefill(0, before) == 0


def test_a_slot_that_is_full_or_not_there_is_refused(denoiser):
    (before,) = encoded(denoiser, BEFORE)
    with pytest.raises(RequestError):
        denoiser.extend(4, before)
    with pytest.raises(RequestError):
        for _ in range(100):
            denoiser.extend(0, token_ids([20] * 200))


@pytest.mark.parametrize("denoiser", ["scripted-mask", "scripted-uniform"], indirect=True)
def test_a_script_is_followed_and_ends_where_it_is_left(denoiser):
    before, after, other = encoded(denoiser, "", AFTER, "retour")
    denoiser.prefill(0, np.concatenate([[scripted.MIDDLE_ID], before]))
    first = denoiser.extend(0, after)
    assert first.argmax_ids.tolist() == [*after[1:].tolist(), scripted.END_ID]
    denoiser.prefill(0, token_ids([scripted.MIDDLE_ID]))
    left = denoiser.extend(0, other)
    assert left.argmax_ids.tolist() == [*after[1:4].tolist(), *[scripted.END_ID] * 3]
