"""Charts as inline SVG, drawn by matplotlib.

The content policy of the page forbids style attributes, and colours depend on the theme: every drawing is rewritten to
presentation attributes with CSS variables. The text does not shrink: a narrow window scrolls the drawing.
"""

import contextlib
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from dg_lsp.bench.metrics import (
    CalibrationBin,
    Table,
    calibration_table,
    milliseconds,
    number,
    percent,
    shorten,
)
from dg_lsp.engine.ttfue import CUTS, quantile
from dg_lsp.system import NEUTRAL_FOLDER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 760
"""Pixels of a drawing."""
_VARIABLES = ("soft", "rule", "ink", "base", *(f"series{i}" for i in range(6)))
_COLOURS = {f"#0000{i:02x}": name for i, name in enumerate(_VARIABLES, 1)}  # matplotlib omits #000000
"""CSS variables by the colours that stand for them in matplotlib."""
_SOFT, _RULE, _INK, _BASE, *_SERIES = _COLOURS
_DASHES = ("-", (0, (10, 3)), (0, (2, 3)), (0, (10, 3, 2, 3)), (0, (5, 2)), (0, (1, 4)))
_FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_LINE_WIDTH, _ROW_HEIGHT, _NUM_BINS = 2.25, 84, 48

_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Invisible characters, and those that change the order of others."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure in SVG, with its numbers as a table; the name is an anchor."""

    kind = "chart"
    name: str
    title: str
    caption: str
    drawing: str
    table: Table


def useful_by(hits: Mapping[str, Sequence[float]], nums: Mapping[str, int], baseline: str) -> Chart:
    """Share of requests that had a useful edit within a time; `hits` are milliseconds, `nums` numbers of requests."""

    def fraction(name: str, ms: float = math.inf) -> float:
        return sum(hit <= ms for hit in hits[name]) / nums[name] if nums[name] else 0.0

    times = [max(ms, 1.0) for listed in hits.values() for ms in listed]
    low, high = min([*times, CUTS[0]]), max([*times, CUTS[-1]])
    top = max([*map(fraction, hits), 0.1])

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for (name, listed), look in zip(hits.items(), _looks(hits, baseline), strict=True):
            ordered = [max(ms, 1.0) for ms in sorted(listed)]
            shares = [i / nums[name] for i in range(len(ordered) + 1)] if nums[name] else [0.0]
            x = [low, *ordered, high]
            axes.step(x, [*shares, shares[-1]], where="post", linewidth=_LINE_WIDTH, label=_label(name), **look)
        _log_axis(axes, low, high, "milliseconds since the request")
        axes.set_ylim(0, 1.05 * top)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        figure.legend(loc="outside upper left", ncols=3, labelcolor=_SOFT, frameon=False)

    rows = [(name, *(percent(fraction(name, cut)) for cut in CUTS), percent(fraction(name))) for name in hits]
    columns = ("contender", *(f"{cut:,} ms" for cut in CUTS), "ever")
    table = Table("Share of all requests with a useful edit within a time", columns, {"": rows})
    caption = "Share of all requests that had a useful edit within a time. The time axis is logarithmic."
    return _chart("useful-by", caption, draw, 360, table)


def latency_histogram(values: Mapping[str, Sequence[float]], baseline: str = "") -> Chart:
    """Milliseconds until the final answer, by contender."""
    caption = "Time until the final answer of every request. The time axis is logarithmic."
    ends = [end for listed in values.values() for end in listed] or [1.0]
    low = max(1.0, min(ends))
    edges = np.geomspace(low, max(*ends, low + 1.0), _NUM_BINS)
    return _histogram("latency", caption, values, baseline, milliseconds, edges)


def step_histogram(values: Mapping[str, Sequence[float]], baseline: str = "") -> Chart:
    """Forward passes per request, by contender."""
    caption = (
        "Forward passes of the model per request, after the prompt. A pass over a canvas costs more than one over a"
        " single token. The last bar holds everything above the 99th percentile."
    )
    end = math.ceil(max([quantile(listed, 0.99) or 0.0 for listed in values.values()] + [2.0]))
    width = math.ceil((end + 1) / _NUM_BINS)
    edges = np.arange(0, end + width + 1, width) - 0.5
    show = partial(number, digits=1)
    return _histogram("steps", caption, values, baseline, lambda value: show(value).removesuffix(".0"), edges)


