"""The numbers that everything else explains: one row per measure, one column per way."""

from collections.abc import Mapping, Sequence
from itertools import starmap
from operator import attrgetter

from dg_lsp.bench.report.chart import table
from dg_lsp.bench.report.markup import Html, element
from dg_lsp.bench.report.measures import GROUPS
from dg_lsp.bench.report.wording import count, milliseconds, percent
from dg_lsp.metrics.attempt import Attempt
from dg_lsp.metrics.summary import Summary, summarize

_LEAD_CUT = 250
_MAIN = ("requests", "exact match", "useful by 100 ms", "useful by 250 ms", "TTFUE, median", "90th percentile")


def lead(attempts: Mapping[str, Sequence[Attempt]], baseline: str) -> Html:
    """The page's first sentence: who had something useful soon."""
    summaries = {way: summarize(listed) for way, listed in attempts.items() if listed}
    if not summaries:
        return element("p", "No request was answered.", class_="lead")
    first, *others = summaries
    against = baseline if baseline in others else next(iter(others), None)
    said: list[str] = [_soon(summaries[first]), f" of {count(summaries[first].num, 'request')} had a useful edit"]
    said.append(f" within {_LEAD_CUT} ms")
    if against is not None:
        said += [f" by {first}, ", _soon(summaries[against]), f" by {against}"]
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
    return _split("By kind of place", "kind", attempts)


def by_decoder(attempts: Mapping[str, Sequence[Attempt]]) -> Html:
    """The main numbers of ways that ran several decoders, per decoder; nothing where each way ran one."""
    several = {way: listed for way, listed in attempts.items() if len({attempt.decoder for attempt in listed}) > 1}
    return _split("By decoder that ran", "decoder", several)


def _split(caption: str, field: str, attempts: Mapping[str, Sequence[Attempt]]) -> Html:
    """One group of rows per value of the field, or one row where there is one way only."""
    sort_of = attrgetter(field)
    sorts = sorted({sort_of(attempt) for listed in attempts.values() for attempt in listed})
    if len(sorts) < 2:
        return Html()
    split = {
        sort or "unnamed": {way: [one for one in listed if sort_of(one) == sort] for way, listed in attempts.items()}
        for sort in sorts
    }
    if len(attempts) == 1:
        return table(caption, (field, *_MAIN), {"": [_row(sort, *by_way.values()) for sort, by_way in split.items()]})
    groups = {sort: list(starmap(_row, by_way.items())) for sort, by_way in split.items()}
    return table(caption, ("way", *_MAIN), groups)


def _soon(summary: Summary) -> Html:
    return element("strong", percent(summary.useful_by[_LEAD_CUT], 0))


def _row(name: str, attempts: Sequence[Attempt]) -> tuple[str, ...]:
    if not attempts:
        return (name, "0", *["–"] * (len(_MAIN) - 1))
    summary = summarize(attempts)
    shares = (summary.exact_match, summary.useful_by[100], summary.useful_by[250])
    times = (summary.ttfue_ms.p50, summary.ttfue_ms.p90)
    return (name, f"{summary.num:,}", *map(percent, shares), *map(milliseconds, times))
