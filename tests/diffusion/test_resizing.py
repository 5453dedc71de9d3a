"""Expansion and deletion of masks; every expected step was calculated by hand."""

from dataclasses import replace

import numpy as np
import pytest

from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import MaskSampling, UnmaskOrder
from dg_lsp.diffusion.samplers import unmask

from .conftest import canvas, predicts

MASK, END, GROW, GONE = 0, 1, 2, 3
SAMPLING = MaskSampling(MASK, order=UnmaskOrder.CONFIDENT, expand_id=GROW, delete_id=GONE, max_free=4)
LEFTMOST = replace(SAMPLING, order=UnmaskOrder.LEFTMOST)
LAST = replace(SAMPLING, max_denoising_steps=1)
PLAIN = replace(SAMPLING, expand_id=None, delete_id=None)


def after(step, prediction, sampling=SAMPLING):
    return unmask(step, prediction, sampling, token_ids([END]), explore=False)


@pytest.mark.parametrize(
    ("ids", "confidence", "expected"),
    [
        pytest.param([9, 8, GROW, 7], [1, 0.4, 0.6, 1], [9, 0, 0, 0, 7], id="the most confident mask becomes two"),
        pytest.param([9, GROW, GROW, 7], [1, 0.95, 0.99, 1], [9, 0, 0, 0, 0, 7], id="both masks become four"),
        pytest.param([9, 8, GROW, 7], [1, 0.95, 0.92, 1], [9, 8, 0, 0, 7], id="one is replaced, one expands"),
        pytest.param([9, 8, GONE, 7], [1, 0.4, 0.6, 1], [9, 0, 7], id="the most confident mask is deleted"),
        pytest.param([9, GONE, 8, 7], [1, 0.6, 0.4, 1], [9, 7], id="with the open mask after it"),
        pytest.param([9, GONE, 8, 7], [1, 0.95, 0.92, 1], [9, 8, 7], id="but not a replaced one"),
        pytest.param([9, GONE, GROW, 7], [1, 0.95, 0.92, 1], [9, 0, 0, 7], id="and not one that expands"),
        pytest.param([9, GROW, GONE, 7], [1, 0.95, 0.92, 1], [9, 0, 0, 7], id="one expands, the other is deleted"),
    ],
)
def test_one_step_on_two_masks_between_frozen_tokens(ids, confidence, expected):
    step = after(canvas(9, 0, 0, 7, frozen=[0, 3]), predicts(ids, confidence))
    assert step.canvas_ids.tolist() == expected
    assert step.committed.tolist() == [token != MASK for token in expected]
    assert np.flatnonzero(step.frozen).tolist() == [0, len(expected) - 1]
    assert step.draft_ids.shape == step.confidence.shape == step.canvas_ids.shape
    assert step.is_over == (MASK not in expected)


@pytest.mark.parametrize(
    ("ids", "confidence", "expected", "sampling"),
    [
        pytest.param([GROW, GROW, 7], [0.95, 0.99, 0.1], [0, 0, 0, 0], SAMPLING, id="no room for an expansion"),
        pytest.param([GROW, GROW, GONE], [0.95] * 3, [0, 0, 0, 0], SAMPLING, id="a deletion makes room"),
        pytest.param([5, 6, GONE], [0.2, 0.3, 0.99], [5, 0, 0], LEFTMOST, id="in leftmost order a deletion waits"),
        pytest.param([5, GONE, GONE], [0.95, 0.99, 0.99], [5], LEFTMOST, id="until all masks before it are replaced"),
        pytest.param([GONE, 5, GONE], [0.95, 0.99, 0.99], [5], LEFTMOST, id="or deleted"),
        pytest.param([GROW, GONE, 7], [0.95] * 3, [GROW, GONE, 7], PLAIN, id="text for a model without resizing"),
        pytest.param([GONE, GONE, GONE], [0.9, 0.5, 0.5], [], SAMPLING, id="a deletion includes the masks after it"),
    ],
)
def test_one_step_on_three_masks(ids, confidence, expected, sampling):
    step = after(canvas(0, 0, 0), predicts(ids, confidence), sampling)
    assert step.canvas_ids.tolist() == expected
    assert step.committed.tolist() == [token != MASK for token in expected]
    assert step.is_over == (MASK not in expected)


def test_a_filled_token_ends_the_run_of_deleted_masks():
    grown = after(canvas(0, 6, 0, frozen=[1]), predicts([GROW, 6, 7], [0.6, 1, 0.2]))
    assert grown.canvas_ids.tolist() == [0, 0, 6, 0]
    shrunk = after(grown, predicts([5, GONE, 6, 7], [0.2, 0.8, 1, 0.2]))
    assert shrunk.canvas_ids.tolist() == [0, 6, 0]


def test_at_the_limit_and_in_the_last_step_the_next_best_token_is_taken():
    step = after(
        canvas(9, 0, 0, 0, 0, frozen=[0]),
        predicts([9, GROW, 5, 6, 7], [1, 0.8, 0.1, 0.1, 0.1], unexpanded=[9, 4, 5, 6, 7]),
    )
    assert step.canvas_ids.tolist() == [9, 4, 0, 0, 0]
    assert step.confidence[1] == 0.5
    last = after(canvas(0, 0), predicts([GROW, 5], [0.9, 0.2], unexpanded=[6, 5]), LAST)
    assert last.canvas_ids.tolist() == [6, 5]