def calibration(groups: Mapping[str, Sequence[CalibrationBin]], baseline: str = "") -> Chart:
    """Share of right first lines by confidence, one line for each contender."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        axes.plot((0, 1), (0, 1), color=_RULE)
        for (name, bins), look in zip(groups.items(), _looks(groups, baseline), strict=True):
            x, y = ([getattr(one, field) for one in bins] for field in ("confidence", "right"))
            axes.plot(x, y, marker="o", linewidth=_LINE_WIDTH, label=_label(name), **look)
        axes.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="mean confidence")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        figure.legend(loc="outside upper left", ncols=3, labelcolor=_SOFT, frameon=False)

    caption = (
        "Share of the fills whose first line is right, by their mean confidence. On the thin line the confidence is the"
        " probability of being right."
    )
    return _chart("calibration", caption, draw, 360, calibration_table(groups))


def _histogram(
    name: str,
    caption: str,
    values: Mapping[str, Sequence[float]],
    baseline: str,
    show: Callable[[float | None], str],
    edges: np.typing.NDArray[np.floating],
) -> Chart:
    def draw(figure: "Figure") -> None:
        grid = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (contender, listed), look in zip(grid, values.items(), _looks(values, baseline), strict=True):
            counts, _ = np.histogram(np.clip(listed, edges[0], edges[-1]), edges)
            axes.stairs(counts / max(1, len(listed)), edges, fill=True, color=look["color"])
            label = "no requests"
            if listed:
                middle, tail = np.quantile(listed, (0.5, 0.9))
                axes.axvline(min(middle, edges[-1]), color=_INK)
                axes.axvline(min(tail, edges[-1]), color=_INK, linestyle="--")
                label = f"median {show(middle)}, p90 {show(tail)}"
            axes.set_title(f"{_label(contender)}: {label}", loc="left", color=_SOFT)
            axes.yaxis.set_visible(False)
        if name == "latency":
            _log_axis(grid[-1], edges[0], edges[-1], "milliseconds until the final answer")
        else:
            grid[-1].set_xlabel("forward passes")
            grid[-1].set_xlim(edges[0], edges[-1])

    rows = [(contender, *(show(quantile(listed, f)) for f in _FRACTIONS)) for contender, listed in values.items()]
    columns = ("contender", *("all" if f == 1 else f"{100 * f:.0f} %" for f in _FRACTIONS))
    table = Table(f"{name.capitalize()}: this share of requests took at most", columns, {"": rows})
    caption += " The solid line is the median, the dashed one the 90th percentile."
    return _chart(name, caption, draw, 60 + _ROW_HEIGHT * len(values), table)


def _chart(name: str, caption: str, draw: Callable[["Figure"], None], height: int, table: Table) -> Chart:
    with contextlib.chdir(NEUTRAL_FOLDER):  # it obeys a `matplotlibrc` in the working directory
        import matplotlib as mpl
    from matplotlib.figure import Figure

    options = {"svg.fonttype": "none", "svg.hashsalt": name, "text.parse_math": False, "font.size": 12}
    colours = {"xtick.color": _SOFT, "ytick.color": _SOFT, "axes.labelcolor": _SOFT, "axes.edgecolor": _RULE}
    sides = {"axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 12}
    text = io.StringIO()
    with mpl.rc_context({**options, **colours, **sides}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser has more fonts
        figure = Figure((_WIDTH / 72, height / 72), dpi=72, layout="constrained")
        draw(figure)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    title = name.capitalize().replace("-", " ")
    drawing = _themed(text.getvalue(), f"{title}: {caption} The table below has the numbers.")
    return Chart(name, title, caption, drawing, table)


def _themed(drawing: str, description: str) -> str:
    """The drawing with presentation attributes instead of styles, and CSS variables instead of colours."""
    root = ElementTree.fromstring(re.sub(r"(?s)<(metadata|style).*?</\1>", "", drawing))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        for name, value in re.findall(r"([\w-]+): *([^;]+)", attributes.pop("style", "")):
            if name != "font-family":
                attributes[name] = f"var(--{_COLOURS[value]})" if value in _COLOURS else value
        if element.tag == "g":
            attributes.pop("id", None)
        element.attrib = attributes
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": visible(description)}
    return ElementTree.tostring(root, encoding="unicode")


def _looks(names: Mapping[str, object], baseline: str) -> list[dict[str, Any]]:
    """Colour and dashes of each contender; the baseline is grey."""
    return [
        {"color": _BASE, "linestyle": "--"}
        if name == baseline
        else {"color": _SERIES[i % len(_SERIES)], "linestyle": _DASHES[i % len(_DASHES)]}
        for i, name in enumerate(names)
    ]


def _log_axis(axes: "Axes", low: float, high: float, label: str) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(low, high * 1.02)
    ticks = [step * 10.0**power for power in range(-1, 8) for step in (1, 2.5, 5)]
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high * 1.02]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda ms, _: f"{ms:,.0f}")
    axes.set_xlabel(label)


def _label(name: str) -> str:
    return shorten(visible(name), 24)


def visible(text: str) -> str:
    """The text with control characters as pictures; the result is valid UTF-8."""
    text = text.replace("\r\n", "\n")
    return _INVISIBLE.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else _REPLACEMENT, text)
