"""Distributions, one row of bars per way over one axis: latencies and steps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dg_lsp.bench.report.axis import Axis, bin_width, log_ticks
from dg_lsp.bench.report.chart import Size, drawn, figure, table
from dg_lsp.bench.report.markup import Html, element
from dg_lsp.bench.report.wording import milliseconds, shortened
from dg_lsp.metrics.summary import percentile

_ROW, _LABEL, _BOTTOM, _LEFT = 66.0, 22.0, 44.0, 18.0
_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_BINS_PER_DECADE = 12
_MOST_BINS = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One way's values."""

    way: str
    look: str
    values: Sequence[float]
    """Ascending."""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where bins begin and end, and what is written under them."""

    edges: Sequence[float]
    ticks: Sequence[tuple[float, str]]
    """Where on the axis, and its text."""
    unit: str
    is_log: bool


def latencies(rows: Sequence[Row]) -> Html:
    """The figure of milliseconds until the final answer."""
    values = [value for row in rows for value in row.values]
    ticks = log_ticks(max(1.0, min(values, default=10.0)), max(values, default=1000.0))
    num = max(1, round(math.log10(ticks[-1] / ticks[0]) * _BINS_PER_DECADE))
    edges = [ticks[0] * (ticks[-1] / ticks[0]) ** (i / num) for i in range(num + 1)]
    scale = _Scale(
        edges, [(tick, f"{tick:,.0f}") for tick in ticks], "milliseconds until the final answer", is_log=True
    )
    return _figure(
        "latency",
        "Latency",
        "Time until the final answer of every request, shown or not; bars are shares of a way's requests. The solid"
        " mark is the median, the dashed one the 90th percentile. The time axis is logarithmic.",
        rows,
        scale,
    )


def steps(rows: Sequence[Row]) -> Html:
    """The figure of forward passes."""
    most = math.ceil(max((percentile(row.values, 0.99) for row in rows if row.values), default=1))
    width = bin_width(most + 1, _MOST_BINS)
    is_longer = any(row.values[-1] > most for row in rows if row.values)
    edges = [edge - 0.5 for edge in range(0, most + width + 1 + is_longer * width, width)]
    gap = bin_width(most + 1, 12)
    ticks = [(float(tick), f"{tick:,}") for tick in range(0, most + 1, gap)]
    wide = f" A bar holds {width} values." if width > 1 else ""
    more = " The last bar holds all that is longer." if is_longer else ""
    return _figure(
        "steps",
        "Steps",
        "Forward passes of the model per request, after the prompt; bars are shares of a way's requests. One pass over"
        f" a canvas costs more than one over a single token: compare shapes here, and times above.{wide}{more}",
        rows,
        _Scale(edges, ticks, "forward passes", is_log=False),
    )


def _figure(name: str, title: str, caption: str, rows: Sequence[Row], scale: _Scale) -> Html:
    said = "; ".join(f"{row.way} median {_text(row, 0.5, scale)}" for row in rows if row.values)
    columns = ("way", *(f"{100 * share:.0f} %" for share in _SHARES), "all")
    cells = [(row.way, *(_text(row, share, scale) for share in (*_SHARES, 1.0))) for row in rows]
    drawing = drawn(lambda size: _draw(rows, scale, size), f"{title}: {said}. The table below has more.")
    return figure(
        name, title, caption, drawing, table(f"{title}: this share of requests took at most", columns, {"": cells})
    )


def _draw(rows: Sequence[Row], scale: _Scale, size: Size) -> tuple[float, list[Html]]:
    height = len(rows) * (_ROW + _LABEL) + _BOTTOM
    x = Axis(scale.edges[0], scale.edges[-1], _LEFT, size.width - 24, is_log=scale.is_log)
    highest = max((share for row in rows for share in _shares(row, scale)), default=1.0) or 1.0
    marks: list[Html] = []
    for i, row in enumerate(rows):
        top = i * (_ROW + _LABEL) + _LABEL
        marks += [*_row(row, scale, x, Axis(0.0, highest, top + _ROW - 4, top + 4)), _label(row, scale, size, top)]
    return height, [*_ticks(scale, x, height - _BOTTOM), *marks]


def _ticks(scale: _Scale, x: Axis, bottom: float) -> Iterator[Html]:
    room = math.inf
    for value, text in reversed(scale.ticks):
        at = x.at(value)
        if room - at >= 34:
            room = at
            yield element("line", x1=at, x2=at, y1=0, y2=bottom, class_="grid")
            yield element("text", text, x=at, y=bottom + 16, text_anchor="middle")
    yield element("text", scale.unit, x=(x.start + x.end) / 2, y=bottom + 36, text_anchor="middle")


def _row(row: Row, scale: _Scale, x: Axis, y: Axis) -> Iterator[Html]:
    yield element("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="axis")
    for left, right, share in zip(scale.edges[:-1], scale.edges[1:], _shares(row, scale), strict=True):
        if share:
            start, top = x.at(left) + 0.5, min(y.at(share), y.start - 1)
            width = max(x.at(right) - start - 0.5, 1.0)
            yield element("rect", x=start, width=width, y=top, height=y.start - top, class_=f"bar {row.look}")
    if row.values:
        for share, look in ((0.5, "median"), (0.9, "tail")):
            at = x.at(percentile(row.values, share))
            yield element("line", x1=at, x2=at, y1=y.start, y2=y.end, class_=look)


def _label(row: Row, scale: _Scale, size: Size, top: float) -> Html:
    """Above a row's bars: whose they are, and what its two marks say."""
    tail = "p90" if size.is_narrow else "90th percentile"
    said = f"median {_text(row, 0.5, scale)}, {tail} {_text(row, 0.9, scale)}" if row.values else "no requests"
    name = element("tspan", shortened(row.way, 16 if size.is_narrow else 60), class_=f"label {row.look}")
    return element("text", name, f"\N{EN SPACE}{said}", x=0, y=top - 4, class_="halo")


def _shares(row: Row, scale: _Scale) -> list[float]:
    """Of the row's values, per bin."""
    counts = [0] * (len(scale.edges) - 1)
    place = 0
    for value in row.values:
        while place < len(counts) - 1 and value >= scale.edges[place + 1]:
            place += 1
        counts[place] += 1
    return [num / len(row.values) for num in counts] if row.values else [0.0] * len(counts)


def _text(row: Row, share: float, scale: _Scale) -> str:
    if not row.values:
        return "–"
    value = percentile(row.values, share)
    return milliseconds(value) if scale.is_log else f"{value:,.1f}".removesuffix(".0")
