"""Sessions whose times are whole ticks, checked by hand.

A tick is 1/64 s: sums of ticks are exact in binary. A key comes every 8 ticks and its request 4 ticks later, a step of
the model takes 1, and an item is accepted after 12.
"""

import pytest
from scripted import ScriptedDenoiser, engine_for

from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.replay import (
    AcceptedPart,
    AcceptedText,
    AcceptEvent,
    KeyEvent,
    Replay,
    RequestEvent,
    Session,
    TypingModel,
    TypingTask,
    accept,
    split_keys,
    summarize_replay,
)
from dg_lsp.engine.request import DecoderName
from dg_lsp.errors import RequestError

TICK = 1000 / 64
TYPING = TypingModel(8 * TICK, 8 * TICK, 8 * TICK, spread=0, reaction_ms=12 * TICK, debounce_ms=4 * TICK)


def replay_of(text, fill, tokens_per_step=64, **settings):
    """The clock advances with the steps of the model only."""
    denoiser = ScriptedDenoiser(fill, tokens_per_step=tokens_per_step)
    engine = engine_for(denoiser, deadline_ms=60_000, decoder=DecoderName.DIFFUSION.value, **settings)
    task = TypingTask("a.py", "python", "", text, "")
    return Replay([task], TYPING, clock=lambda: denoiser.num_steps / 64), engine


def typed(text, fill, *, tokens_per_step=64, **settings):
    replay, engine = replay_of(text, fill, tokens_per_step, **settings)
    events = list(replay.run(engine))
    return events, summarize_replay(events)


def at(**texts):
    """`at(a="b")` fills `b` on a line with just `a`, and nothing elsewhere; `_` stands for a space."""
    fills = {before.replace("_", " "): fill for before, fill in texts.items()}
    return lambda prefix, _suffix: fills.get(prefix.split("\n")[-1], "")


def accepted(events):
    return [event for event in events if isinstance(event, AcceptEvent)]


def test_an_item_is_accepted_after_the_reaction_time():
    events, summary = typed("total = first", at(total_="= first"))
    # requested 4 ticks after key 6, shown after one step at 53, accepted 12 ticks later; keys at 56 and 64 between
    assert accepted(events) == [AcceptEvent("first", AcceptedPart.WHOLE, 1, "a.py:1:7", 5, 65 * TICK)]
    keys = [event for event in events if isinstance(event, KeyEvent)]
    assert ("".join(event.key for event in keys), keys[-1].at_ms) == ("total = ", 64 * TICK)
    assert summary["keystrokes_saved"] == pytest.approx((13 - 8 - 1) / 13, abs=1e-4)


def test_the_request_after_an_acceptance_has_no_debounce():
    events, _ = typed("a = one + two", at(a_="= one"))
    (took,) = accepted(events)
    after = events[events.index(took) + 1]
    assert isinstance(after, RequestEvent)
    assert after.attempt.case == "a.py:1:8"
    # the answer comes after one step and no debounce, and the next key a key's time after the acceptance
    assert events[events.index(took) + 2] == KeyEvent(" ", took.at_ms + 8 * TICK)


def test_one_character_is_not_worth_a_key_press():
    _, summary = typed("ab\ncd", at(a="b"))
    assert (summary["num_displayed"], summary["acceptance_rate"]) == (1, 0)


def test_what_an_editor_hides_is_not_displayed():
    _, summary = typed("ab\ncd", at(a="b"), min_confidence=1.0)
    assert summary["num_displayed"] == 0


def test_a_key_cancels_the_request_and_its_steps_are_spent():
    # nine steps would be needed; the key comes four ticks after the request
    events, summary = typed("abc", "abcdefgh", tokens_per_step=1)
    attempts = [event.attempt for event in events if isinstance(event, RequestEvent)]
    costs = [(attempt.model_ms / TICK, attempt.steps, attempt.latency_ms / TICK) for attempt in attempts]
    assert costs == [(4, 4, 4)] * 3
    assert (summary["num_cancelled"], summary["show_rate"]) == (3, 0)
    assert (summary["miss_rate"], summary["wasted_share"]) == (1, 1)


def test_a_running_step_delays_the_next_request():
    replay, engine = replay_of("x", "abcdefgh", tokens_per_step=1)
    session = Session(replay, replay.tasks[0], engine)
    case = TestCase("s", "line-end", "x = ", "", "abcdefgh")

    def answer(at_ticks, stale_ticks):
        return session.answer(case, at_ticks * TICK, stale_ticks * TICK)

    stopped = answer(10, 12.5)
    assert (stopped.rejection, stopped.model_ms, stopped.steps) == ("cancelled", 3 * TICK, 3)
    never_begun = answer(12.5, 12.75)
    assert (never_begun.rejection, never_begun.model_ms, never_begun.latency_ms) == ("cancelled", 0, 0.25 * TICK)
    waited = answer(12.75, 100)
    # the model is free at 13, nine steps later the answer is there
    assert waited.ttfue_ms == waited.latency_ms == 9.25 * TICK
    assert waited.model_ms == 9 * TICK


