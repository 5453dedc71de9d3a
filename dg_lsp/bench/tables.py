"""Tables of results, printed as Markdown and shown on pages."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dg_lsp.bench.metrics import CUTS, Attempt, Summary, by_decoder, summarize

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of a row is its heading."""

    kind = "table"
    caption: str
    columns: Sequence[str]
    groups: Mapping[str, Sequence[Sequence[str]]]
    """Rows by the heading above them; an empty heading is not shown."""
    note: str = ""

    def markdown(self) -> Iterator[str]:
        """Lines with the caption above the table."""
        yield f"{self.caption}:"
        yield ""
        yield f"| {' | '.join(self.columns)} |"
        yield "|---" * len(self.columns) + "|"
        for rows in self.groups.values():
            for row in rows:
                yield f"| {' | '.join(row)} |"
        yield ""


Measures = Mapping[str, Mapping[str, Callable[[Item], str]]]
"""Text of a measure by group and name; a dash if there is no value."""


def measure_table(caption: str, measures: Measures[Item], items: Mapping[str, Item], note: str = "") -> Table:
    """One column per item and one row per measure that at least one item has."""
    groups = {}
    for group, named in measures.items():
        rows = [(name, *map(show, items.values())) for name, show in named.items()]
        groups[group] = [row for row in rows if not items or set(row[1:]) != {"–"}]
    return Table(caption, ("measure", *items), {group: rows for group, rows in groups.items() if rows}, note)


def summary_table(caption: str, groups: Mapping[str, Iterable[Attempt]]) -> Table:
    """Summaries, one column per group."""
    summaries = {name or "unnamed": summarize(attempts) for name, attempts in groups.items()}
    return measure_table(caption, SUMMARY_MEASURES, summaries, "In brackets: the 95 % interval of a share, in percent.")


def decoder_tables(attempts: Iterable[Attempt]) -> list[Table]:
    """Summaries by decoder, if a contender ran several."""
    groups = by_decoder(attempts)
    names = [name.partition(": ")[0] for name in groups]
    several = {name: group for name, group in groups.items() if names.count(name.partition(": ")[0]) > 1}
    return [summary_table("By decoder", several)] if several else []


def percent(share: float | None, digits: int = 1) -> str:
    """`61.7 %`."""
    return "–" if share is None else f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def milliseconds(ms: float | None) -> str:
    """`8.4 ms`, `84 ms`, `1,240 ms`."""
    return "–" if ms is None else f"{ms:,.{1 if ms < 9.95 else 0}f}\N{NO-BREAK SPACE}ms"


def number(value: float | None, digits: int = 0) -> str:
    """`1,240`."""
    return "–" if value is None else f"{value:,.{digits}f}"


def count(num: int, noun: str) -> str:
    """`1 request`, `1,000 requests`."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}s"


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters, with an ellipsis at the end of a longer text."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def wilson_interval(share: float, num: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share of `num` (Wilson); 0 to 1 if `num` is 0."""
    if not num:
        return 0.0, 1.0
    scale = 1 + z * z / num
    centre = (share + z * z / (2 * num)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return max(0.0, centre - half), min(1.0, centre + half)


def _share(share: float, num: float) -> str:
    low, high = wilson_interval(share, round(num))
    return f"{percent(share)} ({100 * low:.0f}–{100 * high:.0f})" if num else percent(share)


SUMMARY_MEASURES: Measures[Summary] = {
    "": {"requests": lambda s: number(s.num)},
    "Time to first useful edit (TTFUE)": {
        **{
            f"useful by {cut:,} ms": (lambda s, cut=cut: _share(s.useful_by[cut], s.num))  # type: ignore[misc]
            for cut in CUTS
        },
        "TTFUE, median": lambda s: milliseconds(s.ttfue_ms.p50),
        "TTFUE, 90th percentile": lambda s: milliseconds(s.ttfue_ms.p90),
        "missed": lambda s: _share(s.miss_rate, s.num),
    },
    "Quality": {
        "exact match": lambda s: _share(s.exact_match, s.num),
        "first line": lambda s: _share(s.first_line_match, s.num),
        "pass@1": lambda s: percent(s.pass_at_1),
        "shown": lambda s: _share(s.show_rate, s.num),
        "reversed": lambda s: _share(s.reversal_rate, s.num * s.show_rate),
    },
    "Cost": {
        "latency, median": lambda s: milliseconds(s.latency_ms.p50),
        "latency, 90th percentile": lambda s: milliseconds(s.latency_ms.p90),
        "steps, mean": lambda s: number(s.steps_mean, 2),
        "tokens per forward pass": lambda s: number(s.tokens_per_forward, 2),
        "model time per useful edit": lambda s: milliseconds(s.model_ms_per_useful),
    },
}
