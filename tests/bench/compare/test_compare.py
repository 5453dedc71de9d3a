import dataclasses
import math

import pytest

from dg_lsp.bench.compare import ALL, BASELINE, WARM_UP, by_ways, compare, contrasts, in_turn
from dg_lsp.bench.compare_table import CONTRAST_COLUMNS, contrast_cells, contrast_tables, way_tables
from dg_lsp.bench.machine import Machine
from dg_lsp.bench.runs import Header, Run, RunFile
from dg_lsp.bench.sandbox.sandbox import Ending, Outcome
from dg_lsp.bench.sites import Site
from dg_lsp.metrics.attempt import Attempt, Shown, is_same

SITES = tuple(Site(f"s{i}", "block" if i % 2 else "line-end", "a = ", "\n", f"want {i}") for i in range(6))
MACHINE = Machine("a cpu", 2, "an os", "3.11", "0.1", "0.3", None, 2)
HEADER = Header("compare", MACHINE, "m", "00")


def attempt(site, way, text, ms, model_ms=None):
    return Attempt(
        site=site.id,
        kind=site.kind,
        way=way,
        decoder="diffusion",
        want=site.want,
        shown=(Shown(ms, text),) if text else (),
        is_exact=is_same(text, site.want),
        passes=None,
        latency_ms=ms,
        steps=2,
        tokens=4,
        confidence=math.nan,
        rejection=None if text else "empty",
        prefill_ms=1.0,
        model_ms=ms / 2 if model_ms is None else model_ms,
    )


class Told:
    """A way that answers what it is told, and notes when it was asked."""

    def __init__(self, name, answers, asked, ms=10.0):
        self.name, self._answers, self._asked, self._ms = name, answers, asked, ms

    def answer(self, site):
        self._asked.append((self.name, site.id))
        answer = self._answers(site)
        if isinstance(answer, BaseException):
            raise answer
        return attempt(site, self.name, answer, self._ms)

    def notes(self):
        return ()

    def close(self):
        pass


@pytest.fixture
def asked():
    return []


@pytest.fixture
def ways(asked):
    return [Told(name, lambda site: site.want, asked) for name in ("a", "b", "c")]


def test_every_way_answers_every_site_after_a_warm_up(ways, asked):
    with RunFile(None, HEADER) as run:
        compare(SITES, ways, run)
    assert {(one.way, one.site) for one in run.attempts} == {(way.name, site.id) for way in ways for site in SITES}
    assert [name for name, site in asked if site == WARM_UP.id] == ["a", "b", "c"]
    assert [site for _, site in asked][:3] == [WARM_UP.id] * 3
    # site by site, not way by way
    assert [site for _, site in asked][3:] == [site.id for site in SITES for _ in ways]


def test_turns_differ_between_sites_and_seeds_and_not_between_runs(ways):
    sites = [dataclasses.replace(SITES[0], id=f"x{i}") for i in range(60)]
    orders = [tuple(way.name for way in in_turn(ways, site, 0)) for site in sites]
    assert orders == [tuple(way.name for way in in_turn(ways, site, 0)) for site in sites]
    assert orders != [tuple(way.name for way in in_turn(ways, site, 1)) for site in sites]
    assert len(set(orders)) == 6
    assert all(10 <= sum(order[0] == name for order in orders) <= 30 for name in "abc")


def test_what_is_done_is_not_asked_again(ways, asked, tmp_path):
    path = tmp_path / "run.jsonl"
    with RunFile(path, HEADER) as run:
        compare(SITES[:2], ways, run)
    asked.clear()
    with RunFile(path, HEADER) as run:
        compare(SITES[:3], ways, run)
    assert sorted(one for one in asked if one[1] != WARM_UP.id) == [(name, "s2") for name in "abc"]
    assert len(Run.read(path).attempts) == 9


def test_nothing_left_to_do_asks_nobody(ways, asked):
    with RunFile(None, HEADER) as run:
        compare((), ways, run)
    assert asked == []


def test_an_interruption_keeps_what_is_done(asked, tmp_path):
    def answer(site):
        return KeyboardInterrupt() if site.id == "s2" else site.want

    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt), RunFile(path, HEADER) as run:
        compare(SITES, [Told("a", answer, asked), Told("b", lambda _: "", asked)], run)
    assert {one.site for one in Run.read(path).attempts} == {"s0", "s1"}