@pytest.mark.parametrize("refused", ["ab", ""])
def test_a_request_that_the_model_cannot_take_has_failed_unless_it_is_the_first_one(refused):
    def fill(prefix, _suffix):
        if prefix == refused:
            raise RequestError("the prompt is too long: shorten it")
        return ""

    if not refused:
        with pytest.raises(RequestError):
            typed("abc", fill)
        return
    events, summary = typed("abc", fill)
    rejections = [event.attempt.rejection for event in events if isinstance(event, RequestEvent)]
    assert rejections == ["empty", "empty", "failed"]
    assert (summary["num"], summary["num_cancelled"], summary["miss_rate"]) == (3, 0, 1.0)


def test_an_item_stays_while_the_keys_match_it():
    # shown at 5, to be accepted at 17; keys at 8 and 16
    fills = {"": "abcdef", "a": "bcdef", "ab": "cdef"}
    events, summary = typed("abcdef\n", lambda prefix, _: fills.get(prefix, ""))
    assert [event.text for event in accepted(events)] == ["cdef"]
    assert (summary["num"], summary["num_displayed"]) == (3, 1)


def test_every_rate_has_its_own_denominator(attempt):
    def request(case, text="", *, model_ms, rejection="empty", is_displayed=True, is_line_finished=False):
        made = attempt((10.0, text), case=case, model_ms=model_ms, rejection=None if text else rejection)
        is_displayed = is_displayed and bool(text)
        return RequestEvent(made, 0.0, is_displayed=is_displayed, is_line_finished=is_line_finished)

    events = [
        *(KeyEvent(key, 0.0) for key in ("a", "b", "\n    ")),
        request("taken", "x", model_ms=8),
        request("seen", "y", model_ms=16, is_line_finished=True),
        request("unseen", "z", model_ms=32, is_displayed=False),
        request("none", model_ms=64, is_line_finished=True),
        request("stopped", model_ms=128, rejection="cancelled", is_line_finished=True),
        AcceptEvent("cdef", AcceptedPart.WHOLE, 1, "taken", 4, 0.0),
        AcceptEvent("gh ij", AcceptedPart.WORDS, 2, "taken", 5, 0.0),
    ]
    summary = summarize_replay(events)
    assert (summary["model_ms"], summary["wasted_ms"], summary["model_ms_per_useful"]) == (248, 240, 248)
    assert summary["wasted_share"] == pytest.approx(240 / 248, abs=1e-4)
    assert (summary["keys_by_hand"], summary["keys_typed"], summary["keys_accepting"]) == (12, 3, 3)
    assert summary["keystrokes_saved"] == pytest.approx(6 / 12, abs=1e-4), "without the presses that accept"
    assert summary["num_accepted"] == {"whole": 1, "line": 0, "words": 1}
    assert (summary["num_displayed"], summary["acceptance_rate"], summary["num_cancelled"]) == (2, 1, 1)
    assert summary["quiet_rate"] == 0.5, "a cancelled request is not quiet"


# the user


def test_a_line_end_with_the_indentation_is_one_key_and_pauses_are_longer_before_lines_and_words():
    typing = TypingModel(in_word_ms=100, word_start_ms=200, line_start_ms=700, spread=0)
    keys = split_keys("ab = c1\r\n\tx.y_z\n\n  é😋")
    assert keys == ("a", "b", " ", "=", " ", "c", "1", "\r\n\t", "x", ".", "y", "_", "z", "\n", "\n  ", "é", "😋")
    times = (700, 100, 100, 100, 100, 200, 100, 100, 700, 100, 200, 100, 100, 100, 700, 700, 100)
    assert typing.delays(keys, 0) == times


@pytest.mark.parametrize(
    ("item", "coming", "text", "part", "presses"),
    [
        pytest.param("x + y", "x + y\n", "x + y", AcceptedPart.WHOLE, 1, id="all of it"),
        pytest.param("x + y\n  z", "x + y\n  w\n", "x + y", AcceptedPart.LINE, 1, id="the first line"),
        pytest.param("x + y", "x - y\n", "x", AcceptedPart.WORDS, 1, id="a word"),
        pytest.param("self.width = 3", "self.width = w\n", "self.width =", AcceptedPart.WORDS, 4, id="words and signs"),
        pytest.param(" = one\n two", " = one_more", None, None, 0, id="half a word after a sign"),
        pytest.param("):", "):\n", "):", AcceptedPart.WHOLE, 1, id="signs that are the whole item"),
        pytest.param("grüße(é)", "grüße(ö)", "grüße(", AcceptedPart.WORDS, 2, id="letters of all alphabets"),
    ],
)
def test_a_user_accepts_the_part_that_is_right(item, coming, text, part, presses):
    assert accept(item, coming) == (None if text is None else AcceptedText(text, part, presses))
