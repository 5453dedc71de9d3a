import re

import pytest

from dg_lsp.bench.charts import calibration, latency_histogram, step_histogram, useful_by
from dg_lsp.bench.metrics import CalibrationBin


def numbers_of(chart, group):
    return [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in chart.table.groups[group]]


def numbers(chart):
    return numbers_of(chart, "")


def heights(drawing, variable):
    """Vertical positions of the line with this colour."""
    paths = [one for one in re.findall(r"<path [^>]*>", drawing) if f'stroke="var(--{variable})"' in one]
    return {float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", max(paths, key=len))}


def test_useful_by_counts_misses():
    chart = useful_by({"few": [60.0, 100.0, 400.0], "none": [], "new": []}, {"few": 4, "none": 10, "new": 0}, "none")
    rows = numbers(chart)
    assert rows[0] == ["few", "0.0 %", "50.0 %", "50.0 %", "75.0 %", "75.0 %", "75.0 %"]
    assert rows[1][1:] == rows[2][1:] == ["0.0 %"] * 6
    assert len(heights(chart.drawing, "series0")) == 4  # it rises three times
    assert 'aria-label="Useful by: Share of all requests' in chart.drawing


def test_calibration_rises_with_the_share_of_right_fills():
    bins = [CalibrationBin(least, 10, least + 0.1, right, 1.0, right, 1.0) for least, right in ((0.0, 0.2), (0.5, 0.6))]
    chart = calibration({"auto": bins})
    assert numbers_of(chart, "auto") == [
        ["0", "10", "10.0 %", "20.0 %", "100.0 %", "20.0 %", "100.0 %"],
        ["0.5", "10", "60.0 %", "60.0 %", "100.0 %", "60.0 %", "100.0 %"],
    ]
    curve = re.search(r'<path d="M [\d.]+ ([\d.]+) +L [\d.]+ ([\d.]+) +"[^>]*var\(--series0\)', chart.drawing)
    assert float(curve[1]) > float(curve[2]), "a larger share is higher up"


def test_colours_depend_on_the_theme_and_there_are_no_styles():
    drawing = useful_by({"a": [5.0], "base": [7.0]}, {"a": 1, "base": 1}, "base").drawing
    assert 'stroke="var(--series0)"' in drawing and 'stroke="var(--base)"' in drawing
    assert "style" not in drawing
    assert not re.search(r'"#[0-9a-f]{6}"', drawing.replace("#000000", ""))


def test_histograms_show_median_and_tail():
    chart = step_histogram({"a": [1, 1, 1, 2], "b": [1, 1], "c": []})
    assert [row[:4] for row in numbers(chart)] == [["a", "1", "1", "1"], ["b", "1", "1", "1"], ["c", *"–––"]]
    for text in ("a: median 1, p90 1.7", "b: median 1, p90 1", "c: no requests"):
        assert text in chart.drawing
    chart = latency_histogram({"a": [30.0, 80.0, 700.0]})
    assert [cell for cell in numbers(chart)[0] if cell == "80 ms"]
    assert ">100<" in chart.drawing


@pytest.mark.parametrize("values", [{"a": [0.0]}, {"a": [5.0, 5.0]}, {"a": [], "b": []}, {"a": [4] * 300 + [900]}])
def test_unusual_values_are_drawn(values):
    for chart in (step_histogram(values), latency_histogram(values)):
        assert "nan" not in chart.drawing
