import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dg_lsp.metrics.attempt import Attempt, Shown, is_same
from dg_lsp.metrics.summary import percentile, summarize


def attempt(*shown, want="x", passes=None, latency=100.0, steps=2, tokens=4, model_ms=50.0):
    items = tuple(Shown(*item) for item in shown)
    is_exact = bool(items) and is_same(items[-1].text, want)
    ends = (is_exact, passes, latency, steps, tokens, -0.5, None, 5.0, model_ms)
    return Attempt("s", "block", "diffusion", "diffusion", want, items, *ends)


def test_hand_made_attempts():
    summary = summarize(
        [
            attempt((40.0, "x"), latency=40.0),
            attempt((90.0, "x\ny"), latency=90.0, steps=6),
            attempt((30.0, "y"), (300.0, "x"), latency=300.0),
            attempt((120.0, "y"), latency=120.0, model_ms=250.0),
            attempt(latency=500.0),
        ]
    )
    assert summary.num == 5
    assert summary.exact_match == pytest.approx(2 / 5)
    assert summary.first_line_match == pytest.approx(3 / 5)
    assert summary.pass_at_1 is None
    assert (summary.ttfue_ms.p50, summary.ttfue_ms.p90) == pytest.approx((90.0, 258.0))
    assert summary.useful_by == {50: 0.2, 100: 0.4, 250: 0.4, 500: 0.6, 1000: 0.6}
    assert summary.miss_rate == pytest.approx(2 / 5)
    assert summary.show_rate == pytest.approx(4 / 5)
    assert summary.reversal_rate == pytest.approx(1 / 4)
    assert (summary.latency_ms.p50, summary.latency_ms.p90) == pytest.approx((120.0, 420.0))
    assert summary.steps_mean == pytest.approx(14 / 5)
    assert summary.tokens_per_forward == pytest.approx(20 / 14)
    assert summary.model_ms_per_useful == pytest.approx(450 / 3)


def test_misses_pull_no_percentile_but_every_share():
    hits = [attempt((40.0, "x"))] * 2
    alone, diluted = summarize(hits), summarize([*hits, attempt(), attempt((10.0, "no"))])
    assert diluted.ttfue_ms == alone.ttfue_ms
    assert (alone.miss_rate, diluted.miss_rate) == (0.0, 0.5)
    assert (alone.useful_by[50], diluted.useful_by[50]) == (1.0, 0.5)
    assert diluted.exact_match == 0.5


def test_all_misses():
    summary = summarize([attempt(), attempt((5.0, "no"))])
    assert summary.miss_rate == 1.0
    assert summary.ttfue_ms.p50 is None
    assert summary.model_ms_per_useful is None
    assert set(summary.useful_by.values()) == {0.0}


def test_of_nothing():
    summary = summarize([])
    assert (summary.num, summary.exact_match, summary.latency_ms.p90) == (0, 0.0, None)
    json.dumps(summary.json(), allow_nan=False)


def test_pass_at_1_counts_the_executed():
    summary = summarize([attempt((5.0, "x"), passes=True), attempt((5.0, "y"), passes=True), attempt(passes=False)])
    assert summary.pass_at_1 == pytest.approx(2 / 3)
    assert summary.miss_rate == pytest.approx(1 / 3)
    assert summarize([attempt(passes=False), attempt()]).pass_at_1 == 0.0


items = st.tuples(st.floats(0, 5000), st.sampled_from(["x", "x\ny", "y", "", "\n"]))
attempts = st.lists(st.lists(items, max_size=3).map(lambda shown: attempt(*shown)), max_size=12)


@given(attempts)
@settings(max_examples=50)
def test_useful_by_never_falls_and_never_passes_the_hits(listed):
    summary = summarize(listed, cuts=(1, 10, 100, 1000, 5000))
    curve = list(summary.useful_by.values())
    assert curve == sorted(curve)
    if listed:
        assert curve[-1] == pytest.approx(1 - summary.miss_rate)
    assert all(0 <= share <= 1 for share in (*curve, summary.show_rate, summary.reversal_rate, summary.exact_match))


def test_percentiles_are_interpolated():
    assert percentile([3.0], 0.9) == 3.0
    assert percentile([1.0, 2.0], 0.5) == 1.5
    assert math.isclose(percentile(list(range(11)), 0.9), 9)
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


def test_json_has_the_documented_keys():
    tree = summarize([attempt((5.0, "x"))]).json()
    assert tree["ttfue_ms"] == {"p50": 5.0, "p90": 5.0}
    assert tree["useful_by"] == {"50": 1.0, "100": 1.0, "250": 1.0, "500": 1.0, "1000": 1.0}
    assert json.loads(json.dumps(tree)) == tree
