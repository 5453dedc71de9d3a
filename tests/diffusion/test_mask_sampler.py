"""Every expected step was calculated by hand."""

import numpy as np
import pytest

from dg_lsp.canvas.layout import Canvas, token_ids
from dg_lsp.canvas.spec import MaskSampling, UnmaskOrder
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.diffusion.samplers import Step, Stop, unmask

MASK, END = 0, 1
END_IDS = token_ids([END])
LEFTMOST = MaskSampling(mask_id=MASK, confidence_threshold=0.9)
CONFIDENT = MaskSampling(mask_id=MASK, confidence_threshold=0.9, order=UnmaskOrder.CONFIDENT)


def canvas(*ids, frozen=()):
    flags = np.zeros(len(ids), bool)
    flags[list(frozen)] = True
    return Step.before(Canvas(token_ids([]), token_ids(ids), flags))


def predicts(ids, confidence, sampled=None):
    floats = np.array(confidence, np.float32)
    return Prediction(token_ids(ids), token_ids(ids if sampled is None else sampled), floats, np.zeros_like(floats))


def after(step, prediction, sampling=LEFTMOST, explore=False):
    return unmask(step, prediction, sampling, END_IDS, explore=explore)


@pytest.mark.parametrize(
    ("sampling", "ids", "confidence", "canvas_after"),
    [
        pytest.param(
            LEFTMOST, [5, 6, 7], [0.2, 0.95, 0.3], [5, 6, 0], id="leftmost replaces the first mask at any confidence"
        ),
        pytest.param(CONFIDENT, [5, 6, 7], [0.2, 0.4, 0.3], [0, 6, 0], id="confident replaces the most confident mask"),
        pytest.param(CONFIDENT, [5, 6, 7], [0.2, 0.91, 0.95], [0, 6, 7], id="all above the threshold are replaced"),
        pytest.param(LEFTMOST, [5, 6, 7], [0.9, 0.9, 0.9], [5, 0, 0], id="the threshold itself is not above"),
        pytest.param(
            LEFTMOST, [5, 6, END], [0.2, 0.3, 0.99], [5, 0, 0], id="an end token waits for the positions before it"
        ),
        pytest.param(
            LEFTMOST, [5, END, 7], [0.95, 0.99, 0.99], [5, END], id="an end token right after replaced masks cuts"
        ),
        pytest.param(
            LEFTMOST, [END, 6, 7], [0.2, 0.3, 0.99], [END], id="an end token as the forced mask ends the fill"
        ),
        pytest.param(
            CONFIDENT, [5, 6, END], [0.2, 0.3, 0.99], [0, 0, END], id="confident order accepts an end token anywhere"
        ),
        pytest.param(CONFIDENT, [5, END, 7], [0.2, 0.99, 0.95], [0, END], id="and cuts the positions after it"),
    ],
)
def test_one_step_on_three_masks(sampling, ids, confidence, canvas_after):
    assert after(canvas(0, 0, 0), predicts(ids, confidence), sampling).canvas_ids.tolist() == canvas_after


def test_frozen_positions_never_change_and_are_not_forced():
    step = after(canvas(9, 0, 8, frozen=[0, 2]), predicts([9, 5, 8], [1, 0.1, 1]))
    assert step.canvas_ids.tolist() == [9, 5, 8]
    assert step.stop is Stop.FILLED


def test_an_end_token_before_a_frozen_position_does_not_cut_it_off():
    step = after(canvas(0, 0, 8, frozen=[2]), predicts([END, 5, 8], [0.99, 0.1, 1]))
    assert step.canvas_ids.tolist() == [END, 0, 8]


def test_a_frozen_end_token_does_not_cut():
    step = after(canvas(END, 0, 0, frozen=[0]), predicts([END, 5, 6], [1, 0.95, 0.2]))
    assert step.canvas_ids.tolist() == [END, 5, 0]


def test_the_last_step_takes_the_best_guess_everywhere():
    step = after(canvas(0, 0), predicts([5, 6], [0.1, 0.2]), MaskSampling(mask_id=MASK, max_denoising_steps=1))
    assert step.canvas_ids.tolist() == [5, 6]
    assert step.stop is Stop.FILLED


def test_the_last_step_stops_even_where_an_end_token_may_not_be_taken():
    sampling = MaskSampling(mask_id=MASK, max_denoising_steps=1)
    step = after(canvas(0, 0, 0), predicts([5, 6, END], [0.1, 0.2, 0.3]), sampling)
    assert step.canvas_ids.tolist() == [5, 6, END]
    assert step.stop is not None


def test_committed_tokens_stay_and_keep_the_confidence_they_had():
    first = after(canvas(0, 0), predicts([5, 6], [0.25, 0.5]))
    second = after(first, predicts([7, 6], [1.0, 0.5]))
    assert second.canvas_ids.tolist() == [5, 6]
    assert second.confidence.tolist() == [0.25, 0.5]
    assert second.number == 2


def test_exploring_takes_the_sampled_token_at_the_forced_mask_only():
    step = after(canvas(0, 0), predicts([5, 6], [0.75, 0.95], sampled=[8, 9]), explore=True)
    assert step.canvas_ids.tolist() == [8, 6]
    assert step.confidence.tolist() == pytest.approx([0.25, 0.95])


def test_settled_positions_are_the_leading_committed_ones():
    step = after(canvas(0, 0, 0, 0), predicts([5, 6, 7, 8], [0.1, 0.95, 0.2, 0.95]))
    assert step.num_settled == 2
    assert step.draft_ids.tolist() == [5, 6, 7, 8]


def test_arrays_of_the_previous_step_are_unchanged():
    before = canvas(0, 0)
    after(before, predicts([5, 6], [0.1, 0.2]))
    assert before.canvas_ids.tolist() == [0, 0]
    assert not before.committed.any()
