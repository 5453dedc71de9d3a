"""Sessions whose times are whole ticks, checked by hand.

A tick is 1/64 s: sums of ticks are exact in binary. A key comes every 8 ticks and its request 4 ticks later, a step of
the model takes 1, and an item is accepted after 12.
"""

from dataclasses import replace

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.replay import (
    AcceptEvent,
    EngineCompleter,
    KeyEvent,
    Replay,
    RequestEvent,
    summarize_replay,
)
from dg_lsp.bench.typing_model import AcceptedPart, EditorModel, MatchingKey, TypingModel, TypingTask
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import DecoderName, FillRequest
from dg_lsp.settings import CompletionSettings

TICK = 1000 / 64
TYPING = TypingModel(8 * TICK, 8 * TICK, 8 * TICK, spread=0, reaction_ms=12 * TICK)


class Clock:
    """Advances with the steps of the model only."""

    def __init__(self):
        self.ticks = 0

    def __call__(self):
        return self.ticks / 64


class TickingDenoiser(ScriptedDenoiser):
    """A step takes one tick, a prefill none."""

    def __init__(self, fill, clock, **script):
        super().__init__(fill, **script)
        self._clock = clock

    def predict(self, *args, **kwargs):
        self._clock.ticks += 1
        return super().predict(*args, **kwargs)


def completer_of(fill, tokens_per_step=64, recorded=(), min_confidence=0.05):
    """An engine completer and its denoiser."""
    clock = Clock()
    denoiser = TickingDenoiser(fill, clock, tokens_per_step=tokens_per_step)
    settings = CompletionSettings(
        check_syntax=False,
        deadline_ms=60_000,
        decoder=DecoderName.DIFFUSION.value,
        min_confidence=min_confidence,
    )
    return EngineCompleter(LocalEngine(denoiser, denoiser.tokenizer, settings), recorded, clock), denoiser


def replay_of(*tasks, spread=0.0, on_matching_key=MatchingKey.REQUEST, limit=None, seed=0):
    editor = EditorModel(4 * TICK, on_matching_key)
    return Replay([TypingTask(*task) for task in tasks], replace(TYPING, spread=spread), editor, seed, limit)


def typed(text, fill, *, tokens_per_step=64, head="", tail="", min_confidence=0.05, **options):
    """Events and numbers of one session."""
    completer, _ = completer_of(fill, tokens_per_step, min_confidence=min_confidence)
    events = list(replay_of(("a.py", "python", head, text, tail), **options).run(completer))
    return events, summarize_replay(events)


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


def test_an_item_is_accepted_after_the_reaction_time():
    events, summary = typed("total = first", at(total_="= first"))
    # requested 4 ticks after key 6, shown after one step at 53, accepted 12 ticks later; keys at 56 and 64 between
    assert accepted(events) == [AcceptEvent("a.py:1:7", "first", AcceptedPart.WHOLE, 1, 5, 65 * TICK)]
    assert hand(events) == "total = "
    assert ticks(events)[-1] == 64
    assert summary["keystrokes_saved"] == pytest.approx((13 - 8 - 1) / 13, abs=1e-4)
    assert summary["chars_accepted_share"] == pytest.approx(5 / 13, abs=1e-4)


def test_an_item_that_is_probably_wrong_is_not_shown():
    events, summary = typed("total = first", at(total_="= first"), min_confidence=0.999)
    assert not accepted(events)
    assert (summary["show_rate"], summary["num_displayed"], hand(events)) == (0, 0, "total = first")
    assert [event.attempt.rejection for event in requests(events) if event.attempt.case == "a.py:1:7"] == [
        "low-confidence"
    ]


def test_the_request_after_an_acceptance_has_no_debounce():
    events, _ = typed("a = one + two", at(a_="= one"))
    (took,) = accepted(events)
    after = events[events.index(took) + 1]
    assert isinstance(after, RequestEvent)
    assert after.attempt.case == "a.py:1:8"
    # the answer comes after one step and no debounce, and the next key a key's time after the acceptance
    assert events[events.index(took) + 2] == KeyEvent(" ", took.at_ms + 8 * TICK)


