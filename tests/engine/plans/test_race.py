"""Several canvases in one batch."""

import pytest

from dg_lsp.engine.request import DecoderName
from dg_lsp.postprocess.validate import Reason


def test_two_canvases_share_every_pass_and_the_one_that_can_be_shown_wins(engine_of, ask):
    engine, denoiser = engine_of([")", "x + y"], tokens_per_step=16)
    result = engine.fill(ask("a = |\n", plan=DecoderName.RACE))
    assert result.text == "x + y"
    assert result.plan is DecoderName.RACE
    assert [rejection.reason for rejection in result.rejections] == [Reason.SYNTAX_ERROR]
    assert denoiser.num_steps == result.steps


def test_one_candidate_is_asked_for_and_one_is_given(engine_of, ask):
    engine, _ = engine_of(["one", "two"])
    assert len(engine.fill(ask("a = |\n", plan=DecoderName.RACE)).candidates) == 1
    assert len(engine.fill(ask("a = |\n", plan=DecoderName.RACE, num_candidates=2)).candidates) == 2


@pytest.mark.parametrize("plan", [None, DecoderName.CANVAS])
def test_several_candidates_are_a_race(engine_of, ask, plan):
    engine, _ = engine_of(["one", "two", "three"])
    result = engine.fill(ask("a = |\n", plan=plan, num_candidates=3))
    assert result.plan is DecoderName.RACE
    assert len(result.candidates) == 3
