"""Useful edits and the time to the first one (TTFUE): the definitions of docs/ttfue.md.

`bench` applies them to text that is known in advance, the language server to what the user leaves in the buffer.
"""

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from enum import StrEnum
from typing import Any, Self, TypeVar

import cattrs
import numpy as np

EVENT, VERSION = "ttfue", 1
"""Kind and version of the event record."""
CUTS = (50, 100, 250, 500, 1000)
"""Milliseconds at which the share of useful edits is reported."""
FOLLOW_SECONDS = 30.0
"""Time after which an edit must still be there."""
MAX_TIMES = 20_000
"""Useful requests of a day whose times are kept for its quantiles; the oldest go first."""


class AcceptedPart(StrEnum):
    """How much of an item was accepted."""

    WHOLE = "whole"
    LINE = "line"  # up to the end of one of its lines
    WORDS = "words"
    TYPED = "typed"  # typed by hand to its end
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
    head = _head(reference)
    return bool(head) and _head(text) == head


def is_line_finished(reference: str) -> bool:
    """True if nothing is missing in the line of the cursor."""
    return not _lines(reference)[0]


def _lines(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n").split("\n")


def _head(text: str) -> list[str]:
    """The lines up to the first one with text, which is included."""
    lines = _lines(text)
    return next((lines[: i + 1] for i, line in enumerate(lines) if line), [])


def cuts_of(ms: float) -> list[int]:
    """The `CUTS` by which a request with a useful item after `ms` milliseconds counts."""
    return [cut for cut in CUTS if ms <= cut]


def summarize_times(num: int, num_hits: int, num_by: Mapping[int, int], hits: Sequence[float]) -> dict[str, Any]:
    """The numbers of `num` requests of which `num_hits` had a useful item, after `hits` milliseconds.

    `num_by` counts the hits by `cuts_of`; of many hits, `hits` may have the last ones only.
    """
    return {
        "ttfue_ms": quantiles(hits),
        "useful_by": {str(cut): share(num_by.get(cut, 0), num) for cut in CUTS},
        "miss_rate": share(num - num_hits, num),
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


def rounded(tree: Any) -> Any:
    """The same JSON tree with floats rounded to four digits."""
    if isinstance(tree, dict):
        return {key: rounded(value) for key, value in tree.items()}
    return round(tree, 4) if isinstance(tree, float) else tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The event record: what became of one inline completion request. Numbers and fixed words, no text."""

    time: str  # of arrival, UTC, ISO 8601
    request: str  # an id, that of the request's audit record
    model: str
    trigger: str  # `typed` or `invoked`
    verdict: str
    num_items: int = 0  # sent to the client
    answer_ms: float | None = None  # from arrival to departure; None without an answer
    displayed_ms: float | None = None  # from arrival to the client's report; None if it reported none
    accepted: str = AcceptedPart.NONE.value
    is_reported: bool = False  # the client reported the acceptance; otherwise the buffer's changes showed it
    item_chars: int = 0  # of the accepted item, or of the first one
    accepted_chars: int = 0
    kept_chars: int = 0  # accepted characters that are still there at the end
    is_rest: bool = False  # the item is the rest of one that was displayed before, and counts as the same edit
    is_line_finished: bool = False  # nothing was missing in the line
    followed_seconds: float = 0.0  # since the first change after the answer; less than 30 if the document was closed

    @property
    def ttfue_ms(self) -> float | None:
        """Departure of the first useful item; None for a miss."""
        return self.answer_ms if self.verdict == Verdict.USEFUL else None

    def line(self) -> bytes:
        """The record as a line of the audit log."""
        tree = {"event": EVENT, "version": VERSION, **asdict(self)}
        tree = {name: round(value, 3) if type(value) is float else value for name, value in tree.items()}
        return json.dumps(tree, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, line: str | bytes) -> Self | None:
        """The record of a line; None for a record of another kind. Unknown keys are ignored.

        Raises:
            ValueError: the line is no record.
        """
        tree = json.loads(line)
        return parsed(tree, cls) if isinstance(tree, dict) and tree.get("event") == EVENT else None


Record = TypeVar("Record")


def parsed(tree: Any, kind: type[Record]) -> Record:
    """A record of a log from its JSON tree; unknown keys are ignored.

    Raises:
        ValueError: a key is missing, or a value is of another type.
    """
    try:
        return cattrs.structure(tree, kind)
    except cattrs.BaseValidationError as error:
        raise ValueError(f"no record: {cattrs.transform_error(error)[0]}") from error


class Tally:
    """Counts of followed requests, and the times of those with a useful item. Keeps none of the records."""

    def __init__(self, max_times: int | None = None) -> None:
        """With `max_times` the quantiles are those of the last times."""
        self.num_edits = 0
        self.edits: deque[float] = deque(maxlen=max_times)
        """Milliseconds of displayed items that were useful."""
        self._num = self._num_shown = self._num_finished = self._num_accepted = self._num_kept = 0
        self._verdicts: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._useful_by: Counter[int] = Counter()
        self._hits: deque[float] = deque(maxlen=max_times)

    def add(self, outcome: Outcome) -> None:
        """Counts one request."""
        self._num += 1
        self._num_shown += outcome.num_items > 0
        is_answered = outcome.verdict not in (Verdict.CANCELLED, Verdict.FAILED)
        self._num_finished += is_answered and outcome.is_line_finished
        self._num_accepted += outcome.accepted_chars
        self._num_kept += outcome.kept_chars
        self._verdicts[outcome.verdict] += 1
        self._accepted[outcome.accepted] += 1
        if (ms := outcome.ttfue_ms) is not None:
            self._hits.append(ms)
            self._useful_by.update(cuts_of(ms))
            if not outcome.is_rest:
                self.num_edits += 1
                self.edits.append(ms)

    def summary(self) -> dict[str, Any]:
        """The numbers, by the formulae of `bench replay`."""
        num, num_hits, num_quiet = self._num, self._verdicts[Verdict.USEFUL], self._verdicts[Verdict.QUIET]
        numbers: dict[str, Any] = {
            "num": num,
            **summarize_times(num, num_hits, self._useful_by, self._hits),
            "show_rate": share(self._num_shown, num),
            **summarize_edits(num, num_hits, num_quiet, self._num_finished, self.edits),
            "kept_rate": share(self._num_kept, self._num_accepted) if self._num_accepted else None,
            "verdicts": {one.value: self._verdicts[one] for one in Verdict},
            "accepted": {part.value: self._accepted[part] for part in AcceptedPart},
        }
        numbers["useful_edits"]["num"] = self.num_edits
        tree: dict[str, Any] = rounded(numbers)
        return tree


def summarize_outcomes(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """See `Tally.summary`."""
    tally = Tally()
    for outcome in outcomes:
        tally.add(outcome)
    return tally.summary()


class Usage:
    """Outcomes of all sessions of this process, in memory only. Any thread may call."""

    def __init__(self, today: Callable[[], date] = date.today) -> None:
        self._today = today
        self._lock = threading.Lock()
        self._day = today()
        self._tally = Tally(MAX_TIMES)
        self._median: float | None = None

    def add(self, outcome: Outcome) -> None:
        """Counts one outcome, for the day on which it is known."""
        with self._lock:
            self._start_day()
            self._tally.add(outcome)
            if outcome.ttfue_ms is not None and not outcome.is_rest:
                self._median = quantile(self._tally.edits, 0.5)

    def edits_today(self) -> dict[str, Any]:
        """Number of useful edits since midnight, and their median time: the part of the numbers for a status bar."""
        with self._lock:
            self._start_day()
            median = None if self._median is None else round(self._median, 1)
            return {"usefulEdits": self._tally.num_edits, "medianMs": median}

    def summary_today(self) -> dict[str, Any]:
        """The numbers since midnight, see `Tally.summary`."""
        with self._lock:
            self._start_day()
            return self._tally.summary()

    def _start_day(self) -> None:
        if (day := self._today()) != self._day:
            self._day, self._tally, self._median = day, Tally(MAX_TIMES), None
