import dataclasses
import json

import pytest

from dg_lsp.bench.replay.account import Account
from dg_lsp.bench.replay.asking import RecordedAsker
from dg_lsp.bench.replay.events import Asked, Typed
from dg_lsp.bench.replay.passage import Passage
from dg_lsp.bench.replay.run import Buffer, Replay
from dg_lsp.bench.replay.table import account_rows, account_table, setting_lines
from dg_lsp.metrics.attempt import Attempt


def of_two_files(desk, limit=None):
    passages = [
        Passage("a.py", "python", "", "total = first\ntotal = second\n", ""),
        Passage("b.py", "python", "x = 1\n", "y = 2\n", ""),
        Passage("b.py", "python", "x = 1\ny = 2\n", "z = 3\n", ""),
    ]
    return Replay(passages, desk.typist, desk.editor(), seed=4, limit=limit)


def fill(prefix, _suffix):
    return "= second" if prefix.endswith("total ") else ""


def attempts(events):
    return [event.attempt for event in events if isinstance(event, Asked)]


def typed(events):
    return [event for event in events if isinstance(event, Typed)]


def paths(events):
    return [attempt.site.split(":")[0] for attempt in attempts(events)]


def test_passages_are_typed_one_after_the_other(desk):
    asker, _ = desk.asker(fill)
    replay = of_two_files(desk)
    events = list(replay.run(asker))
    assert replay.num_keys == Account.of(events).keys_by_hand == 41
    assert paths(events) == sorted(paths(events))
    starts = [event.at_ms for event in typed(events)]
    # the virtual clock starts again with each passage
    assert starts.count(starts[0]) == 3


def test_a_limit_counts_for_each_file(desk):
    asker, denoiser = desk.asker(fill)
    events = list(of_two_files(desk, limit=3).run(asker))
    assert paths(events) == ["a.py"] * 3 + ["b.py"] * 3
    assert denoiser.num_steps == 6


@pytest.mark.parametrize("num_kept", [0, 1, 9, 17, 100])
def test_a_run_that_goes_on_ends_as_one_that_was_never_interrupted(desk, num_kept):
    replay = dataclasses.replace(of_two_files(desk), typist=dataclasses.replace(desk.typist, spread=0.8))
    first, _ = desk.asker(fill, tokens_per_step=2)
    whole = list(replay.run(first))
    assert 0 < Account.of(whole).num_cancelled < len(attempts(whole))
    kept = [Attempt.parse(json.loads(json.dumps(attempt.json()))) for attempt in attempts(whole)[:num_kept]]
    second, denoiser = desk.asker(fill, tokens_per_step=2)
    again = list(replay.run(RecordedAsker(kept, second)))
    assert Account.of(again).json() == Account.of(whole).json()
    assert [event.at_ms for event in typed(again)] == [event.at_ms for event in typed(whole)]
    assert denoiser.num_steps == sum(attempt.steps for attempt in attempts(whole)[num_kept:])


def test_every_number_has_a_row(desk):
    asker, _ = desk.asker(fill)
    account = Account.of(of_two_files(desk).run(asker))
    rows = dict(account_rows(account))
    assert rows["keystrokes saved"] == f"{account.keystrokes_saved:.1%} of 41"
    assert {line.count("|") for line in account_table(account)} == {3}
    assert len(list(account_table(account))) == len(rows) + 2


def test_an_account_of_nothing_has_the_same_rows(desk):
    nothing = dict(account_rows(Account.of([])))
    assert nothing["TTFUE of hits, ms"] == "p50 none, p90 none"
    assert nothing["model ms per useful edit"] == "none"


@pytest.mark.parametrize("buffer", Buffer)
def test_what_was_assumed_is_said(desk, buffer):
    text = "\n".join(setting_lines(of_two_files(desk), buffer))
    assert "seed 4" in text
    assert "125 ms in a word" in text
    assert "asks 62 ms after a key" in text
    assert "what comes before" in text if buffer is Buffer.ONWARDS else "the rest of the file stands around" in text
