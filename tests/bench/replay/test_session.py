"""Sessions checked by hand: a key every 8 ticks, its request after 4, a step takes 1, an acceptance comes after 12."""

import json

import pytest

from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.metrics import Attempt
from dg_lsp.bench.replay.session import (
    Acceptance,
    AcceptedPart,
    AcceptEvent,
    KeyEvent,
    RequestEvent,
    TimedRequest,
    accept,
)
from dg_lsp.bench.replay.summary import ReplaySummary, assumptions
from dg_lsp.bench.replay.typing_model import MatchingKey
from dg_lsp.bench.replay.typing_tasks import Selection
from dg_lsp.engine.request import FillRequest

TICK = 1000 / 64


def at(**texts):
    """`at(a="b")` fills `b` on a line with just `a`, and nothing elsewhere; `_` stands for a space."""
    fills = {before.replace("_", " "): fill for before, fill in texts.items()}
    return lambda prefix, _suffix: fills.get(prefix.split("\n")[-1], "")


def requests(events):
    return [event for event in events if isinstance(event, RequestEvent)]


def accepted(events):
    return [event for event in events if isinstance(event, AcceptEvent)]


def hand(events):
    return "".join(event.key for event in events if isinstance(event, KeyEvent))


def ticks(events):
    return [event.at_ms / TICK for event in events if isinstance(event, KeyEvent)]


def test_without_items_everything_is_typed_by_hand(desk):
    events, summary = desk.typed("abc", "")
    assert hand(events) == "abc"
    assert ticks(events) == [8, 16, 24]
    # a request before the first key and after all but the last
    assert [event.attempt.case for event in requests(events)] == ["a.py:1:1", "a.py:1:2", "a.py:1:3"]
    assert summary.summary.miss_rate == 1.0
    assert summary.keystrokes_saved == 0


def test_an_item_is_accepted_after_the_reaction_time(desk):
    events, summary = desk.typed("total = first", at(total_="= first"))
    # requested 4 ticks after key 6, shown after one step at 53, accepted 12 ticks later; keys at 56 and 64 between
    assert accepted(events) == [AcceptEvent("a.py:1:7", "first", AcceptedPart.WHOLE, 1, 5, 65 * TICK)]
    assert hand(events) == "total = "
    assert ticks(events)[-1] == 64
    assert summary.keystrokes_saved == pytest.approx((13 - 8 - 1) / 13)
    assert summary.chars_accepted_share == pytest.approx(5 / 13)


def test_the_request_after_an_acceptance_has_no_debounce(desk):
    events, _ = desk.typed("a = one + two", at(a_="= one"))
    (took,) = accepted(events)
    after = events[events.index(took) + 1]
    assert isinstance(after, RequestEvent)
    assert after.attempt.case == "a.py:1:8"
    # the answer comes after one step and no debounce, and the next key a key's time after the acceptance
    assert events[events.index(took) + 2] == KeyEvent(" ", took.at_ms + 8 * TICK)


def test_an_item_may_be_typed_to_its_end_by_hand(desk):
    events, summary = desk.typed("ab\ncd", at(a="b"))
    # one character is not worth a key press
    assert summary.num_typed_through == 1
    assert [event.key for event in events if isinstance(event, KeyEvent) and event.completes == "a.py:1:2"] == ["b"]
    assert summary.num_displayed == 1
    assert summary.acceptance_rate == 0


def test_words_are_accepted_if_the_rest_is_wrong(desk):
    events, summary = desk.typed("x = alpha.beta()\n", at(x_="= alpha.gamma"))
    assert accepted(events) == [AcceptEvent("a.py:1:3", "alpha.", AcceptedPart.WORDS, 2, 6, 34 * TICK)]
    assert summary.keys_accepting == 2
    assert summary.keystrokes_saved == pytest.approx((17 - 11 - 2) / 17)


def test_the_first_line_is_accepted_if_the_second_is_wrong(desk):
    events, _ = desk.typed(
        "first = 1\n    other = 2",
        lambda prefix, _: "" if prefix[-1:] != " " else "first = 1\n    wrong",
        head="def f():\n    ",
        tail="\n",
    )
    assert accepted(events)[0].part is AcceptedPart.LINE
    assert accepted(events)[0].text == "rst = 1"  # two keys were faster than the reader


