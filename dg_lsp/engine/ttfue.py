"""Useful edits and the time to the first one (TTFUE): the definitions of docs/ttfue.md.

`bench` applies them to text that is known in advance, the language server to what the user leaves in the buffer.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any

import numpy as np

EVENT, VERSION = "ttfue", 1
"""Kind and version of the event record."""
CUTS = (50, 100, 250, 500, 1000)
"""Milliseconds at which the share of useful edits is reported."""
FOLLOW_SECONDS = 30.0
"""Time after which an edit must still be there."""
MAX_EDITS = 5000
"""Useful edits that are kept for the median of a day; the oldest go first."""


class AcceptedPart(StrEnum):
    """How much of an item was accepted."""

    WHOLE = "whole"
    LINE = "line"  # up to the end of one of its lines
    WORDS = "words"
    NONE = "none"


class Verdict(StrEnum):
    """The outcome of a request. Only `useful` is a hit, all others are misses."""

    USEFUL = "useful"  # the first line of a shown item is right
    PARTLY = "partly"  # a word of a shown item was accepted and is still there, but its first line is not right
    WRONG = "wrong"  # something else was shown
    QUIET = "quiet"  # nothing was shown, and nothing was missing: right, but no edit
    MISSED = "missed"  # nothing was shown where text was missing
    CANCELLED = "cancelled"
    FAILED = "failed"


def judge(items: Iterable[str], reference: str, *, is_word_kept: bool = False) -> Verdict:
    """The verdict of an answered request; the reference is what the user wrote from the position of the items on."""
    shown = list(items)
    if any(first_lines_match(item, reference) for item in shown):
        return Verdict.USEFUL
    if shown:
        return Verdict.PARTLY if is_word_kept else Verdict.WRONG
    return Verdict.QUIET if is_line_finished(reference) else Verdict.MISSED


def texts_match(text: str, reference: str) -> bool:
    """True if the lines are equal, without trailing blanks and trailing line ends."""
    return _lines(text) == _lines(reference)


def first_lines_match(text: str, reference: str) -> bool:
    """True if both start with the same line, without trailing blanks.

    If the reference starts with empty lines, everything up to its first line with text is compared. Nothing matches a
    blank reference.
    """
    lines = _lines(reference)
    length = next((number for number, line in enumerate(lines, start=1) if line), 0)
    return length > 0 and _lines(text)[:length] == lines[:length]


def is_line_finished(reference: str) -> bool:
    """True if nothing is missing in the line of the cursor."""
    return not _lines(reference)[0]


def _lines(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n").split("\n")


def summarize_times(num: int, hits: Sequence[float]) -> dict[str, Any]:
    """The numbers of `num` requests of which some had a useful item, after `hits` milliseconds."""
    return {
        "ttfue_ms": quantiles(hits),
        "useful_by": {str(cut): share(sum(ms <= cut for ms in hits), num) for cut in CUTS},
        "miss_rate": share(num - len(hits), num),
    }


def summarize_edits(num: int, num_hits: int, num_quiet: int, num_finished: int, edits: Sequence[float]) -> Any:
    """The numbers of silence and of displayed items: `edits` are the milliseconds of those that were useful.

    `num_finished` answers came where nothing was missing, and `num_quiet` of them showed nothing.
    """
    return {
        "right_rate": share(num_hits + num_quiet, num),
        "quiet_rate": share(num_quiet, num_finished),
        "useful_edits": {"num": len(edits), **quantiles(edits)},
    }


def quantile(values: Sequence[float], fraction: float) -> float | None:
    """Linear interpolation between the sorted values; None without values."""
    return float(np.quantile(values, fraction)) if values else None


def quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """Median `p50` and 90th percentile `p90`; None without values."""
    return {"p50": quantile(values, 0.5), "p90": quantile(values, 0.9)}


def share(part: float, whole: float) -> float:
    """`part / whole`; 0 if the whole is 0."""
    return part / whole if whole else 0.0


def rounded(tree: Any, digits: int = 4) -> Any:
    """The same JSON tree with rounded floats."""
    if isinstance(tree, Mapping):
        return {key: rounded(value, digits) for key, value in tree.items()}
    return round(tree, digits) if isinstance(tree, float) else tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The event record: what became of one inline completion request. Numbers and fixed words, no text."""

    event: str = EVENT
    version: int = VERSION
    time: str  # of arrival, UTC, ISO 8601
    request: str  # an id, that of the request's audit record
    model: str
    trigger: str  # `typed` or `invoked`
    verdict: str
    num_items: int = 0  # sent to the client
    answer_ms: float | None = None  # from arrival to departure; None without an answer
    accepted: str = AcceptedPart.NONE.value
    is_rest: bool = False  # the item is the rest of one that was displayed before, and counts as the same edit
    is_line_finished: bool = False  # nothing was missing in the line

    @property
    def ttfue_ms(self) -> float | None:
        """Departure of the first useful item; None for a miss."""
        return self.answer_ms if self.verdict == Verdict.USEFUL else None


class Usage:
    """Useful edits of all sessions of this process, in memory only. Any thread may call."""

    def __init__(self, today: Callable[[], date] = date.today) -> None:
        self._today = today
        self._lock = threading.Lock()
        self._edits = deque[tuple[date, float]](maxlen=MAX_EDITS)

    def add(self, outcome: Outcome) -> None:
        """Counts a useful edit, for the day on which it is known."""
        if outcome.ttfue_ms is not None and not outcome.is_rest:
            with self._lock:
                self._edits.append((self._today(), outcome.ttfue_ms))

    def edits_today(self) -> dict[str, Any]:
        """Number of useful edits since midnight, and their median time."""
        today = self._today()
        with self._lock:
            times = [ms for day, ms in self._edits if day == today]
        return {"usefulEdits": len(times), "medianMs": round(float(np.median(times)), 1) if times else None}
