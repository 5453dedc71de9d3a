"""Masks that are replaced, expanded and deleted; every expected step was calculated by hand."""

from dataclasses import replace

import pytest

from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import MaskSampling, UnmaskOrder
from dg_lsp.diffusion.samplers import unmask

from .conftest import canvas, predicts

MASK, END, GROW, GONE = range(4)
LEFTMOST = MaskSampling(mask_id=MASK, confidence_threshold=0.9)
CONFIDENT = replace(LEFTMOST, order=UnmaskOrder.CONFIDENT)
LAST = replace(LEFTMOST, max_denoising_steps=1)
RESIZING = replace(CONFIDENT, expand_id=GROW, delete_id=GONE, max_free=4)
ORDERED = replace(RESIZING, order=UnmaskOrder.LEFTMOST)


def after(step, prediction, sampling=LEFTMOST, **options):
    return unmask(step, prediction, sampling, token_ids([END]), **{"explore": False, **options})


@pytest.mark.parametrize(
    ("sampling", "ids", "confidence", "canvas_after"),
    [
        pytest.param(LEFTMOST, [5, 6, 7], [0.2, 0.95, 0.3], [5, 6, 0], id="leftmost replaces the first mask"),
        pytest.param(CONFIDENT, [5, 6, 7], [0.2, 0.4, 0.3], [0, 6, 0], id="confident replaces the most confident mask"),
        pytest.param(CONFIDENT, [5, 6, 7], [0.2, 0.91, 0.95], [0, 6, 7], id="all above the threshold are replaced"),
        pytest.param(LEFTMOST, [5, 6, 7], [0.9, 0.9, 0.9], [5, 0, 0], id="the threshold itself is not above"),
        pytest.param(LEFTMOST, [5, 6, END], [0.2, 0.3, 0.99], [5, 0, 0], id="an end token waits"),
        pytest.param(LEFTMOST, [5, END, 7], [0.95, 0.99, 0.99], [5, END], id="an end token after replaced masks cuts"),
        pytest.param(LEFTMOST, [END, 6, 7], [0.2, 0.3, 0.99], [END], id="a forced end token ends the fill"),
        pytest.param(CONFIDENT, [5, 6, END], [0.2, 0.3, 0.99], [0, 0, END], id="an end token anywhere"),
        pytest.param(CONFIDENT, [5, END, 7], [0.2, 0.99, 0.95], [0, END], id="and cuts the positions after it"),
        pytest.param(LAST, [5, 6, 7], [0.1, 0.2, 0.3], [5, 6, 7], id="the last step takes the best guess everywhere"),
        pytest.param(LAST, [5, 6, END], [0.1, 0.2, 0.3], [5, 6, END], id="the last step takes an end token too"),
        pytest.param(RESIZING, [GROW, GROW, 7], [0.95, 0.99, 0.1], [0, 0, 0, 0], id="no room for an expansion"),
        pytest.param(RESIZING, [GROW, GROW, GONE], [0.95] * 3, [0, 0, 0, 0], id="a deletion makes room"),
        pytest.param(RESIZING, [GONE] * 3, [0.9, 0.5, 0.5], [], id="a deletion includes the masks after it"),
        pytest.param(ORDERED, [5, 6, GONE], [0.2, 0.3, 0.99], [5, 0, 0], id="in leftmost order a deletion waits"),
        pytest.param(ORDERED, [5, GONE, GONE], [0.95, 0.99, 0.99], [5], id="until all masks before it are replaced"),
        pytest.param(ORDERED, [GONE, 5, GONE], [0.95, 0.99, 0.99], [5], id="or deleted"),
        pytest.param(CONFIDENT, [GROW, GONE, 7], [0.95] * 3, [GROW, GONE, 7], id="text for a model without resizing"),
    ],
)
def test_one_step_on_three_masks(sampling, ids, confidence, canvas_after):
    step = after(canvas(0, 0, 0), predicts(ids, confidence), sampling)
    assert step.canvas_ids.tolist() == canvas_after
    assert step.committed.tolist() == [token != MASK for token in canvas_after]
    assert step.is_over == (MASK not in canvas_after)


PAIR = [9, 0, 0, 7], [0, 3]


