"""Numbers to pixels, and the round numbers that are written along an axis."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` at pixel `start` to `high` at pixel `end`, which may be the smaller one."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """The pixel; values off the axis stand at its ends."""
        low, high, value = (math.log(max(v, 1e-9)) if self.is_log else v for v in (self.low, self.high, value))
        share = (min(max(value, low), high) - low) / (high - low)
        return self.start + share * (self.end - self.start)


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2.5 and 5 of every power of ten, from the last one at or under `low` to the first at or over `high`."""
    low, high = max(low, 1.0), max(high, 2.5)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in (1, 2.5, 5)]
    first = max(tick for tick in ticks if tick <= low * 1.0001)
    last = min(tick for tick in ticks if tick >= high * 0.9999 and tick > first)
    return [tick for tick in ticks if first <= tick <= last]


def share_ticks(highest: float) -> list[float]:
    """From 0 to a round share that is at least `highest`."""
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25) if step * 4 >= highest or step == 0.25)
    return [step * i for i in range(max(1, math.ceil(highest / step - 1e-9)) + 1)]


def bin_width(span: float, most: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that cuts `span` into at most `most` bins."""
    widths = (step * int(10**power) for power in range(9) for step in (1, 2, 5))
    return next(width for width in widths if span / width <= most)
