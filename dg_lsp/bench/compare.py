"""Paired comparison of contenders with a baseline: ratios and differences with bootstrap intervals.

Both sides answered the same cases, and a resample draws cases, so that differences between cases cancel out.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dg_lsp.bench.metrics import ALL, Attempt, by_contender, by_kind, rounded, summarize
from dg_lsp.bench.runs import Run
from dg_lsp.bench.tables import Table, decoder_tables, summary_table

BASELINE = "autoregressive"
NUM_RESAMPLES = 2000
COVERAGE = 0.95
_COLUMNS = ("contender", "cases", "latency", "TTFUE", "TTFUE, both useful", "exact match", "model time")

Values = npt.NDArray[np.float64]
"""One number per case, shape (N,), or per resample and case, shape (B, N); nan for a case without a value."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value over all cases, and the interval that holds 95 % of the resamples."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """A contender against the baseline, over the cases of one kind that both answered. None without a finite value."""

    contender: str
    baseline: str
    kind: str
    num: int
    latency_times_faster: Interval | None
    """Ratio of the median latencies."""
    ttfue_times_faster: Interval | None
    """Ratio of the median times to first useful edit, each over its own hits."""
    ttfue_times_faster_where_both_useful: Interval | None
    """The same over the cases that are hits of both."""
    exact_match_difference: Interval | None
    """Share of exact matches minus that of the baseline."""
    model_ms_times_less: Interval | None
    """Ratio of the mean model times."""

    def json(self) -> dict[str, Any]:
        """Plain JSON values."""
        tree: dict[str, Any] = rounded(dataclasses.asdict(self))
        return tree

    def cells(self) -> tuple[str, ...]:
        """Row of the table."""
        return (
            f"{self.contender}, {self.kind}",
            str(self.num),
            _ratio_cell(self.latency_times_faster),
            _ratio_cell(self.ttfue_times_faster),
            _ratio_cell(self.ttfue_times_faster_where_both_useful),
            _points_cell(self.exact_match_difference),
            _ratio_cell(self.model_ms_times_less),
        )


def compare_with_baseline(
    attempts: Iterable[Attempt], baseline: str = BASELINE, *, seed: int = 0
) -> tuple[PairedComparison, ...]:
    """Compares every other contender over all cases and by kind; empty without the baseline."""
    groups = by_contender(attempts)
    base = {attempt.case: attempt for attempt in groups.pop(baseline, ())}
    found = []
    for contender, listed in groups.items():
        kinds = by_kind(attempt for attempt in listed if attempt.case in base)
        for kind in sorted(kinds, key=lambda kind: (kind != ALL, kind)):
            pairs = [(attempt, base[attempt.case]) for attempt in kinds[kind]]
            label = kind if len(kinds) > 1 else ALL
            if pairs:
                found.append(_compare(contender, baseline, label, pairs, seed))
    return tuple(found)


def bootstrap(
    ours: Values,
    theirs: Values,
    statistic: Callable[[Values], Values],
    combine: Callable[[Values, Values], Values],
    *,
    seed: int,
) -> Interval | None:
    """Percentile interval of `combine(statistic(ours), statistic(theirs))`; None if the value itself is not finite.

    Resamples without a finite value, such as those without a hit, are left out.
    """
    value = float(combine(statistic(ours), statistic(theirs))) if len(ours) else np.nan
    if not np.isfinite(value):
        return None
    drawn = np.random.default_rng(seed).integers(0, len(ours), (NUM_RESAMPLES, len(ours)))
    resampled = combine(statistic(ours[drawn]), statistic(theirs[drawn]))
    tail = 100 * (1 - COVERAGE) / 2
    low, high = np.percentile(resampled[np.isfinite(resampled)], [tail, 100 - tail]).tolist()
    return Interval(value, low, high)


def median(values: Values) -> Values:
    """Median along the last axis without nan; nan if there is no number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all values are nan
        return np.asarray(np.nanmedian(values, axis=-1), np.float64)


def mean(values: Values) -> Values:
    """Mean along the last axis."""
    return np.asarray(values.mean(axis=-1), np.float64)


def ratio(ours: Values, theirs: Values) -> Values:
    """`theirs / ours`: of times, how many times faster ours are."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.divide(theirs, ours), np.float64)


def difference(ours: Values, theirs: Values) -> Values:
    """`ours - theirs`."""
    return np.asarray(ours - theirs, np.float64)


def compare_json(run: Run, seed: int) -> dict[str, Any]:
    """The object that `bench compare --json` prints."""
    options = dict(run.header.options)
    return {
        "num": len({attempt.case for attempt in run.attempts}),
        "is_complete": run.is_complete,
        "contenders": {
            name: {kind: summarize(group).json() for kind, group in {**by_kind(listed), ALL: listed}.items()}
            for name, listed in by_contender(run.attempts).items()
        },
        "baseline": BASELINE,
        "comparisons": [one.json() for one in compare_with_baseline(run.attempts, seed=seed)],
        "model": run.header.model,
        "model_sha256": run.header.model_sha256,
        "length_knowledge": options["length"],
        "options": options,
        "machine": dataclasses.asdict(run.header.machine),
        "notes": list(run.notes),
    }


def compare_tables(run: Run, seed: int) -> list[Table]:
    """Summaries by contender, for all kinds and each kind, and the comparisons with the baseline."""
    kinds = by_kind(run.attempts)
    every = kinds.pop(ALL) if ALL in kinds else kinds.popitem()[1]
    rows = [one.cells() for one in compare_with_baseline(run.attempts, seed=seed)]
    caption = f"Times faster than {BASELINE} (95 % interval); exact match in points"
    return [
        summary_table("All cases", by_contender(every)),
        *([Table(caption, _COLUMNS, {"": rows})] if rows else []),
        *(summary_table(f"Kind {kind}", by_contender(listed)) for kind, listed in kinds.items()),
        *decoder_tables(run.attempts),
    ]


def _compare(
    contender: str, baseline: str, kind: str, pairs: Sequence[tuple[Attempt, Attempt]], seed: int
) -> PairedComparison:
    def columns(value: Callable[[Attempt], float | None]) -> tuple[Values, Values]:
        """Shape (N,) each."""
        table = np.array([[np.nan if (found := value(one)) is None else found for one in pair] for pair in pairs])
        return table[:, 0], table[:, 1]

    ours, theirs = columns(lambda attempt: attempt.ttfue_ms)
    both = ~np.isnan(ours + theirs)
    return PairedComparison(
        contender,
        baseline,
        kind,
        num=len(pairs),
        latency_times_faster=bootstrap(*columns(lambda attempt: attempt.latency_ms), median, ratio, seed=seed),
        ttfue_times_faster=bootstrap(ours, theirs, median, ratio, seed=seed),
        ttfue_times_faster_where_both_useful=bootstrap(ours[both], theirs[both], median, ratio, seed=seed),
        exact_match_difference=bootstrap(
            *columns(lambda attempt: float(attempt.is_exact)), mean, difference, seed=seed
        ),
        model_ms_times_less=bootstrap(*columns(lambda attempt: attempt.model_ms), mean, ratio, seed=seed),
    )


def _ratio_cell(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def _points_cell(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    value, low, high = (f"{100 * share:+.1f}" for share in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"