def test_tests_are_run_after_all_ways_have_answered(asked):
    is_tested = dataclasses.replace(SITES[0], test="def check(f): pass", entry_point="f")
    ways = [
        Told("right", lambda site: site.want, asked),
        Told("wrong", lambda _: "other", asked),
        Told("nothing", lambda _: "", asked),
    ]

    class Judge:
        def run(self, program):
            asked.append(("judge", is_tested.id))
            passes = is_tested.want in program
            return Outcome(Ending.PASSED if passes else Ending.FAILED, "", (), 0.0)

    with RunFile(None, HEADER) as run:
        compare([is_tested, SITES[1]], ways, run, sandbox=Judge())
    passes = {(one.way, one.site): one.passes for one in run.attempts}
    assert [passes[way.name, "s0"] for way in ways] == [True, False, False]
    assert [passes[way.name, "s1"] for way in ways] == [None] * 3
    assert [name for name, site in asked if site == "s0"][3:] == ["judge", "judge"]


def pairs(ours, theirs, sites=SITES):
    """Attempts of `fast` and of the baseline; each side gives text and milliseconds."""
    return [
        attempt(site, way, *values(site, i))
        for i, site in enumerate(sites)
        for way, values in (("fast", ours), (BASELINE, theirs))
    ]


def test_a_contrast_says_how_many_times_faster():
    listed = pairs(lambda site, i: (site.want, 10.0 + i), lambda site, i: (site.want, 30.0 + 3 * i))
    whole, *kinds = contrasts(listed, BASELINE)
    assert (whole.way, whole.kind, whole.num) == ("fast", ALL, 6)
    assert [(one.kind, one.num) for one in kinds] == [("block", 3), ("line-end", 3)]
    for interval in (whole.latency, whole.ttfue, whole.ttfue_both, whole.model):
        assert (interval.value, interval.low, interval.high) == pytest.approx((3, 3, 3))
    assert (whole.exact.value, whole.exact.low, whole.exact.high) == (0, 0, 0)


def test_hits_are_each_ways_own_or_those_of_both():
    # we have something on all sites, the slow ones included; the baseline on the fast ones only
    listed = pairs(
        lambda site, i: (site.want, 10.0 if i < 3 else 100.0),
        lambda site, i: (site.want if i < 3 else "", 20.0),
    )
    whole, *_ = contrasts(listed, BASELINE)
    assert whole.ttfue.value == pytest.approx(20 / 55)
    assert whole.ttfue_both.value == pytest.approx(2)
    assert whole.exact.value == pytest.approx(0.5)


def test_a_way_that_never_hit_has_no_time_to_compare():
    listed = pairs(lambda *_: ("", 10.0), lambda site, _: (site.want, 20.0))
    whole, *_ = contrasts(listed, BASELINE)
    assert whole.ttfue is whole.ttfue_both is None
    assert whole.latency.value == 2
    assert whole.exact.value == -1
    assert whole.json()["ttfue_times_faster"] is None
    assert contrast_cells(whole)[2:4] == ("-", "-")


def test_only_sites_that_both_answered_are_compared():
    listed = pairs(lambda site, _: (site.want, 10.0), lambda site, _: (site.want, 20.0))
    whole, *_ = contrasts([one for one in listed if (one.way, one.site) != (BASELINE, "s0")], BASELINE)
    assert whole.num == 5


def test_without_the_baseline_there_is_nothing_to_hold_against():
    assert contrasts([attempt(SITES[0], "fast", "x", 1.0)], BASELINE) == ()


def test_ways_keep_the_order_in_which_they_came():
    listed = [attempt(SITES[0], way, "x", 1.0) for way in ("c", "a", "c", "b")]
    assert list(by_ways(listed)) == ["c", "a", "b"]
    assert [len(group) for group in by_ways(listed).values()] == [2, 1, 1]


def test_tables_have_a_cell_for_everything():
    listed = pairs(lambda site, i: (site.want, 10.0 + i), lambda *_: ("", 30.0))
    rows = [line for line in way_tables(listed) if line]
    assert [row.split()[1] for row in rows if "pass@1" in row] == ["block", "line-end", "all"]
    assert len({row.count("|") for row in rows}) == 1
    assert len(rows) == 3 * 4
    assert rows[-2].startswith("| fast | 6 | 100.0 | 100.0 |")
    assert rows[-1].startswith(f"| {BASELINE} | 6 | 0.0 | 0.0 |")
    found = contrasts(listed, BASELINE)
    shown = list(contrast_tables(found))
    assert shown[0] == f"all, 6 sites, times faster than {BASELINE} (95 % interval):"
    assert {row.count("|") for row in shown if row.startswith("|")} == {len(CONTRAST_COLUMNS) + 1}
    assert "+100.0 (+100.0 to +100.0)" in "".join(shown)