def test_an_item_may_be_typed_to_its_end_by_hand():
    events, summary = typed("ab\ncd", at(a="b"))
    # one character is not worth a key press
    assert [event.key for event in events if isinstance(event, KeyEvent) and event.completes == "a.py:1:2"] == ["b"]
    assert (summary["num_typed_through"], summary["num_displayed"], summary["acceptance_rate"]) == (1, 1, 0)


def test_a_key_cancels_the_request_and_its_steps_are_spent():
    # nine steps would be needed; the key comes four ticks after the request
    events, summary = typed("abc", "abcdefgh", tokens_per_step=1)
    attempts = [event.attempt for event in requests(events)]
    assert [(one.model_ms / TICK, one.steps, one.latency_ms / TICK) for one in attempts] == [(4, 4, 4)] * 3
    assert (summary["num_cancelled"], summary["show_rate"]) == (3, 0)
    assert (summary["miss_rate"], summary["wasted_share"]) == (1, 1)


def test_a_running_step_delays_the_next_request():
    completer, denoiser = completer_of("abcdefgh", tokens_per_step=1)
    case = TestCase("s", "line-end", "x = ", "", "abcdefgh")
    request = FillRequest(case.snapshot, case.offset)

    def answer(at_ticks, stale_ticks):
        return completer.answer(case, request, at_ticks * TICK, stale_ticks * TICK)

    stopped = answer(10, 12.5)
    assert (stopped.rejection, stopped.model_ms, stopped.steps) == ("cancelled", 3 * TICK, 3)
    never_begun = answer(12.5, 12.75)
    assert (never_begun.rejection, never_begun.model_ms, never_begun.latency_ms) == ("cancelled", 0, 0.25 * TICK)
    assert denoiser.num_steps == 3
    waited = answer(12.75, 100)
    # the model is free at 13, nine steps later the answer is there
    assert waited.ttfue_ms == waited.latency_ms == 9.25 * TICK
    assert waited.model_ms == 9 * TICK
    completer.reset()
    assert answer(0, 100).latency_ms == 9 * TICK


SHORTER = {"": "abcdef", "a": "bcdef", "ab": "cdef", "abc": "def"}


@pytest.mark.parametrize(
    ("on_matching_key", "num_requests", "num_displayed", "took"),
    [
        (MatchingKey.REQUEST, 3, 1, "cdef"),
        (MatchingKey.KEEP, 2, 1, "cdef"),
        (MatchingKey.DISMISS, 7, 6, None),
    ],
)
def test_a_matching_key_requests_keeps_or_dismisses(on_matching_key, num_requests, num_displayed, took):
    # shown at 5, to be taken at 17; keys at 8 and 16
    fills = {**SHORTER, "abcd": "ef", "abcde": "f"}
    events, summary = typed("abcdef\n", lambda prefix, _: fills.get(prefix, ""), on_matching_key=on_matching_key)
    assert [event.text for event in accepted(events)] == ([took] if took else [])
    assert summary["num"] == num_requests
    assert summary["num_displayed"] == num_displayed


def test_an_answer_that_starts_differently_is_a_reversal():
    events, summary = typed("abcdef", lambda prefix, _: {"": "abxx", "a": "cd"}.get(prefix, "bx"))
    # the first request has no earlier item; at the second one "bxx" was left of it, and "cd" is the answer
    assert [event.is_reversal for event in requests(events)[:3]] == [None, True, True]
    assert (summary["num_confirmable"], summary["reversal_rate"]) == (2, 1)


TASKS = (
    ("a.py", "python", "", "total = first\ntotal = second\n", ""),
    ("b.py", "python", "x = 1\n", "y = 2\n", ""),
    ("b.py", "python", "x = 1\ny = 2\n", "z = 3\n", ""),
)


def second(prefix, _suffix):
    return "= second" if prefix.endswith("total ") else ""


