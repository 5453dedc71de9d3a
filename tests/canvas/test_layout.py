import numpy as np
import pytest

from dg_lsp.backends.scripted import MASK_ID, MASK_SPEC, UNIFORM_SPEC
from dg_lsp.canvas.layout import Layout, end_of, token_ids

LAYOUT = Layout(token_ids([9, 8]), head_ids=token_ids([20, 21]), tail_ids=token_ids([30, 31, 32]))


def test_head_hole_and_as_much_of_the_tail_as_fits():
    plan = LAYOUT.canvas(3, MASK_SPEC, np.random.default_rng(0), length=7)
    assert plan.prompt_ids.tolist() == [9, 8]
    assert plan.canvas_ids.tolist() == [20, 21, MASK_ID, MASK_ID, MASK_ID, 30, 31]
    assert plan.frozen.tolist() == [True, True, False, False, False, True, True]


@pytest.mark.parametrize(("length", "size"), [(0, 4), (4, 4), (6, 6), (20, 7)])
def test_a_canvas_has_no_more_tail_than_there_is(length, size):
    assert len(LAYOUT.canvas(2, MASK_SPEC, np.random.default_rng(0), length=length).canvas_ids) == size


def test_a_hole_of_uniform_noise_is_drawn_and_what_is_frozen_is_not():
    first, second = (
        LAYOUT.canvas(64, UNIFORM_SPEC, np.random.default_rng(seed), length=80).canvas_ids for seed in (0, 1)
    )
    assert first[:2].tolist() == second[:2].tolist() == [20, 21]
    assert first[-3:].tolist() == second[-3:].tolist() == [30, 31, 32]
    assert first[2:-3].tolist() != second[2:-3].tolist()
    assert first.max() < UNIFORM_SPEC.vocab_size


def test_who_goes_on_causally_has_the_head_in_the_prompt():
    assert LAYOUT.in_prompt().prompt_ids.tolist() == [9, 8, 20, 21]
    assert len(LAYOUT.in_prompt().tail_ids) == len(LAYOUT.in_prompt().head_ids) == 0
    assert LAYOUT.num_known == LAYOUT.in_prompt().num_known == 4
    bare = Layout(token_ids([9]))
    assert bare.in_prompt() is bare


@pytest.mark.parametrize(("room", "left"), [(40, 40), (39, 36), (20, 20), (16, 16), (15, 15), (1, 1)])
def test_the_start_that_is_cut_moves_in_steps(room, left):
    ids = token_ids(range(40))
    assert len(end_of(ids, room)) == left
    assert end_of(ids, room).tolist() == ids[40 - left :].tolist()
