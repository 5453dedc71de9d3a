"""Fills by the default decoder of a scripted model."""

import time
import tracemalloc
from unittest.mock import patch

import pytest

from dg_lsp.engine.engine import drain
from dg_lsp.engine.request import Priority
from dg_lsp.postprocess.syntax import LimitedParser
from dg_lsp.postprocess.validate import Reason


def test_two_documents_keep_a_slot_each(engine_of, ask):
    engine, _ = engine_of("x")
    requests = ask("a = 1\nb = |\n" + "# end\n" * 9), ask("# start\n" * 9 + "c = |\n")
    for request in requests:
        engine.fill(request)
    for request in requests:
        result = engine.fill(request)
        assert result.cached_tokens == result.prompt_tokens


@pytest.mark.parametrize("least", [0.0, 0.05])
def test_a_faulty_candidate_is_hidden_from_automatic_requests_only(engine_of, ask, least):
    engine, _ = engine_of("a", {"min_confidence": least})
    assert engine.fill(ask("a = |\n", priority=Priority.INVOKED)).text == "a"
    result = engine.fill(ask("a = |\n"))
    assert result.candidates == ()
    assert [(refused.reason, refused.text) for refused in result.rejections] == [(Reason.NO_EFFECT, "a")]


@pytest.mark.parametrize(("fill", "num_tokens"), [("a\n    bc", 2), ("\n    a\n    b", 7), ("abc", 4)])
def test_confidence_is_the_probability_of_the_first_line_with_text(engine_of, ask, fill, num_tokens):
    engine, _ = engine_of(fill)
    [candidate] = engine.fill(ask("if x:\n    |\n")).candidates
    assert candidate.confidence == pytest.approx(0.99**num_tokens)


def test_an_improbable_line_is_shown_up_to_its_last_probable_word(engine_of, ask):
    engine, _ = engine_of("alpha + beta", {"min_confidence": 0.94})
    result = engine.fill(ask("a = |\n"))
    [begun] = result.candidates
    assert (begun.text, begun.is_beginning) == ("alpha", True)
    assert begun.confidence == pytest.approx(0.99**5)
    assert [candidate.text for candidate in result.hidden] == ["alpha + beta"]
    assert engine.fill(ask("a = |\n", priority=Priority.INVOKED)).text == "alpha + beta"


def test_timings_add_up_and_leave_out_the_time_of_the_caller(engine_of, ask):
    engine, denoiser = engine_of("abcdefgh", step_seconds=0.01, tokens_per_step=4)
    began = time.perf_counter()
    result = drain(engine.complete(ask("a = |\n"), deadline=float("inf")), lambda _: time.sleep(0.02))
    elapsed = 1e3 * (time.perf_counter() - began)
    timings = result.timings
    assert timings.total == pytest.approx(timings.prefill + timings.denoise + timings.postprocess)
    assert 10 * denoiser.num_steps <= timings.denoise
    assert timings.total <= elapsed - 20 * result.steps


def test_only_a_requested_completion_must_leave_a_file_that_python_parses(engine_of, ask):
    engine, _ = engine_of("print y")
    assert engine.fill(ask("|\ny = 2\n")).text == "print y"
    refused = engine.fill(ask("|\ny = 2\n", priority=Priority.INVOKED))
    assert (refused.text, refused.reason) == ("", Reason.SYNTAX_ERROR)


MEGABYTES = 2_000_000


@pytest.mark.parametrize(
    ("language", "piece", "before", "after"),
    [
        ("javascript", 'function a(b){return b.map((d)=>d*2)}var x={"k":[1,2]};', "var y=sum(", ");"),
        pytest.param("javascript", "(", "sum(", ")", id="open brackets"),
        ("html", '<div class="a"><p>b</p></div>', "<p>", "</p>"),
        ("python", "x = [1, 2]; ", "y = sum(", "); "),
    ],
)
def test_a_line_of_2_megabytes_is_filled_in_little_memory_without_a_parse(
    engine_of, ask, language, piece, before, after
):
    """Minified files have such lines."""
    engine, _ = engine_of("1")
    half = piece * (MEGABYTES // 2 // len(piece))
    request = ask(f"{half}{before}|{after}{half}", language, priority=Priority.INVOKED)
    tracemalloc.start()
    try:
        with patch.object(LimitedParser, "root", autospec=True, side_effect=LimitedParser.root) as root:
            result = engine.fill(request)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.text == "1"
    assert sum(len(call.args[1]) for call in root.call_args_list) < MEGABYTES / 10
    assert peak < 7 * MEGABYTES