@pytest.mark.parametrize(
    ("sampling", "before", "frozen", "ids", "confidence", "canvas_after"),
    [
        pytest.param(LEFTMOST, [9, 0, 8], [0, 2], [9, 5, 8], [1, 0.1, 1], [9, 5, 8], id="never changed, never forced"),
        pytest.param(LEFTMOST, [0, 0, 8], [2], [END, 5, 8], [0.99, 0.1, 1], [END, 0, 8], id="not cut by an end token"),
        pytest.param(LEFTMOST, [END, 0, 0], [0], [END, 5, 6], [1, 0.95, 0.2], [END, 5, 0], id="their end cuts nothing"),
        pytest.param(
            LEFTMOST, [0, 0, 8, 0, 0], [2], [5, 6, 8, 7, 4], [0.1, 0.2, 1, 0.3, 0.2], [5, 0, 8, 7, 0], id="in two gaps"
        ),
        pytest.param(RESIZING, *PAIR, [9, 8, GROW, 7], [1, 0.4, 0.6, 1], [9, 0, 0, 0, 7], id="a mask becomes two"),
        pytest.param(RESIZING, *PAIR, [9, GROW, GROW, 7], [1, 0.95, 0.99, 1], [9, 0, 0, 0, 0, 7], id="both masks do"),
        pytest.param(RESIZING, *PAIR, [9, 8, GROW, 7], [1, 0.95, 0.92, 1], [9, 8, 0, 0, 7], id="one is replaced"),
        pytest.param(RESIZING, *PAIR, [9, 8, GONE, 7], [1, 0.4, 0.6, 1], [9, 0, 7], id="the surest mask is deleted"),
        pytest.param(RESIZING, *PAIR, [9, GONE, 8, 7], [1, 0.6, 0.4, 1], [9, 7], id="with the open mask after it"),
        pytest.param(RESIZING, *PAIR, [9, GONE, 8, 7], [1, 0.95, 0.92, 1], [9, 8, 7], id="but not a replaced one"),
        pytest.param(RESIZING, *PAIR, [9, GONE, GROW, 7], [1, 0.95, 0.92, 1], [9, 0, 0, 7], id="nor one that expands"),
        pytest.param(RESIZING, *PAIR, [9, GROW, GONE, 7], [1, 0.95, 0.92, 1], [9, 0, 0, 7], id="one of each"),
        pytest.param(
            RESIZING, [0, 6, 0], [1], [GROW, 6, 7], [0.6, 1, 0.2], [0, 0, 6, 0], id="expansion before a filled token"
        ),
        pytest.param(
            RESIZING, [0, 0, 6, 0], [2], [5, GONE, 6, 7], [0.2, 0.8, 1, 0.2], [0, 6, 0], id="it ends what is deleted"
        ),
    ],
)
def test_one_step_around_frozen_tokens(sampling, before, frozen, ids, confidence, canvas_after):
    step = after(canvas(*before, frozen=frozen), predicts(ids, confidence), sampling)
    assert step.canvas_ids.tolist() == canvas_after
    assert step.committed.tolist() == [token != MASK for token in canvas_after]
    assert step.canvas_ids[step.frozen].tolist() == [before[position] for position in frozen]
    assert step.draft_ids.shape == step.confidence.shape == step.canvas_ids.shape
    assert step.is_over == (MASK not in canvas_after)


def test_committed_tokens_stay_and_keep_the_confidence_they_had():
    before = canvas(0, 0)
    first = after(before, predicts([5, 6], [0.25, 0.5]))
    second = after(first, predicts([7, 6], [1.0, 0.5]))
    assert second.canvas_ids.tolist() == [5, 6]
    assert second.confidence.tolist() == [0.25, 0.5]
    assert second.number == 2
    assert before.canvas_ids.tolist() == [0, 0]  # steps share no memory
    assert not before.committed.any()


def test_exploring_takes_the_sampled_token_at_the_forced_mask_only_and_its_own_probability():
    prediction = predicts([5, 6], [0.45, 0.95], sampled=[8, 9], sampled_confidence=[0.02, 0.01])
    step = after(canvas(0, 0), prediction, explore=True)
    assert step.canvas_ids.tolist() == [8, 6]
    assert step.confidence.tolist() == pytest.approx([0.02, 0.95])


def test_at_the_limit_and_in_the_last_step_the_next_best_token_is_taken():
    step = after(
        canvas(9, 0, 0, 0, 0, frozen=[0]),
        predicts([9, GROW, 5, 6, 7], [1, 0.8, 0.1, 0.1, 0.1], unexpanded=[9, 4, 5, 6, 7]),
        RESIZING,
    )
    assert step.canvas_ids.tolist() == [9, 4, 0, 0, 0]
    assert step.confidence[1] == 0.5
    last_step = replace(RESIZING, max_denoising_steps=1)
    last = after(canvas(0, 0), predicts([GROW, 5], [0.9, 0.2], unexpanded=[6, 5]), last_step)
    assert last.canvas_ids.tolist() == [6, 5]
