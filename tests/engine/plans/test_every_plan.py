"""What holds whatever the plan is, over a scripted model."""

import time
from dataclasses import replace

import pytest

from dg_lsp.backends import scripted
from dg_lsp.engine.request import DecoderName
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import FillSettings

EVERY = [plan for plan in DecoderName if plan is not DecoderName.AUTO]
CAUSAL = [plan for plan in EVERY if plan.needs_causal_head]


def unhurried(**settings):
    return FillSettings(**{"deadline_ms": 60_000, "early_stop_ms": 0, **settings})


pytestmark = pytest.mark.parametrize("plan", EVERY)


def test_a_line_is_filled_and_the_result_says_how(engine_of, ask, plan):
    engine, _ = engine_of("x + y")
    result = engine.fill(ask("def add(x, y):\n    return |\n", plan=plan))
    assert result.text == "x + y"
    assert result.plan is plan
    assert len(result.candidates) == 1
    assert result.canvas_length == (8 if plan.needs_canvas else 0)


def test_the_settings_plan_is_taken_unless_the_request_has_its_own(engine_of, ask, plan):
    engine, _ = engine_of("x", unhurried(plan=plan.value))
    assert engine.fill(ask("a = |\n")).plan is plan
    assert engine.fill(ask("a = |\n", plan=DecoderName.CANVAS)).plan is DecoderName.CANVAS


def test_a_frame_after_every_forward_pass(engine_of, ask, frames_of, plan):
    engine, denoiser = engine_of("x + y")
    frames, result = frames_of(engine, ask("a = |\n", plan=plan))
    assert len(frames) == result.steps == denoiser.num_steps
    assert [frame.step for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[-1].settled_text == "x + y"
    assert frames[-1].cells[-1].is_end
    assert all(cell.is_committed for cell in frames[-1].cells)


def test_who_stops_asking_stops_the_model(engine_of, ask, plan):
    engine, denoiser = engine_of("abcdefgh", tokens_per_step=1)
    steps = engine.run(ask("a = |\n", plan=plan))
    next(steps)
    steps.close()
    assert denoiser.num_steps == 1
    assert engine.fill(ask("a = |\n", plan=plan)).text == "abcdefgh"


def test_a_line_stops_at_its_line_end(engine_of, ask, plan):
    engine, denoiser = engine_of("x\n" + "more\n" * 50)
    result = engine.fill(ask("a = |\n", plan=plan))
    assert result.text == "x"
    assert denoiser.num_steps <= 4


def test_several_lines_where_the_line_is_blank(engine_of, ask, plan):
    engine, _ = engine_of("x = 1\n    return x")
    assert engine.fill(ask("def f():\n    |\n", plan=plan)).text == "x = 1\n    return x"


def test_circles_end_it(engine_of, ask, plan):
    engine, denoiser = engine_of("width, " * 9)
    result = engine.fill(ask("a = f(|\n", plan=plan))
    assert [rejection.reason for rejection in result.rejections][:1] == [Reason.REPEATS_ITSELF]
    assert denoiser.num_steps <= len("width, " * 5)


def test_no_more_than_max_tokens(engine_of, ask, plan):
    text = "'" + "".join(f"{n:03}" for n in range(160)) + "'"
    engine, _ = engine_of(text, unhurried(max_tokens=32, check_syntax=False), tokens_per_step=8)
    assert engine.fill(ask("a = |\n", plan=plan)).text == text[:32]


def test_a_fill_of_more_tokens_than_there_is_room_for_ends(engine_of, ask, plan):
    text = "'" + "".join(f"{n:03}" for n in range(160)) + "'"
    spec = replace(scripted.MASK_SPEC, max_prompt_tokens=40, canvas_lengths=(16,))
    engine, _ = engine_of(text, unhurried(max_tokens=400, check_syntax=False), spec=spec, context_length=200)
    shown = engine.fill(ask("a = |\n", plan=plan)).text
    assert text.startswith(shown)
    assert 30 <= len(shown) <= 80


def test_a_passed_deadline_asks_the_model_nothing(engine_of, ask, plan):
    engine, denoiser = engine_of("abc")
    result = engine.fill(ask("a = |\n", plan=plan), deadline=time.monotonic() - 1)
    assert denoiser.num_steps == 0
    assert {rejection.reason for rejection in result.rejections} == {Reason.UNFINISHED}


def test_a_line_that_the_deadline_breaks_off_is_left_out_after_whole_ones(engine_of, ask, plan):
    engine, _ = engine_of("x = 1\n    yyyyyyyyyyyyyyyyyyyyyyyyy = 2", unhurried(max_tokens=16))
    assert engine.fill(ask("def f():\n    |\n", plan=plan)).text == "x = 1"


def test_when_patience_is_over_whole_lines_are_enough(engine_of, ask, plan):
    engine, denoiser = engine_of("x = 1\n    y = 2\n    return x")
    request = ask("def f():\n    |\n", plan=plan, early_stop_ms=1e-6)
    assert engine.fill(request).text == "x = 1"
    in_a_hurry = denoiser.num_steps
    assert engine.fill(replace(request, early_stop_ms=0)).text == "x = 1\n    y = 2\n    return x"
    assert denoiser.num_steps - in_a_hurry > in_a_hurry


def test_who_has_no_deadline_is_patient(engine_of, ask, plan):
    engine, _ = engine_of("x = 1\n    return x", unhurried(early_stop_ms=1e-6))
    assert engine.fill(ask("def f():\n    |\n", plan=plan)).text == "x = 1"
    assert engine.fill(ask("def f():\n    |\n", plan=plan), deadline=float("inf")).text == "x = 1\n    return x"


def test_a_blank_line_is_no_whole_line_to_stop_at(engine_of, ask, plan):
    engine, _ = engine_of("\n    x = 1\n    return x")
    assert "x = 1" in engine.fill(ask("def f():\n    |\n", plan=plan, early_stop_ms=1e-6)).text


def test_the_same_request_again_finds_its_prompt_cached(engine_of, ask, plan):
    engine, _ = engine_of("x")
    request = ask("def f(x):\n    return |\n\nprint(f(1))\n", plan=plan)
    engine.fill(request)
    result = engine.fill(request)
    assert result.prompt_tokens - result.cached_tokens <= 1  # causal plans ask what follows the last token


def test_a_typed_character_is_all_that_is_decoded(engine_of, ask, plan):
    engine, _ = engine_of("x")
    engine.fill(ask("def f(x):\n    retur|\n\nprint(f(1))\n", plan=plan))
    result = engine.fill(ask("def f(x):\n    return|\n\nprint(f(1))\n", plan=plan))
    assert result.prompt_tokens - result.cached_tokens == 2  # the letter and the middle sentinel


def test_what_the_model_lacks_is_said(engine_of, ask, plan):
    without_head = replace(scripted.MASK_SPEC, has_causal_head=False)
    engine, denoiser = engine_of("x", spec=without_head)
    if not plan.needs_causal_head:
        assert engine.fill(ask("a = |\n", plan=plan)).text == "x"
        return
    with pytest.raises(RequestError, match=f"no causal head, which the plan {plan} needs"):
        engine.fill(ask("a = |\n", plan=plan))
    assert denoiser.num_steps == denoiser.num_prefilled == 0
