"""Sessions done by hand: a key each 8 ticks, a request 4 ticks after it, a step 1 tick, an item taken after 12."""

import pytest

from dg_lsp.bench.replay.accept import Level
from dg_lsp.bench.replay.asking import Question
from dg_lsp.bench.replay.editor import TypeThrough
from dg_lsp.bench.replay.events import Accepted, Asked, Typed
from dg_lsp.bench.replay.session import Session
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest

TICK = 1000 / 64


def at(**fills):
    """`at(a="b")` fills `b` on a line that holds just `a`, and nothing elsewhere; spaces are written `_`."""
    told = {before.replace("_", " "): fill for before, fill in fills.items()}
    return lambda prefix, _suffix: told.get(prefix.split("\n")[-1], "")


def asked(events):
    return [event for event in events if isinstance(event, Asked)]


def accepted(events):
    return [event for event in events if isinstance(event, Accepted)]


def hand(events):
    return "".join(event.key for event in events if isinstance(event, Typed))


def ticks(events):
    return [event.at_ms / TICK for event in events if isinstance(event, Typed)]


def test_without_a_model_worth_showing_everything_is_typed(desk):
    events, account = desk.typed("abc", "")
    assert hand(events) == "abc"
    assert ticks(events) == [8, 16, 24]
    # a request before the first key and after all but the last
    assert [event.attempt.site for event in asked(events)] == ["a.py:1:1", "a.py:1:2", "a.py:1:3"]
    assert account.summary.miss_rate == 1.0
    assert account.keystrokes_saved == 0


def test_an_item_is_accepted_after_the_reaction_time_and_what_was_typed_meanwhile_stays(desk):
    events, account = desk.typed("total = first", at(total_="= first"))
    # asked 4 ticks after key 6, there after one step: 53; taken 12 ticks later, with the keys of 56 and 64 between
    assert accepted(events) == [Accepted("a.py:1:7", "first", Level.WHOLE, 1, 5, 65 * TICK)]
    assert hand(events) == "total = "
    assert ticks(events)[-1] == 64
    assert account.keystrokes_saved == pytest.approx((13 - 8 - 1) / 13)
    assert account.chars_accepted_share == pytest.approx(5 / 13)


def test_the_request_after_an_acceptance_goes_out_at_once(desk):
    events, _ = desk.typed("a = one + two", at(a_="= one"))
    (took,) = accepted(events)
    after = events[events.index(took) + 1]
    assert isinstance(after, Asked)
    assert after.attempt.site == "a.py:1:8"
    # the answer comes after one step and no debounce, and the next key a key's time after the acceptance
    assert events[events.index(took) + 2] == Typed(" ", took.at_ms + 8 * TICK)


def test_an_item_goes_at_the_first_other_key(desk):
    events, account = desk.typed("abcdef", at(a="bxyz"))
    assert accepted(events) == []
    assert account.num_displayed == 1
    assert account.num_typed_through == 0
    assert hand(events) == "abcdef"


def test_an_item_typed_to_its_end_is_typed_through(desk):
    events, account = desk.typed("ab\ncd", at(a="b"))
    # one character is not worth a key press
    assert account.num_typed_through == 1
    assert [event.key for event in events if isinstance(event, Typed) and event.finishes == "a.py:1:2"] == ["b"]
    assert account.num_displayed == 1
    assert account.acceptance_rate == 0


def test_words_are_taken_when_the_rest_is_wrong(desk):
    events, account = desk.typed("x = alpha.beta()\n", at(x_="= alpha.gamma"))
    assert accepted(events) == [Accepted("a.py:1:3", "alpha.", Level.WORDS, 2, 6, 34 * TICK)]
    assert account.keys_accepting == 2
    assert account.keystrokes_saved == pytest.approx((17 - 11 - 2) / 17)


def test_the_first_line_is_taken_when_the_second_is_wrong(desk):
    events, _ = desk.typed(
        "first = 1\n    other = 2",
        lambda prefix, _: "" if prefix[-1:] != " " else "first = 1\n    wrong",
        head="def f():\n    ",
        tail="\n",
    )
    assert accepted(events)[0].level is Level.LINE
    assert accepted(events)[0].text == "rst = 1"  # two keys were faster than the reader


def test_a_key_cancels_and_the_steps_that_ran_are_spent(desk):
    # nine steps would be needed; the key comes four ticks after the request
    events, account = desk.typed("abc", "abcdefgh", tokens_per_step=1)
    assert account.num_cancelled == 3
    assert [event.attempt.model_ms / TICK for event in asked(events)] == [4, 4, 4]
    assert [event.attempt.steps for event in asked(events)] == [4, 4, 4]
    assert [event.attempt.latency_ms / TICK for event in asked(events)] == [4, 4, 4]
    assert account.summary.show_rate == 0
    assert account.summary.miss_rate == 1
    assert account.wasted_share == 1