def test_a_key_cancels_the_request_and_its_steps_are_spent(desk):
    # nine steps would be needed; the key comes four ticks after the request
    events, summary = desk.typed("abc", "abcdefgh", tokens_per_step=1)
    assert summary.num_cancelled == 3
    assert [event.attempt.model_ms / TICK for event in requests(events)] == [4, 4, 4]
    assert [event.attempt.steps for event in requests(events)] == [4, 4, 4]
    assert [event.attempt.latency_ms / TICK for event in requests(events)] == [4, 4, 4]
    assert summary.summary.show_rate == 0
    assert summary.summary.miss_rate == 1
    assert summary.wasted_share == 1


def test_a_running_step_delays_the_next_request(desk):
    completer, denoiser = desk.completer("abcdefgh", tokens_per_step=1)
    case = TestCase("s", "line-end", "x = ", "", "abcdefgh")
    request = FillRequest(case.snapshot, case.offset)

    def ask(at_ticks, stale_ticks):
        return completer.answer(TimedRequest(case, request, at_ticks * TICK, stale_ticks * TICK))

    stopped = ask(10, 12.5)
    assert (stopped.rejection, stopped.model_ms, stopped.steps) == ("cancelled", 3 * TICK, 3)
    never_begun = ask(12.5, 12.75)
    assert (never_begun.rejection, never_begun.model_ms, never_begun.latency_ms) == ("cancelled", 0, 0.25 * TICK)
    assert denoiser.num_steps == 3
    waited = ask(12.75, 100)
    # the model is free at 13, nine steps later the answer is there
    assert waited.shown[0].ms == waited.latency_ms == 9.25 * TICK
    assert waited.model_ms == 9 * TICK
    completer.reset()
    assert ask(0, 100).latency_ms == 9 * TICK


SHORTER = {"": "abcdef", "a": "bcdef", "ab": "cdef", "abc": "def"}


@pytest.mark.parametrize(
    ("on_matching_key", "num_requests", "num_displayed", "took"),
    [
        (MatchingKey.REQUEST, 3, 1, "cdef"),
        (MatchingKey.KEEP, 2, 1, "cdef"),
        (MatchingKey.DISMISS, 7, 6, None),
    ],
)
def test_editors_differ_in_what_a_matching_key_does(desk, on_matching_key, num_requests, num_displayed, took):
    # shown at 5, to be taken at 17; keys at 8 and 16
    fills = {**SHORTER, "abcd": "ef", "abcde": "f"}
    events, summary = desk.typed("abcdef\n", lambda prefix, _: fills.get(prefix, ""), on_matching_key=on_matching_key)
    assert [event.text for event in accepted(events)] == ([took] if took else [])
    assert summary.summary.num == num_requests
    assert summary.num_displayed == num_displayed


def test_an_answer_that_starts_differently_is_a_reversal(desk):
    events, summary = desk.typed("abcdef", lambda prefix, _: {"": "abxx", "a": "cd"}.get(prefix, "bx"))
    first, second, third, *_ = requests(events)
    assert first.is_reversal is None  # nothing was there before
    assert second.is_reversal is True  # "bxx" was left, "cd" came
    assert third.attempt.case == "a.py:1:3"
    assert third.is_reversal is True
    assert summary.num_confirmable == 2
    assert summary.reversal_rate == 1


def test_the_quiet_rate_counts_finished_lines(desk):
    events, summary = desk.typed("ab\ncd", at(a="", ab="more"))
    finished = [event for event in requests(events) if event.is_line_finished]
    assert [event.attempt.case for event in finished] == ["a.py:1:3"]
    assert (summary.num_finished_lines, summary.num_quiet, summary.quiet_rate) == (1, 0, 0)
    _, summary = desk.typed("ab\ncd", "")
    assert summary.quiet_rate == 1


def test_cases_are_named_after_their_position_in_the_file(desk):
    events, _ = desk.typed("ab", "", head="def f():\n    ", tail="\n")
    assert [(event.attempt.case, event.attempt.kind) for event in requests(events)] == [
        ("a.py:2:5", "whole-line"),
        ("a.py:2:6", "line-end"),
    ]


