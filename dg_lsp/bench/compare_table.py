"""A comparison as Markdown, for a terminal and for the log."""

from collections.abc import Iterable, Iterator, Sequence

from dg_lsp.bench.compare import ALL, Contrast, by_ways
from dg_lsp.bench.intervals import Interval
from dg_lsp.bench.summaries import summary_table
from dg_lsp.metrics.attempt import Attempt
from dg_lsp.metrics.summary import summarize

CONTRAST_COLUMNS = ("way", "latency", "TTFUE", "TTFUE, both useful", "exact match", "model time")


def way_tables(attempts: Iterable[Attempt]) -> Iterator[str]:
    """One table per kind of place, and one over all kinds; a row per way, times in milliseconds."""
    listed = list(attempts)
    kinds = sorted({attempt.kind for attempt in listed})
    for kind in [*kinds, ALL] if len(kinds) > 1 else kinds:
        ways = by_ways(attempt for attempt in listed if kind in (ALL, attempt.kind))
        yield from summary_table({way: summarize(answers) for way, answers in ways.items()}, kind)
        yield ""


def contrast_tables(contrasts: Sequence[Contrast]) -> Iterator[str]:
    """One table per kind: how many times faster than the baseline, with 95 % intervals."""
    for kind in dict.fromkeys(contrast.kind for contrast in contrasts):
        chosen = [contrast for contrast in contrasts if contrast.kind == kind]
        yield f"{kind}, {chosen[0].num} sites, times faster than {chosen[0].baseline} (95 % interval):"
        yield ""
        yield f"| {' | '.join(CONTRAST_COLUMNS)} |"
        yield "|---" * len(CONTRAST_COLUMNS) + "|"
        for contrast in chosen:
            yield f"| {' | '.join(contrast_cells(contrast))} |"
        yield ""


def contrast_cells(contrast: Contrast) -> tuple[str, ...]:
    """A row under `CONTRAST_COLUMNS`."""
    return (
        contrast.way,
        _ratio(contrast.latency),
        _ratio(contrast.ttfue),
        _ratio(contrast.ttfue_both),
        _points(contrast.exact),
        _ratio(contrast.model),
    )


def _ratio(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def _points(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    value, low, high = (f"{100 * share:+.1f}" for share in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"
