"""Paired comparison of contenders with a baseline: ratios and differences with bootstrap intervals.

Both sides answered the same cases, and a resample draws cases, so that differences between cases cancel out.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.bench import metrics
from dg_lsp.bench.runner import Run
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine import ttfue

BASELINE = DecoderName.AUTOREGRESSIVE.value
NUM_RESAMPLES = 2000
COVERAGE = 0.95

Values = npt.NDArray[np.float64]
"""One number per case, shape (N,), or per resample and case, shape (B, N); nan for a case without a value."""
Statistic = Callable[[Values, Values], Values]
"""Compares two arrays of (..., N) values along the last axis; nan without a value."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value over all cases, and the interval that holds 95 % of the resamples."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """A contender against the baseline, over the cases of one kind that both answered."""

    contender: str
    baseline: str
    kind: str
    num: int
    intervals: Mapping[str, Interval | None]  # by the names of `MEASURES`; None without a finite value

    def json(self) -> dict[str, Any]:
        """Plain JSON values."""
        tree: dict[str, Any] = ttfue.rounded(dataclasses.asdict(self))
        intervals = tree.pop("intervals")
        return {**tree, **intervals}

    def cells(self) -> tuple[str, ...]:
        """Row of the table."""
        intervals = [_cell(interval, MEASURES[name][1] is mean_difference) for name, interval in self.intervals.items()]
        return (f"{self.contender}, {self.kind}", str(self.num), *intervals)


def median_ratio(ours: Values, theirs: Values) -> Values:
    """How many times as long their median is as ours, without nan."""
    return np.asarray(np.nanmedian(theirs, axis=-1) / np.nanmedian(ours, axis=-1), np.float64)


def mean_ratio(ours: Values, theirs: Values) -> Values:
    """How many times as long their mean is as ours."""
    return np.asarray(theirs.mean(axis=-1) / ours.mean(axis=-1), np.float64)


def mean_difference(ours: Values, theirs: Values) -> Values:
    """Our mean minus theirs."""
    return np.asarray(ours.mean(axis=-1) - theirs.mean(axis=-1), np.float64)


MEASURES: Mapping[str, tuple[str, Statistic, Callable[[metrics.Attempt], float | None]]] = {
    "latency_times_faster": ("latency", median_ratio, lambda attempt: attempt.latency_ms),
    "ttfue_times_faster": ("TTFUE", median_ratio, lambda attempt: attempt.ttfue_ms),
    "ttfue_times_faster_where_both_useful": ("TTFUE, both useful", median_ratio, lambda attempt: attempt.ttfue_ms),
    "exact_match_difference": ("exact match", mean_difference, lambda attempt: float(attempt.is_exact)),
    "model_ms_times_less": ("model time", mean_ratio, lambda attempt: attempt.model_ms),
}
"""Column, statistic and value of each measure. Each side's TTFUE is over its own hits, or over the common ones."""


def compare_with_baseline(attempts: Iterable[metrics.Attempt], *, seed: int = 0) -> tuple[PairedComparison, ...]:
    """Compares every other contender over all cases and by kind; empty without the baseline."""
    groups = _by_contender(attempts)
    base = {attempt.case: attempt for attempt in groups.pop(BASELINE, ())}
    comparisons = []
    for contender, listed in groups.items():
        kinds = metrics.by_kind(attempt for attempt in listed if attempt.case in base)
        for kind in sorted(kinds, key=lambda kind: (kind != metrics.ALL, kind)):
            pairs = [(attempt, base[attempt.case]) for attempt in kinds[kind]]
            intervals = {name: _interval(name, pairs, seed) for name in MEASURES}
            if pairs:
                label = kind if len(kinds) > 1 else metrics.ALL
                comparisons.append(PairedComparison(contender, BASELINE, label, len(pairs), intervals))
    return tuple(comparisons)


def bootstrap(ours: Values, theirs: Values, statistic: Statistic, *, seed: int) -> Interval | None:
    """Percentile interval of a statistic over paired values of shape (N,); None if the value itself is not finite.

    Resamples without a finite value, such as those without a hit, are left out.
    """
    if not len(ours):
        return None
    drawn = np.random.default_rng(seed).integers(0, len(ours), (NUM_RESAMPLES, len(ours)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all values are nan, or the divisor is 0
        value = float(statistic(ours, theirs))
        resampled = statistic(ours[drawn], theirs[drawn])
    if not np.isfinite(value):
        return None
    tail = 100 * (1 - COVERAGE) / 2
    low, high = np.percentile(resampled[np.isfinite(resampled)], [tail, 100 - tail]).tolist()
    return Interval(value, low, high)


def compare_json(run: Run, seed: int) -> dict[str, Any]:
    """The object that `compare --json` prints."""
    options = dict(run.header.options)
    return {
        "num": len({attempt.case for attempt in run.attempts}),
        "contenders": {
            name: {
                kind: metrics.summarize(group)
                for kind, group in {**metrics.by_kind(listed), metrics.ALL: listed}.items()
            }
            for name, listed in _by_contender(run.attempts).items()
        },
        "baseline": BASELINE,
        "comparisons": [comparison.json() for comparison in compare_with_baseline(run.attempts, seed=seed)],
        "length_knowledge": options["length"],
        "options": options,
        "notes": list(run.notes),
        **run.facts(),
    }


def compare_tables(run: Run, seed: int) -> list[metrics.Table]:
    """Summaries by contender, for all kinds and each kind, and the comparisons with the baseline."""
    kinds = metrics.by_kind(run.attempts)
    every = kinds.pop(metrics.ALL) if metrics.ALL in kinds else kinds.popitem()[1]
    rows = [comparison.cells() for comparison in compare_with_baseline(run.attempts, seed=seed)]
    caption = f"Times faster than {BASELINE} (95 % interval); exact match in points"
    columns = ("contender", "cases", *(column for column, _, _ in MEASURES.values()))
    return [
        metrics.summary_table("All cases", _by_contender(every)),
        *([metrics.Table(caption, columns, rows)] if rows else []),
        *(metrics.summary_table(f"Kind {kind}", _by_contender(listed)) for kind, listed in kinds.items()),
    ]


def _by_contender(attempts: Iterable[metrics.Attempt]) -> dict[str, list[metrics.Attempt]]:
    return metrics.grouped(attempts, lambda attempt: attempt.contender)


def _interval(name: str, pairs: Iterable[tuple[metrics.Attempt, metrics.Attempt]], seed: int) -> Interval | None:
    _, statistic, value = MEASURES[name]
    table = np.array([[value(attempt) for attempt in pair] for pair in pairs], float)  # None becomes NaN
    table = table.reshape(-1, 2)
    if name.endswith("both_useful"):
        table = table[~np.isnan(table).any(axis=1)]
    return bootstrap(table[:, 0], table[:, 1], statistic, seed=seed)


def _cell(interval: Interval | None, in_points: bool) -> str:
    if interval is None:
        return "-"
    numbers = (interval.value, interval.low, interval.high)
    value, low, high = (f"{100 * number:+.1f}" if in_points else f"{number:.2f}" for number in numbers)
    return f"{value} ({low} to {high})"
