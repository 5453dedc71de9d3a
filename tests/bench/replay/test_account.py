"""Every number of an account, from events made by hand."""

import json
import math

import pytest

from dg_lsp.bench.replay.accept import Level
from dg_lsp.bench.replay.account import Account
from dg_lsp.bench.replay.events import Accepted, Asked, Typed
from dg_lsp.metrics.attempt import Attempt, Shown

NOTHING = Account.of([])


def asked(site, text="", *, want="x", ms=10.0, model_ms=10.0, cancelled=False, displayed=None, **more):
    attempt = Attempt(
        site=site,
        kind="line-end",
        way="replay",
        decoder="diffusion",
        want=want,
        shown=(Shown(ms, text),) if text else (),
        is_exact=text == want,
        passes=None,
        latency_ms=ms,
        steps=2,
        tokens=3,
        confidence=math.nan,
        rejection="cancelled" if cancelled else None if text else "empty",
        prefill_ms=1.0,
        model_ms=model_ms,
    )
    told = {"is_line_finished": False, "takes_back": None, **more}
    return Asked(attempt, is_displayed=bool(text) if displayed is None else displayed, **told)


def keys(text):
    return [Typed(key, 0.0) for key in text]


def test_of_nothing_there_is_nothing():
    assert NOTHING.summary.num == 0
    assert NOTHING.keystrokes_saved == NOTHING.acceptance_rate == NOTHING.wasted_share == 0
    assert NOTHING.summary.ttfue_ms.p50 is None


def test_a_miss_stays_a_miss():
    account = Account.of([asked("a", "x", ms=20), asked("b", "y", ms=5), asked("c"), asked("d", cancelled=True)])
    assert account.summary.miss_rate == 0.75
    assert account.summary.useful_by[50] == 0.25
    assert account.summary.ttfue_ms.p50 == 20
    assert account.summary.show_rate == 0.5
    assert account.num_cancelled == 1
    assert account.answer_ms.p50 == 10  # of 20, 5 and 10: a cancelled request has no answer


def test_wasted_time_adds_up():
    events = [
        asked("taken", "x", model_ms=8),
        asked("seen", "y", model_ms=16),
        asked("unseen", "z", model_ms=32, displayed=False),
        asked("none", model_ms=64),
        asked("stopped", model_ms=128, cancelled=True),
        Accepted("taken", "x", Level.WHOLE, 1, 1, 0.0),
    ]
    account = Account.of(events)
    assert account.model_ms == 248
    assert account.wasted_ms == 240
    assert account.unshown_ms == 224
    assert account.wasted_share == pytest.approx(240 / 248)
    assert account.summary.model_ms_per_useful == 248


def test_saved_keys_are_net_of_the_presses_that_accept():
    events = [
        *keys("ab"),
        Accepted("s", "cdef", Level.WHOLE, 1, 4, 0.0),
        Accepted("t", "gh ij", Level.WORDS, 2, 5, 0.0),
        Typed("\n    ", 0.0),
    ]
    account = Account.of(events)
    assert (account.keys_by_hand, account.keys_typed, account.keys_accepting) == (12, 3, 3)
    assert account.keystrokes_saved == pytest.approx(6 / 12)
    assert (account.chars, account.chars_accepted) == (16, 9)
    assert account.chars_accepted_share == pytest.approx(9 / 16)
    assert account.num_accepted == {Level.WHOLE: 1, Level.LINE: 0, Level.WORDS: 1}


def test_a_line_end_and_its_indentation_accepted_are_one_key_spared():
    account = Account.of([Accepted("s", "a\n    b", Level.WHOLE, 1, 3, 0.0)])
    assert account.keystrokes_saved == pytest.approx(2 / 3)
    assert account.chars_accepted_share == 1


def test_rates_count_over_what_they_say():
    events = [
        asked("a", "x", takes_back=None),
        asked("b", "y", takes_back=True, displayed=False),
        asked("c", "z", takes_back=False, displayed=False),
        asked("d", "w", is_line_finished=True),
        asked("e", is_line_finished=True),
        asked("f", is_line_finished=True, cancelled=True),
        Accepted("a", "x", Level.LINE, 1, 1, 0.0),
        Typed("w", 0.0, finishes="d"),
    ]
    account = Account.of(events)
    assert (account.num_reversed, account.num_confirmable, account.reversal_rate) == (1, 2, 0.5)
    assert (account.num_displayed, account.acceptance_rate) == (2, 0.5)
    # a cancelled request was not quiet, it was not heard
    assert (account.num_finished_lines, account.num_quiet, account.quiet_rate) == (2, 1, 0.5)
    assert account.num_typed_through == 1


def test_an_account_is_plain_json():
    tree = json.loads(json.dumps(Account.of([asked("a", "x"), *keys("ab")]).json()))
    assert tree["num"] == 1
    assert tree["keystrokes"] == {"by_hand": 2, "typed": 2, "accepting": 0}
    assert tree["accepted"] == {"whole": 0, "line": 0, "words": 0}
    assert tree["useful_by"]["50"] == 1.0
    assert tree["ttfue_ms"] == {"p50": 10.0, "p90": 10.0}
