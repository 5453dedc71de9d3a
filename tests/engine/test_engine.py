import time
from types import SimpleNamespace

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.context.document import Snapshot
from dg_lsp.engine import stop_criteria
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import FillSettings

UNHURRIED = FillSettings(deadline_ms=60_000, early_stop_ms=0)


def engine_of(fill, settings=None, **script):
    denoiser = ScriptedDenoiser(fill, **script)
    return Engine(denoiser, denoiser.tokenizer, settings or UNHURRIED), denoiser


def ask(text, **more):
    """A request at the `|` in the text."""
    offset = text.index("|")
    return FillRequest(Snapshot("file:///a.py", 1, text.replace("|", "", 1)), offset, **more)


def frames_of(engine, request, **more):
    steps, frames = engine.frames(request, **more), []
    while True:
        try:
            frames.append(next(steps))
        except StopIteration as end:
            return frames, end.value


def test_the_rest_of_a_line():
    engine, _ = engine_of("x + y")
    result = engine.fill(ask("def add(x, y):\n    return |\n"))
    assert result.text == "x + y"
    assert result.model == "scripted"
    assert result.candidates[0].score == pytest.approx(-0.01, abs=0.01)


def test_one_frame_per_forward_pass():
    engine, denoiser = engine_of("x + y", tokens_per_step=2)
    frames, result = frames_of(engine, ask("a = |\n"))
    assert len(frames) == result.steps == denoiser.num_steps == 3
    assert [frame.settled_text for frame in frames] == ["x ", "x + ", "x + y"]
    assert [cell.is_committed for cell in frames[0].cells][:3] == [True, True, False]
    assert result.tokens_per_forward == pytest.approx(6 / 3)


def test_a_line_stops_at_its_first_line_end_however_much_the_model_would_say():
    engine, denoiser = engine_of("x\n" + "more\n" * 50, tokens_per_step=4)
    result = engine.fill(ask("a = |\n"))
    assert result.text == "x"
    assert denoiser.num_steps == 1


def test_a_blank_line_may_get_several_lines():
    engine, _ = engine_of("x = 1\n    return x")
    assert engine.fill(ask("def f():\n    |\n")).text == "x = 1\n    return x"


def test_max_lines_of_the_request_is_kept():
    engine, _ = engine_of("x = 1\n    return x")
    assert engine.fill(ask("def f():\n    |\n", max_lines=1)).text == "x = 1"


def test_a_long_fill_goes_on_canvas_by_canvas():
    text = "'" + "".join(f"{n:03}" for n in range(16)) + "'"
    engine, _ = engine_of(text, tokens_per_step=8)
    frames, result = frames_of(engine, ask("a = |\n"))
    assert result.text == text
    assert [frame.block for frame in frames][-1] == 6
    assert result.canvas_length == 8


def test_a_fill_that_goes_in_circles_is_stopped_and_not_shown():
    engine, denoiser = engine_of("width, " * 9, tokens_per_step=1)
    result = engine.fill(ask("a = f(|\n"))
    assert [rejection.reason for rejection in result.rejections] == [Reason.REPEATS_ITSELF]
    assert denoiser.num_steps == len("width, " * 5)


def test_lines_that_come_again_and_again_stop_the_fill_and_are_shown_once():
    engine, denoiser = engine_of("x = 1\n    x = 1\n    x = 1\n    x = 1\n    x = 1\n", tokens_per_step=1)
    assert engine.fill(ask("def f():\n    |\n")).text == "x = 1"
    assert denoiser.num_steps < len("x = 1\n" + "    x = 1\n" * 4)


def test_a_fill_stops_at_max_tokens():
    text = "'" + "".join(f"{n:03}" for n in range(160)) + "'"
    engine, denoiser = engine_of(text, FillSettings(max_tokens=32, check_syntax=False))
    assert len(engine.fill(ask("a = |\n")).text) == 32
    assert denoiser.num_steps == 8


def test_typing_decodes_only_what_is_new():
    engine, denoiser = engine_of("x")
    engine.fill(ask("def f(x):\n    retur|\n\nprint(f(1))\n"))
    result = engine.fill(ask("def f(x):\n    return|\n\nprint(f(1))\n"))
    assert result.prompt_tokens - result.cached_tokens == 2  # the letter and the middle sentinel
    assert result.cached_tokens > 20
    assert denoiser.num_prefilled < 2 * result.prompt_tokens


def test_two_places_keep_a_slot_each():
    engine, _ = engine_of("x")
    first, second = ask("a = 1\nb = |\n" + "# end\n" * 9), ask("# start\n" * 9 + "c = |\n")
    engine.fill(first)
    engine.fill(second)
    for request in (first, second):
        result = engine.fill(request)
        assert result.cached_tokens == result.prompt_tokens


def test_candidates_are_distinct_and_ranked():
    engine, _ = engine_of(["one", "two", "one"])
    result = engine.fill(ask("a = |\n", num_candidates=3))
    assert sorted(candidate.text for candidate in result.candidates) == ["one", "two"]
    scores = [candidate.score for candidate in result.candidates]
    assert scores == sorted(scores, reverse=True)


def test_nothing_is_a_rejection_with_its_reason():
    engine, _ = engine_of("")
    result = engine.fill(ask("a = 1|\n"))
    assert result.candidates == ()
    assert [rejection.reason for rejection in result.rejections] == [Reason.EMPTY]
    assert result.text == ""


def test_at_the_deadline_what_has_settled_is_judged(monkeypatch):
    engine, denoiser = engine_of("abcdefghij", tokens_per_step=2)
    monkeypatch.setattr(
        stop_criteria, "time", SimpleNamespace(monotonic=lambda: denoiser.num_steps)
    )  # a second for a step
    _, result = frames_of(engine, ask("a = |\n"), deadline=2)
    assert result.text == "abcd"


def test_a_deadline_that_has_passed_asks_the_model_nothing():
    engine, denoiser = engine_of("abc")
    _, result = frames_of(engine, ask("a = |\n"), deadline=time.monotonic() - 1)
    assert denoiser.num_steps == 0
    assert [rejection.reason for rejection in result.rejections] == [Reason.UNFINISHED]


def test_closing_the_generator_stops_the_model():
    engine, denoiser = engine_of("abcdefgh", tokens_per_step=1)
    steps = engine.run(ask("a = |\n"))
    next(steps)
    steps.close()
    assert denoiser.num_steps == 1
    assert engine.fill(ask("a = |\n")).text == "abcdefgh"


def test_a_canvas_longer_than_the_model_knows_is_refused():
    engine, _ = engine_of("x", FillSettings(canvas_length=65))
    with pytest.raises(RequestError, match="at most 64"):
        engine.fill(ask("a = |\n"))


def test_a_canvas_length_of_the_settings_is_used():
    engine, _ = engine_of("x", FillSettings(canvas_length=8))
    assert engine.fill(ask("a = |\n")).canvas_length == 8


def test_the_suffix_is_seen_and_can_be_kept_out():
    engine, _ = engine_of(lambda _, suffix: repr(suffix))
    assert engine.fill(ask("a = |\nb = 2\n")).text == repr("\nb = 2\n")
    assert engine.fill(ask("a = |\nb = 2\n", suffix_lines=0)).text == repr("")


def test_timings_add_up():
    engine, _ = engine_of("abc", step_seconds=0.01)
    timings = engine.fill(ask("a = |\n")).timings
    assert timings.total == pytest.approx(timings.prefill + timings.denoise + timings.postprocess)
    assert 10 <= timings.predict <= timings.denoise
