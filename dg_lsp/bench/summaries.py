"""Summaries as Markdown, one row each, for a terminal and for the log."""

from collections.abc import Iterable, Iterator, Mapping

from dg_lsp.metrics.attempt import Attempt
from dg_lsp.metrics.summary import Quantiles, Summary, summarize

_CUTS = (100, 250, 500)
_COLUMNS = (
    "num",
    "exact",
    "first line",
    "pass@1",
    "TTFUE p50 / p90",
    *(f"useful by {cut}" for cut in _CUTS),
    "miss",
    "shown",
    "latency p50 / p90",
    "steps",
    "tokens per pass",
    "model ms per useful",
)


def by_kind(attempts: Iterable[Attempt]) -> dict[str, Summary]:
    """By kind of place in the order they come, and `all` where there are several."""
    groups: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        groups.setdefault(attempt.kind, []).append(attempt)
    found = {kind: summarize(group) for kind, group in groups.items()}
    if len(found) != 1:
        found["all"] = summarize(attempt for group in groups.values() for attempt in group)
    return found


def summary_table(summaries: Mapping[str, Summary], heading: str) -> Iterator[str]:
    """Shares in percent, times in milliseconds."""
    yield f"| {heading} | {' | '.join(_COLUMNS)} |"
    yield "|---" * (1 + len(_COLUMNS)) + "|"
    for name, summary in summaries.items():
        yield f"| {name} | {' | '.join(_cells(summary))} |"


def _cells(summary: Summary) -> Iterator[str]:
    yield str(summary.num)
    yield _percent(summary.exact_match)
    yield _percent(summary.first_line_match)
    yield _percent(summary.pass_at_1)
    yield _quantiles(summary.ttfue_ms)
    for cut in _CUTS:
        yield _percent(summary.useful_by[cut])
    yield _percent(summary.miss_rate)
    yield _percent(summary.show_rate)
    yield _quantiles(summary.latency_ms)
    yield _number(summary.steps_mean, 1)
    yield _number(summary.tokens_per_forward, 2)
    yield _number(summary.model_ms_per_useful)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _number(value: float | None, num_digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{num_digits}f}"


def _quantiles(quantiles: Quantiles) -> str:
    return f"{_number(quantiles.p50)} / {_number(quantiles.p90)}"
