"""Numbers as a person reads them."""

import math


def percent(share: float | None, digits: int = 1) -> str:
    """`61.7 %`."""
    return "–" if share is None else f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def milliseconds(ms: float | None) -> str:
    """`8.4 ms`, `84 ms`, `1,240 ms`."""
    if ms is None:
        return "–"
    return f"{ms:,.{1 if ms < 9.95 else 0}f}\N{NO-BREAK SPACE}ms"


def count(number: int, noun: str) -> str:
    """`1 request`, `1,000 requests`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shortened(name: str, most: int) -> str:
    """As many characters at most, the last one `…` where some were left out."""
    return name if len(name) <= most else name[: most - 1] + "…"


def interval(share: float, num: int) -> str:
    """The 95% interval of a share of `num` (Wilson), in whole per cent: `58–65`."""
    low, high = wilson(share, num)
    return f"{100 * low:.0f}–{100 * high:.0f}"


def wilson(share: float, num: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval; all of 0 to 1 where nothing was counted."""
    if not num:
        return 0.0, 1.0
    scale = 1 + z * z / num
    centre = (share + z * z / (2 * num)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return max(0.0, centre - half), min(1.0, centre + half)
