"""The useful-by curve: the share of all requests that had something useful by a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dg_lsp.bench.report.axis import Axis, log_ticks, share_ticks
from dg_lsp.bench.report.chart import Size, drawn, figure, key, table
from dg_lsp.bench.report.markup import Html, element, join
from dg_lsp.bench.report.wording import percent, shortened
from dg_lsp.metrics.summary import CUTS

_LABEL_GAP = 18.0
_LONGEST = 24
"""Characters of a way's name beside its line."""
_TOP, _BOTTOM = 12.0, 44.0


@dataclass(frozen=True, slots=True)
class Curve:
    """One way's line."""

    way: str
    look: str
    hits: Sequence[float]
    """Milliseconds, ascending."""
    num: int
    """Requests, misses counted."""

    def share(self, ms: float) -> float:
        """Had something useful by `ms`."""
        return sum(hit <= ms for hit in self.hits) / self.num if self.num else 0.0

    @property
    def end(self) -> float:
        """The share that ever had."""
        return len(self.hits) / self.num if self.num else 0.0


def useful_by(curves: Sequence[Curve]) -> Html:
    """The figure."""
    hits = [hit for curve in curves for hit in curve.hits]
    columns = ("way", *(f"{cut:,} ms" for cut in CUTS), "ever")
    rows = [(c.way, *(percent(c.share(cut)) for cut in CUTS), percent(c.end)) for c in curves]
    said = "; ".join(f"{c.way} {percent(c.share(CUTS[-1]), 0)}" for c in curves)
    drawing = drawn(
        lambda size: _draw(curves, hits, size), f"Useful by {CUTS[-1]:,} ms: {said}. The table below has more."
    )
    return figure(
        "useful-by",
        "Useful by",
        "Share of all requests that had a useful edit within a time. A line that ends low has many misses; a line"
        " further left is faster. The time axis is logarithmic.",
        join((drawing, key([(curve.way, curve.look) for curve in curves]))),
        table("Share of all requests with a useful edit within a time", columns, {"": rows}),
    )


def _draw(curves: Sequence[Curve], hits: Sequence[float], size: Size) -> tuple[float, list[Html]]:
    height = 300.0 if size.is_narrow else 380.0
    longest = max((min(len(curve.way), _LONGEST) for curve in curves), default=0)
    right = 50.0 if size.is_narrow else 64.0 + 8.0 * longest
    times = log_ticks(min([*hits, 50.0]), max([*hits, 1000.0]))
    shares = share_ticks(max((curve.end for curve in curves), default=0.0) or 0.1)
    x = Axis(times[0], times[-1], 46.0, size.width - right, is_log=True)
    y = Axis(0.0, shares[-1], height - _BOTTOM, _TOP)
    marks = [*_grid(x, y, times, shares, size)]
    marks += [element("path", d=_steps(curve, x, y), class_=f"line {curve.look}") for curve in reversed(curves)]
    marks += _labels(curves, x, y, size)
    return height, marks


def _grid(x: Axis, y: Axis, times: Sequence[float], shares: Sequence[float], size: Size) -> Iterator[Html]:
    for share in shares:
        at = y.at(share)
        yield element("line", x1=x.start, x2=x.end, y1=at, y2=at, class_="grid" if share else "axis")
        yield element("text", f"{100 * share:.0f} %", x=x.start - 8, y=at + 4, text_anchor="end")
    room = size.width
    for ms in reversed(times):
        at = x.at(ms)
        yield element("line", x1=at, x2=at, y1=y.start, y2=y.end, class_="grid")
        if room - at >= 34:  # from the right, as many as do not touch
            room = at
            yield element("text", f"{ms:,.0f}", x=at, y=y.start + 18, text_anchor="middle")
    yield element(
        "text", "milliseconds since the request", x=(x.start + x.end) / 2, y=y.start + 38, text_anchor="middle"
    )


def _steps(curve: Curve, x: Axis, y: Axis) -> str:
    """A staircase, with one step per pixel at most."""
    path, last = [f"M{x.start:g} {y.at(0.0):.1f}"], x.start
    for rank, ms in enumerate(curve.hits, 1):
        at = x.at(ms)
        is_drawn = rank == len(curve.hits) or x.at(curve.hits[rank]) - last >= 1.0
        if is_drawn:
            path.append(f"H{at:.1f}V{y.at(rank / curve.num):.1f}")
            last = at
    return "".join([*path, f"H{x.end:g}"])


def _labels(curves: Sequence[Curve], x: Axis, y: Axis, size: Size) -> Iterator[Html]:
    """Beside the lines' ends; on narrow pages only the share, for the key below names them."""
    wanted = [y.at(curve.end) for curve in curves]
    for curve, at, end in zip(curves, spread(wanted, _LABEL_GAP, y.start), wanted, strict=True):
        text = percent(curve.end, 0) if size.is_narrow else f"{shortened(curve.way, _LONGEST)}  {percent(curve.end, 0)}"
        yield element("path", d=f"M{x.end:g} {end:.1f}L{x.end + 8:g} {at:.1f}", class_=f"leader {curve.look}")
        yield element("text", text, x=x.end + 11, y=at + 4.5, class_=f"label {curve.look}")


def spread(wanted: Sequence[float], gap: float, lowest: float) -> list[float]:
    """Places near the wanted ones, `gap` apart and none below `lowest`, in the wanted order from top to bottom."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = list(wanted)
    for before, i in zip([None, *order], order, strict=False):
        if before is not None:
            places[i] = max(places[i], places[before] + gap)
    limit = lowest
    for i in reversed(order):
        places[i] = min(places[i], limit)
        limit = places[i] - gap
    return places
