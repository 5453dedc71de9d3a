"""Many attempts in a few numbers. A miss stays a miss: it is left out of no share."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dg_lsp.metrics.attempt import Attempt

CUTS = (50, 100, 250, 500, 1000)
"""Milliseconds at which the useful-by curve is read."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of times in milliseconds; None where there was nothing to measure."""

    p50: float | None
    p90: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> "Quantiles":
        """Median and 90th percentile."""
        ordered = sorted(values)
        return cls(percentile(ordered, 0.5), percentile(ordered, 0.9)) if ordered else cls(None, None)

    def json(self) -> dict[str, float | None]:
        """Rounded to a microsecond."""
        return {"p50": _rounded(self.p50), "p90": _rounded(self.p90)}


@dataclass(frozen=True, slots=True)
class Summary:
    """All shares are 0 to 1 and count over all attempts unless they say otherwise."""

    num: int
    exact_match: float
    first_line_match: float
    """Of the final text."""
    pass_at_1: float | None
    """Over the attempts whose tests were run; None when there are none."""
    ttfue_ms: Quantiles
    """Over hits."""
    useful_by: dict[int, float]
    """By milliseconds since the request: the share that had a useful item by then."""
    miss_rate: float
    """Nothing useful was ever shown."""
    show_rate: float
    reversal_rate: float
    """Over the attempts that showed something."""
    latency_ms: Quantiles
    """Over all attempts, whatever came of them."""
    steps_mean: float | None
    """Over the attempts whose steps are known; None where no server says how many it took."""
    tokens_per_forward: float | None
    """Over the same attempts together."""
    model_ms_per_useful: float | None
    """All model time, that of misses included, over the useful edits; None when there are none, or it is not known."""

    def json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "num": self.num,
            "exact_match": _rounded(self.exact_match),
            "first_line_match": _rounded(self.first_line_match),
            "pass_at_1": _rounded(self.pass_at_1),
            "ttfue_ms": self.ttfue_ms.json(),
            "useful_by": {str(cut): _rounded(share) for cut, share in self.useful_by.items()},
            "miss_rate": _rounded(self.miss_rate),
            "show_rate": _rounded(self.show_rate),
            "reversal_rate": _rounded(self.reversal_rate),
            "latency_ms": self.latency_ms.json(),
            "steps_mean": _rounded(self.steps_mean),
            "tokens_per_forward": _rounded(self.tokens_per_forward),
            "model_ms_per_useful": _rounded(self.model_ms_per_useful),
        }


def summarize(attempts: Iterable[Attempt], cuts: Sequence[int] = CUTS) -> Summary:
    """The numbers of these attempts; of none at all, zeros and Nones."""
    listed = list(attempts)
    hits = [attempt.ttfue_ms for attempt in listed if attempt.ttfue_ms is not None]
    shown = [attempt for attempt in listed if attempt.shown]
    tested = [attempt for attempt in listed if attempt.passes is not None]
    passes = [(attempt.steps, attempt.tokens or 0) for attempt in listed if attempt.steps is not None]
    model_ms = [attempt.model_ms for attempt in listed if attempt.model_ms is not None]
    steps = sum(num for num, _ in passes)
    is_seen = bool(passes) or not listed
    return Summary(
        num=len(listed),
        exact_match=_share(sum(attempt.is_exact for attempt in listed), len(listed)),
        first_line_match=_share(sum(attempt.is_first_line for attempt in listed), len(listed)),
        pass_at_1=_share(sum(bool(attempt.passes) for attempt in tested), len(tested)) if tested else None,
        ttfue_ms=Quantiles.of(hits),
        useful_by={cut: _share(sum(ms <= cut for ms in hits), len(listed)) for cut in cuts},
        miss_rate=_share(len(listed) - len(hits), len(listed)),
        show_rate=_share(len(shown), len(listed)),
        reversal_rate=_share(sum(attempt.is_reversed for attempt in shown), len(shown)),
        latency_ms=Quantiles.of(attempt.latency_ms for attempt in listed),
        steps_mean=_share(steps, len(passes)) if is_seen else None,
        tokens_per_forward=_share(sum(num for _, num in passes), steps) if is_seen else None,
        model_ms_per_useful=sum(model_ms) / len(hits) if hits and len(model_ms) == len(listed) else None,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value under which `share` of the ascending values lie, interpolated between neighbours.

    Raises:
        ValueError: no values.
    """
    if not ordered:
        raise ValueError("a percentile of nothing")
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