def test_closing_the_generator_stops_the_session(desk):
    completer, denoiser = desk.completer("")
    run = desk.replay(("a.py", "python", "", "abcdef", "")).run(completer)
    next(run)
    run.close()
    assert denoiser.num_steps == 1


@pytest.mark.parametrize(
    ("item", "coming", "text", "part", "presses"),
    [
        pytest.param("x + y", "x + y\n", "x + y", AcceptedPart.WHOLE, 1, id="all of it"),
        pytest.param("x + y", "x + y + z\n", "x + y", AcceptedPart.WHOLE, 1, id="a part of what is coming"),
        pytest.param("x\n  y", "x\n  y\n", "x\n  y", AcceptedPart.WHOLE, 1, id="two lines"),
        pytest.param("x + y\n  z", "x + y\n  w\n", "x + y", AcceptedPart.LINE, 1, id="the first line"),
        pytest.param("x + y", "x - y\n", "x", AcceptedPart.WORDS, 1, id="a word"),
        pytest.param("self.width = 3", "self.width = w\n", "self.width =", AcceptedPart.WORDS, 4, id="words and signs"),
        pytest.param(" = one\n two", " = one_more", None, None, 0, id="half a word after a sign"),
        pytest.param("foo(x)", "foo()", "foo(", AcceptedPart.WORDS, 2, id="up to a wrong argument"),
        pytest.param("(a)", "(b)", None, None, 0, id="a sign alone"),
        pytest.param("wid", "width", None, None, 0, id="the start of a word"),
        pytest.param("):", "):\n", "):", AcceptedPart.WHOLE, 1, id="signs that are the whole item"),
        pytest.param("  ", "  x", None, None, 0, id="blanks"),
        pytest.param("grüße(é)", "grüße(ö)", "grüße(", AcceptedPart.WORDS, 2, id="letters of all alphabets"),
    ],
)
def test_a_user_accepts_the_part_that_is_right(item, coming, text, part, presses):
    assert accept(item, coming) == (None if text is None else Acceptance(text, part, presses))


TASKS = (
    ("a.py", "python", "", "total = first\ntotal = second\n", ""),
    ("b.py", "python", "x = 1\n", "y = 2\n", ""),
    ("b.py", "python", "x = 1\ny = 2\n", "z = 3\n", ""),
)


def second(prefix, _suffix):
    return "= second" if prefix.endswith("total ") else ""


def test_the_limit_counts_requests_of_each_file(desk):
    completer, denoiser = desk.completer(second)
    events = list(desk.replay(*TASKS, limit=3).run(completer))
    assert [event.attempt.case.split(":")[0] for event in requests(events)] == ["a.py"] * 3 + ["b.py"] * 3
    assert denoiser.num_steps == 6


@pytest.mark.parametrize("num_kept", [0, 1, 9, 17, 100])
def test_a_resumed_replay_equals_an_uninterrupted_one(desk, num_kept):
    replay = desk.replay(*TASKS, spread=0.8)
    whole = list(replay.run(desk.completer(second, tokens_per_step=2)[0]))
    attempts = [event.attempt for event in requests(whole)]
    assert 0 < ReplaySummary.of(whole).num_cancelled < len(attempts)
    kept = [Attempt.parse(json.loads(json.dumps(attempt.json()))) for attempt in attempts[:num_kept]]
    completer, denoiser = desk.completer(second, tokens_per_step=2, recorded=kept)
    again = list(replay.run(completer))
    assert ReplaySummary.of(again).json() == ReplaySummary.of(whole).json()
    assert ticks(again) == ticks(whole)
    assert denoiser.num_steps == sum(attempt.steps for attempt in attempts[num_kept:])


@pytest.mark.parametrize("selection", Selection)
def test_the_assumptions_are_printed(desk, selection):
    text = "\n".join(assumptions(desk.replay(*TASKS, seed=4), selection))
    assert "seed 4" in text
    assert "125 ms in a word" in text
    assert "62 ms after a key" in text
    assert "nothing after the cursor" in text if selection is Selection.ONWARDS else "the rest of the file" in text
