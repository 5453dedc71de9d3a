"""The same sites by several ways in one run, and what the ways differ in. Knows no model.

The ways take turns site by site, in another order at each, so that a machine that gets slower meanwhile favours none.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dg_lsp.bench.execution import Runner, with_verdict
from dg_lsp.bench.intervals import Interval, Values, difference, mean, median, paired, ratio
from dg_lsp.bench.runs import RunFile
from dg_lsp.bench.sites import Site
from dg_lsp.bench.ways import Way
from dg_lsp.metrics.attempt import Attempt

BASELINE = "autoregressive"
ALL = "all"
"""All kinds of places together."""

WARM_UP = Site(
    "warm-up", "line-end", "def double(number):\n    return ", "\n\n\ndef half(number):\n    return number / 2\n", "x"
)


def compare(
    sites: Iterable[Site], ways: Sequence[Way], run: RunFile, *, seed: int = 0, sandbox: Runner | None = None
) -> None:
    """Has every way answer every site that it has not answered yet. An interruption keeps what is done.

    Raises:
        DgLspError: a way cannot go on.
    """
    for i, site in enumerate(sites):
        for way in ways if i == 0 else ():
            way.answer(WARM_UP)  # the first answer of all would pay for pages that are loaded once
        answers = [way.answer(site) for way in in_turn(ways, site, seed) if not run.has(site.id, way.name)]
        for attempt in answers:  # tests only now: between two answers they would slow the second down
            run.add(attempt if sandbox is None else with_verdict(attempt, site, sandbox))


def in_turn(ways: Sequence[Way], site: Site, seed: int) -> list[Way]:
    """The order at this site, the same whenever it is asked for."""
    order = list(ways)
    random.Random(f"{seed} {site.id}").shuffle(order)
    return order


@dataclass(frozen=True, slots=True)
class Contrast:
    """A way beside the baseline, over the sites of one kind that both have answered."""

    way: str
    baseline: str
    kind: str
    num: int
    latency: Interval | None
    """How many times shorter its median latency is."""
    ttfue: Interval | None
    """How many times shorter its median time to first useful edit is, each over its own hits."""
    ttfue_both: Interval | None
    """The same over the sites where both had something useful."""
    exact: Interval | None
    """Its share of exact matches less the baseline's."""
    model: Interval | None
    """How many times less model time it took."""

    def json(self) -> dict[str, Any]:
        """As plain JSON values."""
        intervals = {
            "latency_times_faster": self.latency,
            "ttfue_times_faster": self.ttfue,
            "ttfue_times_faster_where_both_useful": self.ttfue_both,
            "exact_match_difference": self.exact,
            "model_ms_times_less": self.model,
        }
        shown = {name: None if one is None else one.json() for name, one in intervals.items()}
        return {"way": self.way, "baseline": self.baseline, "kind": self.kind, "num": self.num, **shown}


def contrasts(attempts: Iterable[Attempt], baseline: str, *, seed: int = 0) -> tuple[Contrast, ...]:
    """Every other way beside the baseline, over all sites and by kind; nothing without the baseline."""
    by_way = by_ways(attempts)
    base = {attempt.site: attempt for attempt in by_way.pop(baseline, ())}
    found = []
    for way, listed in by_way.items():
        pairs = [(attempt, base[attempt.site]) for attempt in listed if attempt.site in base]
        kinds = sorted({ours.kind for ours, _ in pairs})
        for kind in [ALL, *(kinds if len(kinds) > 1 else ())]:
            chosen = [pair for pair in pairs if kind in (ALL, pair[0].kind)]
            if chosen:
                found.append(_contrast(way, baseline, kind, chosen, seed))
    return tuple(found)


def by_ways(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """In the order in which the ways first come."""
    found: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        found.setdefault(attempt.way, []).append(attempt)
    return found


def _contrast(way: str, baseline: str, kind: str, pairs: Sequence[tuple[Attempt, Attempt]], seed: int) -> Contrast:
    def both(value: Callable[[Attempt], float | None]) -> tuple[Values, Values]:
        """Shape (N,) each."""
        columns = np.array([[np.nan if (found := value(one)) is None else found for one in pair] for pair in pairs])
        return columns[:, 0], columns[:, 1]

    ttfue = both(lambda attempt: attempt.ttfue_ms)
    have_both = ~np.isnan(ttfue[0] + ttfue[1])
    return Contrast(
        way=way,
        baseline=baseline,
        kind=kind,
        num=len(pairs),
        latency=paired(*both(lambda attempt: attempt.latency_ms), median, ratio, seed=seed),
        ttfue=paired(*ttfue, median, ratio, seed=seed),
        ttfue_both=paired(ttfue[0][have_both], ttfue[1][have_both], median, ratio, seed=seed),
        exact=paired(*both(lambda attempt: float(attempt.is_exact)), mean, difference, seed=seed),
        model=paired(*both(lambda attempt: attempt.model_ms), mean, ratio, seed=seed),
    )
