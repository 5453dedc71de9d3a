import pytest

from dg_benchmarks.comparison import BASELINE, compare_tables, compare_with_baseline
from dg_lsp.bench.metrics import ALL, Attempt
from dg_lsp.bench.runner import Run, RunHeader

NUM_CASES = 6


def attempt(number, contender, text, ms):
    return Attempt(
        case=f"s{number}",
        kind="block" if number % 2 else "line-end",
        contender=contender,
        decoder="diffusion",
        reference="want",
        language="python",
        task="line-end",
        text=text,
        latency_ms=ms,
        model_ms=ms / 2,
    )


def pairs(ours, theirs):
    """Attempts of `fast` and of the baseline; each side gives text and milliseconds of case i."""
    sides = {"fast": ours, BASELINE: theirs}
    return [attempt(i, name, *answer(i)) for i in range(NUM_CASES) for name, answer in sides.items()]


def test_ratios_above_one_mean_that_a_contender_is_faster():
    listed = pairs(lambda i: ("want", 10.0 + i), lambda i: ("want", 30.0 + 3 * i))
    whole, *kinds = compare_with_baseline(listed)
    assert (whole.contender, whole.kind, whole.num) == ("fast", ALL, 6)
    assert [(row.kind, row.num) for row in kinds] == [("block", 3), ("line-end", 3)]
    exact = whole.intervals["exact_match_difference"]
    assert (exact.value, exact.low, exact.high) == (0, 0, 0)
    for name, interval in whole.intervals.items():
        if name != "exact_match_difference":
            assert (interval.value, interval.low, interval.high) == pytest.approx((3, 3, 3)), name


def test_ttfue_is_compared_over_own_hits_and_over_common_hits():
    # we have something on all cases, including the slow ones; the baseline on the fast ones only
    listed = pairs(lambda i: ("want", 10.0 if i < 3 else 100.0), lambda i: ("want" if i < 3 else "", 20.0))
    whole, *_ = compare_with_baseline(listed)
    own = whole.intervals["ttfue_times_faster"]
    assert own.value == pytest.approx(20 / 55)
    assert own.low <= own.value <= own.high, "resamples without hits are left out"
    assert whole.intervals["ttfue_times_faster_where_both_useful"].value == pytest.approx(2)
    assert whole.intervals["exact_match_difference"].value == pytest.approx(0.5)


def test_a_contender_without_hits_has_no_ttfue_ratio():
    whole, *_ = compare_with_baseline(pairs(lambda _: ("", 10.0), lambda _: ("want", 20.0)))
    assert whole.intervals["ttfue_times_faster"] is whole.intervals["ttfue_times_faster_where_both_useful"] is None
    assert (whole.intervals["latency_times_faster"].value, whole.intervals["exact_match_difference"].value) == (2, -1)
    assert whole.json()["ttfue_times_faster"] is None
    assert whole.cells()[3:5] == ("-", "-")


def test_tables_hold_everything():
    header = RunHeader("compare", {"cpu": "c"}, "m", "00", options={"length": "none"})
    run = Run(header, tuple(pairs(lambda i: ("want", 10.0 + i), lambda _: ("", 30.0))))
    tables = compare_tables(run, 0)
    captions = [table.caption.split(" (")[0] for table in tables]
    assert captions == ["All cases", f"Times faster than {BASELINE}", "Kind line-end", "Kind block"]
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert all(compare_tables(Run(header, ()), 0))
