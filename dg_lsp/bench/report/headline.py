"""The numbers that everything else explains: one row per measure, one column per way."""

from collections.abc import Callable, Mapping, Sequence

from dg_lsp.bench.report.chart import table
from dg_lsp.bench.report.markup import Html, element
from dg_lsp.bench.report.measures import GROUPS
from dg_lsp.bench.report.wording import count, milliseconds, percent
from dg_lsp.metrics.attempt import Attempt
from dg_lsp.metrics.summary import summarize

_LEAD_CUT = 250
_MAIN = ("requests", "exact match", "useful by 100 ms", "useful by 250 ms", "TTFUE, median", "90th percentile")


def lead(attempts: Mapping[str, Sequence[Attempt]], baseline: str) -> Html:
    """The page's first sentence: who had something useful soon."""
    summaries = {way: summarize(listed) for way, listed in attempts.items() if listed}
    if not summaries:
        return element("p", "No request was answered.", class_="lead")
    first, *others = summaries
    against = baseline if baseline in others else next(iter(others), None)
    said = [f"Of {count(summaries[first].num, 'request')}, {first} had a useful edit within {_LEAD_CUT} ms in "]
    said.append(element("strong", percent(summaries[first].useful_by[_LEAD_CUT], 0)))
    if against is not None:
        said += [f", {against} in ", element("strong", percent(summaries[against].useful_by[_LEAD_CUT], 0))]
    return element("p", *said, ".", class_="lead")


def headline(attempts: Mapping[str, Sequence[Attempt]]) -> Html:
    """The table. A measure that no way has is left out."""
    summaries = [summarize(listed) for listed in attempts.values()]
    groups = {
        name: [
            (measure.name, *map(measure.cell, summaries))
            for measure in measures
            if any(measure.value(summary) is not None for summary in summaries)
        ]
        for name, measures in GROUPS.items()
    }
    hint = "Small beside a share: its 95% interval, in per cent."
    return table("All requests", ("measure", *attempts), groups, hint)


def by_kind(attempts: Mapping[str, Sequence[Attempt]]) -> Html:
    """The main numbers again per kind of place; nothing where all places are of one kind."""
    return _split("By kind of place", attempts, lambda attempt: attempt.kind)


def by_plan(attempts: Mapping[str, Sequence[Attempt]]) -> Html:
    """The main numbers of ways that ran several plans, per plan; nothing where each way ran one."""
    several = {way: listed for way, listed in attempts.items() if len({attempt.plan for attempt in listed}) > 1}
    return _split("By plan that ran", several, lambda attempt: attempt.plan)


def _split(caption: str, attempts: Mapping[str, Sequence[Attempt]], sort_of: Callable[[Attempt], str]) -> Html:
    sorts = sorted({sort_of(attempt) for listed in attempts.values() for attempt in listed})
    if len(sorts) < 2:
        return Html()
    groups = {
        sort or "unnamed": [
            _row(way, [attempt for attempt in listed if sort_of(attempt) == sort]) for way, listed in attempts.items()
        ]
        for sort in sorts
    }
    return table(caption, ("way", *_MAIN), groups)


def _row(way: str, attempts: Sequence[Attempt]) -> tuple[str, ...]:
    if not attempts:
        return (way, "0", *["–"] * (len(_MAIN) - 1))
    summary = summarize(attempts)
    shares = (summary.exact_match, summary.useful_by[100], summary.useful_by[250])
    times = (summary.ttfue_ms.p50, summary.ttfue_ms.p90)
    return (way, f"{summary.num:,}", *map(percent, shares), *map(milliseconds, times))
