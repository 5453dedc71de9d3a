"""How sure a comparison is: a paired bootstrap over sites. Knows arrays, no attempts.

Both sides of a comparison answered the same sites, so a resample draws sites, not answers: what makes a site slow or
hard for both cancels out.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
"""One number per site, shape (N,), or per resample and site, shape (B, N); nan where a site has none."""

Statistic = Callable[[Values], Values]
"""Reduces the last axis."""

NUM_RESAMPLES = 2000
COVERAGE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A value measured on all sites, and where 95 % of the resamples put it."""

    value: float
    low: float
    high: float

    def json(self) -> dict[str, float]:
        """Rounded to four digits."""
        return {"value": round(self.value, 4), "low": round(self.low, 4), "high": round(self.high, 4)}


def paired(
    ours: Values, theirs: Values, of: Statistic, join: Callable[[Values, Values], Values], *, seed: int
) -> Interval | None:
    """`join(of(ours), of(theirs))` and its percentile interval; None when it is no number on the sites themselves.

    Resamples on which it is no number (not one hit among them) are left out.
    """
    value = float(join(of(ours), of(theirs))) if len(ours) else np.nan
    if not np.isfinite(value):
        return None
    drawn = np.random.default_rng(seed).integers(0, len(ours), (NUM_RESAMPLES, len(ours)))
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled = join(of(ours[drawn]), of(theirs[drawn]))
    tail = 100 * (1 - COVERAGE) / 2
    low, high = np.percentile(resampled[np.isfinite(resampled)], [tail, 100 - tail]).tolist()
    return Interval(value, low, high)


def median(values: Values) -> Values:
    """Of the numbers among the values; nan where there are none."""
    ordered = np.sort(values, axis=-1)  # nan last
    num = np.count_nonzero(~np.isnan(values), axis=-1, keepdims=True)
    low, high = np.maximum(num - 1, 0) // 2, num // 2
    ends = [np.take_along_axis(ordered, np.minimum(i, values.shape[-1] - 1), axis=-1) for i in (low, high)]
    found: Values = np.where(num > 0, (ends[0] + ends[1]) / 2, np.nan)[..., 0]
    return found


def mean(values: Values) -> Values:
    """Of all values, none of them nan."""
    found: Values = values.mean(axis=-1)
    return found


def ratio(ours: Values, theirs: Values) -> Values:
    """How many times ours goes into theirs: of times, how many times faster we are."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.divide(theirs, ours), np.float64)


def difference(ours: Values, theirs: Values) -> Values:
    """Ours less theirs."""
    return np.asarray(ours - theirs, np.float64)