@pytest.mark.parametrize("num_kept", [0, 1, 9, 17, 100])
def test_a_resumed_replay_equals_an_uninterrupted_one(num_kept):
    replay = replay_of(*TASKS, spread=0.8)
    whole = list(replay.run(completer_of(second, tokens_per_step=2)[0]))
    attempts = [event.attempt for event in requests(whole)]
    assert 0 < summarize_replay(whole)["num_cancelled"] < len(attempts)
    kept = attempts[:num_kept]
    completer, denoiser = completer_of(second, tokens_per_step=2, recorded=kept)
    again = list(replay.run(completer))
    assert summarize_replay(again) == summarize_replay(whole)
    assert ticks(again) == ticks(whole)
    assert denoiser.num_steps == sum(attempt.steps for attempt in attempts[num_kept:])


@pytest.fixture
def request_event(make_attempt):
    def make(case, text="", *, ms=10.0, model_ms=10.0, cancelled=False, displayed=None, **flags):
        changes = {"reference": "x", "model_ms": model_ms, "steps": 2, "tokens": 3}
        if not text:
            changes |= {"text": "", "latency_ms": ms, "rejection": "cancelled" if cancelled else "empty"}
        attempt = make_attempt(case, "replay", *([(ms, text)] if text else []), **changes)
        flags = {"is_line_finished": False, "is_reversal": None, **flags}
        return RequestEvent(attempt, 0.0, is_displayed=bool(text) if displayed is None else displayed, **flags)

    return make


def keys(text):
    return [KeyEvent(key, 0.0) for key in text]


def test_wasted_model_time_is_that_of_items_that_were_not_accepted(request_event):
    events = [
        request_event("taken", "x", model_ms=8),
        request_event("seen", "y", model_ms=16),
        request_event("unseen", "z", model_ms=32, displayed=False),
        request_event("none", model_ms=64),
        request_event("stopped", model_ms=128, cancelled=True),
        AcceptEvent("taken", "x", AcceptedPart.WHOLE, 1, 1, 0.0),
    ]
    summary = summarize_replay(events)
    assert (summary["model_ms"], summary["wasted_ms"], summary["unshown_ms"]) == (248, 240, 224)
    assert summary["wasted_share"] == pytest.approx(240 / 248, abs=1e-4)
    assert summary["model_ms_per_useful"] == 248


def test_saved_keystrokes_exclude_the_presses_that_accept(request_event):
    events = [
        *keys("ab"),
        AcceptEvent("s", "cdef", AcceptedPart.WHOLE, 1, 4, 0.0),
        AcceptEvent("t", "gh ij", AcceptedPart.WORDS, 2, 5, 0.0),
        KeyEvent("\n    ", 0.0),
    ]
    summary = summarize_replay(events)
    assert (summary["keys_by_hand"], summary["keys_typed"], summary["keys_accepting"]) == (12, 3, 3)
    assert summary["keystrokes_saved"] == pytest.approx(6 / 12, abs=1e-4)
    assert (summary["chars"], summary["chars_accepted"]) == (16, 9)
    assert summary["chars_accepted_share"] == pytest.approx(9 / 16, abs=1e-4)
    assert summary["num_accepted"] == {"whole": 1, "line": 0, "words": 1}


def test_rates_have_their_own_denominators(request_event):
    events = [
        request_event("a", "x", is_reversal=None),
        request_event("b", "y", is_reversal=True, displayed=False),
        request_event("c", "z", is_reversal=False, displayed=False),
        request_event("d", "w", is_line_finished=True),
        request_event("e", is_line_finished=True),
        request_event("f", is_line_finished=True, cancelled=True, ms=500.0),
        AcceptEvent("a", "x", AcceptedPart.LINE, 1, 1, 0.0),
        KeyEvent("w", 0.0, completes="d"),
    ]
    summary = summarize_replay(events)
    assert (summary["num_reversed"], summary["num_confirmable"], summary["reversal_rate"]) == (1, 2, 0.5)
    assert (summary["num_displayed"], summary["acceptance_rate"]) == (2, 0.5)
    assert (summary["num_cancelled"], summary["answer_ms"]["p90"]) == (1, 10)  # a cancelled request has no answer
    # a cancelled request is not quiet
    assert (summary["num_finished_lines"], summary["num_quiet"], summary["quiet_rate"]) == (2, 1, 0.5)
    assert summary["num_typed_through"] == 1
