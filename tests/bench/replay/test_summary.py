import pytest

from dg_lsp.bench.replay.session import AcceptedPart, AcceptEvent, KeyEvent, RequestEvent
from dg_lsp.bench.replay.summary import ReplaySummary


@pytest.fixture
def request_event(make_attempt):
    def make(case, text="", *, ms=10.0, model_ms=10.0, cancelled=False, displayed=None, **flags):
        changes = {"reference": "x", "model_ms": model_ms, "steps": 2, "tokens": 3}
        if not text:
            changes |= {"shown": (), "latency_ms": ms, "rejection": "cancelled" if cancelled else "empty"}
        attempt = make_attempt(case, "replay", *([(ms, text)] if text else []), **changes)
        flags = {"is_line_finished": False, "is_reversal": None, **flags}
        return RequestEvent(attempt, is_displayed=bool(text) if displayed is None else displayed, **flags)

    return make


def keys(text):
    return [KeyEvent(key, 0.0) for key in text]


def test_cancelled_requests_are_misses(request_event):
    summary = ReplaySummary.of(
        [
            request_event("a", "x", ms=20),
            request_event("b", "y", ms=5),
            request_event("c"),
            request_event("d", cancelled=True),
        ]
    )
    assert summary.summary.miss_rate == 0.75
    assert summary.summary.useful_by[50] == 0.25
    assert summary.summary.ttfue_ms.p50 == 20
    assert summary.summary.show_rate == 0.5
    assert summary.num_cancelled == 1
    assert summary.answer_ms.p50 == 10  # of 20, 5 and 10: a cancelled request has no answer


def test_wasted_model_time_is_that_of_items_that_were_not_accepted(request_event):
    events = [
        request_event("taken", "x", model_ms=8),
        request_event("seen", "y", model_ms=16),
        request_event("unseen", "z", model_ms=32, displayed=False),
        request_event("none", model_ms=64),
        request_event("stopped", model_ms=128, cancelled=True),
        AcceptEvent("taken", "x", AcceptedPart.WHOLE, 1, 1, 0.0),
    ]
    summary = ReplaySummary.of(events)
    assert summary.model_ms == 248
    assert summary.wasted_ms == 240
    assert summary.unshown_ms == 224
    assert summary.wasted_share == pytest.approx(240 / 248)
    assert summary.summary.model_ms_per_useful == 248


def test_saved_keystrokes_exclude_the_presses_that_accept(request_event):
    events = [
        *keys("ab"),
        AcceptEvent("s", "cdef", AcceptedPart.WHOLE, 1, 4, 0.0),
        AcceptEvent("t", "gh ij", AcceptedPart.WORDS, 2, 5, 0.0),
        KeyEvent("\n    ", 0.0),
    ]
    summary = ReplaySummary.of(events)
    assert (summary.keys_by_hand, summary.keys_typed, summary.keys_accepting) == (12, 3, 3)
    assert summary.keystrokes_saved == pytest.approx(6 / 12)
    assert (summary.chars, summary.chars_accepted) == (16, 9)
    assert summary.chars_accepted_share == pytest.approx(9 / 16)
    assert summary.num_accepted == {AcceptedPart.WHOLE: 1, AcceptedPart.LINE: 0, AcceptedPart.WORDS: 1}


def test_an_accepted_line_end_with_its_indentation_saves_one_key(request_event):
    summary = ReplaySummary.of([AcceptEvent("s", "a\n    b", AcceptedPart.WHOLE, 1, 3, 0.0)])
    assert summary.keystrokes_saved == pytest.approx(2 / 3)
    assert summary.chars_accepted_share == 1


def test_rates_have_their_own_denominators(request_event):
    events = [
        request_event("a", "x", is_reversal=None),
        request_event("b", "y", is_reversal=True, displayed=False),
        request_event("c", "z", is_reversal=False, displayed=False),
        request_event("d", "w", is_line_finished=True),
        request_event("e", is_line_finished=True),
        request_event("f", is_line_finished=True, cancelled=True),
        AcceptEvent("a", "x", AcceptedPart.LINE, 1, 1, 0.0),
        KeyEvent("w", 0.0, completes="d"),
    ]
    summary = ReplaySummary.of(events)
    assert (summary.num_reversed, summary.num_confirmable, summary.reversal_rate) == (1, 2, 0.5)
    assert (summary.num_displayed, summary.acceptance_rate) == (2, 0.5)
    # a cancelled request is not quiet
    assert (summary.num_finished_lines, summary.num_quiet, summary.quiet_rate) == (2, 1, 0.5)
    assert summary.num_typed_through == 1
