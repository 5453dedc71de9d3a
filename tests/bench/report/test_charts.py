import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.bench.report.axis import Axis, bin_width, log_ticks, share_ticks
from dg_lsp.bench.report.chart import look
from dg_lsp.bench.report.curves import Curve, spread, useful_by
from dg_lsp.bench.report.histograms import Row, latencies, steps
from dg_lsp.bench.report.wording import count, interval, milliseconds, percent, wilson

times = st.floats(0.5, 100_000)


def test_an_axis_is_linear_or_logarithmic_and_ends_where_it_ends():
    assert Axis(0, 10, 100, 0).at(2.5) == 75
    assert Axis(1, 100, 0, 200, is_log=True).at(10) == pytest.approx(100)
    assert Axis(1, 100, 0, 200, is_log=True).at(0) == 0
    assert Axis(1, 100, 0, 200).at(1000) == 200


def test_ticks_are_where_the_numbers_of_the_design_are():
    assert log_ticks(50, 1000) == [50, 100, 250, 500, 1000]
    assert log_ticks(30, 700) == [25, 50, 100, 250, 500, 1000]


@given(times, times)
def test_ticks_hold_all_values(one, other):
    ticks = log_ticks(min(one, other), max(one, other))
    assert len(ticks) >= 2
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= max(min(one, other), 1.0) * 1.001
    assert ticks[-1] >= max(one, other) * 0.999


@pytest.mark.parametrize(("highest", "last"), [(0, 0.01), (0.04, 0.04), (0.37, 0.4), (0.62, 0.8), (0.98, 1), (1, 1)])
def test_shares_begin_at_nothing_and_end_above_the_highest(highest, last):
    ticks = share_ticks(highest)
    assert ticks[0] == 0
    assert ticks[-1] == pytest.approx(last)


@pytest.mark.parametrize(("span", "most", "width"), [(10, 64, 1), (65, 64, 2), (129, 64, 5), (1000, 64, 20), (3, 1, 5)])
def test_bins_are_of_a_round_width(span, most, width):
    assert bin_width(span, most) == width


@given(st.lists(st.floats(0, 300), min_size=1, max_size=8))
def test_labels_do_not_touch_and_keep_their_order(wanted):
    places = spread(wanted, 18, 300)
    ordered = [places[i] for i in sorted(range(len(wanted)), key=lambda i: wanted[i])]
    assert all(after - before >= 18 - 1e-9 for before, after in pairwise(ordered))
    assert max(places) <= 300


def test_where_nothing_is_useful_the_axis_has_room():
    assert ">10 %<" in useful_by([Curve("none", "way0", [], 10)])


def path_of(svg):
    """Corners of the first drawing's line."""
    [d] = re.findall(r'<path d="(M[^"]*)" class="line way0"', svg.split("</svg>")[0])
    return d


def test_a_curve_goes_up_once_per_hit_and_ends_at_the_share_of_hits():
    svg = useful_by([Curve("one", "way0", [60.0, 100.0, 400.0], 4)])
    ups = [float(y) for y in re.findall(r"V([\d.]+)", path_of(svg))]
    assert ups == sorted(ups, reverse=True)
    assert len(ups) == 3
    assert "75 %" in svg.replace("\N{NO-BREAK SPACE}", " ")


def test_a_curve_of_many_hits_has_no_more_corners_than_pixels():
    hits = [50 + i / 100 for i in range(100_000)]
    assert path_of(useful_by([Curve("one", "way0", hits, 100_000)])).count("V") < 800


def test_misses_lower_a_curve():
    few, many = Curve("a", "way0", [100.0] * 5, 10), Curve("b", "way1", [100.0] * 5, 50)
    assert (few.share(99), few.share(100), few.end) == (0, 0.5, 0.5)
    assert many.end == 0.1


def test_a_way_without_hits_or_requests_is_drawn():
    svg = useful_by([Curve("none", "way0", [], 10), Curve("never asked", "way1", [], 0)])
    assert "never asked" in svg
    assert "nan" not in svg


def bars(svg):
    """Heights of the bars of the first drawing."""
    return [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', svg.split("</svg>")[0])]


def test_bars_are_shares_of_their_own_way():
    svg = steps([Row("a", "way0", [1, 1, 1, 2]), Row("b", "way1", [1, 1])])
    assert bars(svg) == [pytest.approx(58 * share, abs=0.01) for share in (0.75, 0.25, 1.0)]


def test_what_is_beyond_the_axis_is_in_the_last_bar():
    svg = steps([Row("a", "way0", [*[4] * 300, 900])])
    assert "The last bar holds all that is longer." in svg
    assert len(bars(svg)) == 2
    assert "The last bar" not in steps([Row("a", "way0", [4] * 300)])


def test_latencies_are_drawn_between_round_ends():
    svg = latencies([Row("a", "way0", [30.0, 80.0, 700.0])])
    assert ">25<" in svg
    assert ">1,000<" in svg
    assert len(bars(svg)) == 3


def test_rows_without_requests_say_so():
    assert "no requests" in steps([Row("a", "way0", [])])
    assert "nan" not in latencies([Row("a", "way0", []), Row("b", "way1", [0.0])])


def test_the_baseline_looks_like_no_other_way():
    looks = [look(i, is_baseline=i == 2) for i in range(6)]
    assert looks[2] == "base"
    assert len(set(looks)) == 6


def test_numbers_as_a_person_reads_them():
    texts = [percent(0.617), percent(None), percent(1, 0), milliseconds(8.41), milliseconds(84.4), milliseconds(1240)]
    shown = [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts]
    assert shown == ["61.7 %", "–", "100 %", "8.4 ms", "84 ms", "1,240 ms"]
    assert milliseconds(None) == "–"
    assert (count(1, "step"), count(1200, "step")) == ("1 step", "1,200 steps")


def test_intervals_are_wilsons():
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    for hits, num, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson(hits / num, num) == pytest.approx((low, high), abs=1e-4)
    assert wilson(0, 0) == (0, 1)
    assert interval(0.5, 100) == "40–60"
