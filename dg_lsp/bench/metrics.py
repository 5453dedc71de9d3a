"""Metrics of attempts, and their tables.

The metrics are the match with the reference, the time to the first useful edit (TTFUE), latency and model cost.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np

Item = TypeVar("Item")

CUTS = (50, 100, 250, 500, 1000)
"""Milliseconds at which the share of useful edits is reported."""
ALL = "all"
"""Label of the summary over all kinds."""


@dataclass(frozen=True, slots=True)
class ShownItem:
    """One suggestion, and the milliseconds from the request to its departure."""

    ms: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The answer of one contender to one test case; a cost is None if a server does not report it.

    The shown items are in the order of their departure; the last one is final. The latency ends with the final answer,
    shown or not. Steps are forward passes after the prefill, tokens include the end token, and the confidence is the
    mean log probability per token in nats. The model time includes the prefill.
    """

    case: str
    kind: str
    contender: str
    decoder: str
    reference: str
    shown: tuple[ShownItem, ...] = ()
    passes: bool | None = None
    """True if the completed program passes its tests; None if they did not run."""
    latency_ms: float
    steps: int | None = None
    tokens: int | None = None
    confidence: float | None = None
    rejection: str | None = None
    """Reason why nothing was shown."""
    prefill_ms: float | None = None
    model_ms: float | None = None

    @property
    def text(self) -> str:
        """The final text; empty if nothing was shown."""
        return self.shown[-1].text if self.shown else ""

    @property
    def is_exact(self) -> bool:
        """True if the final text equals the reference, see `texts_match`."""
        return bool(self.shown) and texts_match(self.text, self.reference)

    @property
    def is_first_line(self) -> bool:
        """True if the final text starts with the first line of the reference."""
        return bool(self.shown) and first_lines_match(self.text, self.reference)

    @property
    def ttfue_ms(self) -> float | None:
        """Departure of the first useful item; None for a miss."""
        useful = [item.ms for item in self.shown if first_lines_match(item.text, self.reference)]
        if self.passes and self.shown:
            useful.append(self.shown[-1].ms)
        return min(useful, default=None)

    @property
    def is_reversed(self) -> bool:
        """True if an earlier item started differently from the final one."""
        return any(_head(item.text) != _head(self.text) for item in self.shown[:-1])

    def json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> Self:
        """Inverse of `json`.

        Raises:
            TypeError, KeyError: a key is missing or unknown.
        """
        return cls(**{**tree, "shown": tuple(ShownItem(**item) for item in tree["shown"])})


def texts_match(text: str, reference: str) -> bool:
    """True if the lines are equal, without trailing blanks and trailing line ends."""
    return _lines(text) == _lines(reference)


def first_lines_match(text: str, reference: str) -> bool:
    """True if both start with the same line, without trailing blanks.

    If the reference starts with empty lines, everything up to its first line with text is compared. Nothing matches a
    blank reference.
    """
    head = _head(reference)
    return bool(head) and _head(text) == head


def _lines(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n").split("\n")


def _head(text: str) -> list[str]:
    """The lines up to the first one with text, which is included."""
    lines = _lines(text)
    return next((lines[: i + 1] for i, line in enumerate(lines) if line), [])


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median and 90th percentile in milliseconds; None without values."""

    p50: float | None
    p90: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Quantiles of the values, in any order."""
        listed = list(values)
        return cls(quantile(listed, 0.5), quantile(listed, 0.9))


@dataclass(frozen=True, slots=True)
class Summary:
    """Shares are between 0 and 1 and relate to all attempts unless stated otherwise; a miss counts in all of them."""

    num: int
    exact_match: float
    first_line_match: float
    """Of the final text."""
    pass_at_1: float | None
    """Over the attempts whose tests ran."""
    ttfue_ms: Quantiles
    """Over the hits."""
    useful_by: dict[int, float]
    """Share of attempts with a useful item, by milliseconds since the request."""
    miss_rate: float
    """Share of attempts without any useful item."""
    show_rate: float
    reversal_rate: float
    """Over the attempts that showed something."""
    latency_ms: Quantiles
    steps_mean: float | None
    """Over the attempts whose steps are known, like the tokens per forward pass."""
    tokens_per_forward: float | None
    model_ms_per_useful: float | None
    """Model time of all attempts over the number of useful edits."""

    def json(self) -> dict[str, Any]:
        """Plain JSON values, rounded to four digits."""
        tree: dict[str, Any] = rounded(dataclasses.asdict(self))
        return {**tree, "useful_by": {str(cut): share for cut, share in tree["useful_by"].items()}}


def summarize(attempts: Iterable[Attempt]) -> Summary:
    """Summary of the attempts; without attempts it consists of zeros and Nones."""
    listed = list(attempts)
    hits = [attempt.ttfue_ms for attempt in listed if attempt.ttfue_ms is not None]
    shown = [attempt for attempt in listed if attempt.shown]
    tested = [attempt.passes for attempt in listed if attempt.passes is not None]
    counted = [(attempt.steps, attempt.tokens or 0) for attempt in listed if attempt.steps is not None]
    model_ms = [attempt.model_ms for attempt in listed if attempt.model_ms is not None]
    num_steps = sum(steps for steps, _ in counted)
    return Summary(
        num=len(listed),
        exact_match=share(sum(attempt.is_exact for attempt in listed), len(listed)),
        first_line_match=share(sum(attempt.is_first_line for attempt in listed), len(listed)),
        pass_at_1=sum(tested) / len(tested) if tested else None,
        ttfue_ms=Quantiles.of(hits),
        useful_by={cut: share(sum(ms <= cut for ms in hits), len(listed)) for cut in CUTS},
        miss_rate=share(len(listed) - len(hits), len(listed)),
        show_rate=share(len(shown), len(listed)),
        reversal_rate=share(sum(attempt.is_reversed for attempt in shown), len(shown)),
        latency_ms=Quantiles.of(attempt.latency_ms for attempt in listed),
        steps_mean=num_steps / len(counted) if counted else None,
        tokens_per_forward=share(sum(tokens for _, tokens in counted), num_steps) if counted else None,
        model_ms_per_useful=sum(model_ms) / len(hits) if hits and len(model_ms) == len(listed) else None,
    )


def quantile(values: Sequence[float], fraction: float) -> float | None:
    """Linear interpolation between the sorted values; None without values."""
    return float(np.quantile(values, fraction)) if values else None


def share(part: float, whole: float) -> float:
    """`part / whole`; 0 if the whole is 0."""
    return part / whole if whole else 0.0


def rounded(tree: Any) -> Any:
    """The same JSON tree with floats rounded to four digits."""
    if isinstance(tree, dict):
        return {key: rounded(value) for key, value in tree.items()}
    return round(tree, 4) if isinstance(tree, float) else tree


def by_contender(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Groups in the order of their first attempt."""
    return grouped(attempts, lambda attempt: attempt.contender)


def by_kind(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Groups in the order of their first attempt, and `ALL` unless there is exactly one kind."""
    listed = list(attempts)
    groups = grouped(listed, lambda attempt: attempt.kind)
    return groups if len(groups) == 1 else {**groups, ALL: listed}


def grouped(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    """Lists of the items with the same key, in the order of the first item of each."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


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
    several: dict[str, list[Attempt]] = {}
    for contender, listed in by_contender(attempts).items():
        groups = grouped(listed, lambda attempt: attempt.decoder)
        several |= {f"{contender}: {name}": group for name, group in groups.items() if len(groups) > 1}
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