def test_a_step_that_runs_on_delays_the_next_request(desk):
    asker, denoiser = desk.asker("abcdefgh", tokens_per_step=1)
    request = FillRequest(Snapshot("a.py", 0, "x = "), 4)

    def ask(at_ticks, stale_ticks):
        return asker.ask(Question("s", "line-end", request, "abcdefgh", at_ticks * TICK, stale_ticks * TICK))

    stopped = ask(10, 12.5)
    assert (stopped.rejection, stopped.model_ms, stopped.steps) == ("cancelled", 3 * TICK, 3)
    never_begun = ask(12.5, 12.75)
    assert (never_begun.rejection, never_begun.model_ms, never_begun.latency_ms) == ("cancelled", 0, 0.25 * TICK)
    assert denoiser.num_steps == 3
    waited = ask(12.75, 100)
    # the model is free at 13, nine steps later the answer is there
    assert waited.shown[0].ms == waited.latency_ms == 9.25 * TICK
    assert waited.model_ms == 9 * TICK
    asker.begin()
    assert ask(0, 100).latency_ms == 9 * TICK


def test_an_answer_that_comes_with_the_key_comes_too_late(desk):
    events, account = desk.typed("ab", "abc", tokens_per_step=1)
    assert denoising_steps(events) == [4, 4]
    assert account.num_cancelled == 2


def denoising_steps(events):
    return [event.attempt.model_ms / TICK for event in asked(events)]


SHORTER = {"": "abcdef", "a": "bcdef", "ab": "cdef", "abc": "def"}


@pytest.mark.parametrize(
    ("type_through", "num_asked", "num_displayed", "took"),
    [
        (TypeThrough.ASK, 3, 1, "cdef"),
        (TypeThrough.KEEP, 2, 1, "cdef"),
        (TypeThrough.DISMISS, 7, 6, None),
    ],
)
def test_what_a_matching_key_does_is_the_editors_choice(desk, type_through, num_asked, num_displayed, took):
    # shown at 5, to be taken at 17; keys at 8 and 16
    told = {**SHORTER, "abcd": "ef", "abcde": "f"}
    events, account = desk.typed("abcdef\n", lambda prefix, _: told.get(prefix, ""), type_through=type_through)
    assert [event.text for event in accepted(events)] == ([took] if took else [])
    assert account.summary.num == num_asked
    assert account.num_displayed == num_displayed


def test_a_later_answer_that_begins_otherwise_is_a_reversal(desk):
    events, account = desk.typed("abcdef", lambda prefix, _: {"": "abxx", "a": "cd"}.get(prefix, "bx"))
    first, second, third, *_ = asked(events)
    assert first.takes_back is None  # nothing was there before
    assert second.takes_back is True  # "bxx" was left, "cd" came
    assert third.attempt.site == "a.py:1:3"
    assert third.takes_back is True
    assert account.num_confirmable == 2
    assert account.reversal_rate == 1


def test_an_answer_that_says_the_same_again_is_none(desk):
    _, account = desk.typed("abcxyz", lambda prefix, _: {"": "abcd", "a": "bcd", "ab": "c_other"}.get(prefix, ""))
    assert (account.num_reversed, account.num_confirmable) == (1, 2)
    assert account.reversal_rate == 0.5


def test_the_buffer_around_the_cursor_is_seen(desk):
    seen = []

    def look(prefix, suffix):
        seen.append((prefix, suffix))
        return ""

    desk.typed("ab", look, head="x = ", tail="\ny\n")
    assert seen[0] == ("x = ", "\ny\n")
    assert seen[1] == ("x = a", "\ny\n")


def test_a_finished_line_wants_quiet(desk):
    events, account = desk.typed("ab\ncd", at(a="", ab="more"))
    finished = [event for event in asked(events) if event.is_line_finished]
    assert [event.attempt.site for event in finished] == ["a.py:1:3"]
    assert (account.num_finished_lines, account.num_quiet, account.quiet_rate) == (1, 0, 0)
    _, account = desk.typed("ab\ncd", "")
    assert account.quiet_rate == 1


def test_sites_and_kinds_are_those_of_the_file(desk):
    events, _ = desk.typed("ab", "", head="def f():\n    ", tail="\n")
    assert [(event.attempt.site, event.attempt.kind) for event in asked(events)] == [
        ("a.py:2:5", "whole-line"),
        ("a.py:2:6", "line-end"),
    ]


def test_whoever_stops_asking_has_stopped_the_typist(desk):
    asker, denoiser = desk.asker("")
    run = Session(desk.passage("abcdef"), desk.typist, desk.editor(), asker).run()
    next(run)
    run.close()
    assert denoiser.num_steps == 1
