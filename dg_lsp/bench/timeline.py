"""The timeline of a replay: what was on the screen at each key, and the verdict of each request.

The page plays it: a slider goes through the moments, and marks above it show where a request was a hit or a miss.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from dg_lsp.bench import metrics
from dg_lsp.bench.metrics import visible
from dg_lsp.bench.replay import AcceptEvent, Event, KeyEvent, RequestEvent, TaskEvent
from dg_lsp.engine.ttfue import Verdict

NUM_LINES = 12
"""Lines of the file before the first key and after the last one that the page contains."""
MAX_MOMENTS = 20_000
"""A page with more would be slow; the rest of the replay is left out, and the page reports it."""
MEANINGS = {
    Verdict.USEFUL: "The first line of the shown text is what was typed next.",
    Verdict.PARTLY: "Wrong in its first line, but a whole word of it was accepted.",
    Verdict.WRONG: "Something else was shown.",
    Verdict.QUIET: "Nothing was shown, and nothing was missing: the line was finished. Silence was right.",
    Verdict.MISSED: "Nothing was shown where text was missing.",
    Verdict.CANCELLED: "The next key came before the answer.",
    Verdict.FAILED: "An error.",
}
_SIGNS = {
    Verdict.USEFUL: "hit",
    Verdict.PARTLY: "partly",
    Verdict.WRONG: "miss",
    Verdict.QUIET: "quiet",
    Verdict.MISSED: "missed",
    Verdict.CANCELLED: "cancelled",
    Verdict.FAILED: "miss",
}
"""CSS class of the mark of each verdict."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The screen after one event."""

    at_ms: float
    typed: int  # UTF-16 units of the task's text before the cursor
    ghost: str
    event: str  # what happened, as a sentence
    verdict: Verdict | None = None  # of the request that was answered or cancelled


@dataclass(frozen=True, slots=True)
class Timeline:
    """One task, ready for display."""

    kind = "timeline"
    title: str
    head: str
    text: str
    tail: str
    moments: tuple[Moment, ...]
    num_omitted: int = 0

    @property
    def counts(self) -> dict[Verdict, int]:
        """Requests by verdict, in the order of `Verdict`."""
        counts = Counter(moment.verdict for moment in self.moments if moment.verdict)
        return {verdict: counts[verdict] for verdict in Verdict if counts[verdict]}

    @property
    def summary(self) -> str:
        """How many requests were right, as a sentence."""
        counts = self.counts
        num, hits, quiet = sum(counts.values()), counts.get(Verdict.USEFUL, 0), counts.get(Verdict.QUIET, 0)
        right = metrics.percent((hits + quiet) / num if num else None, 0)
        return f"{metrics.count(num, 'request')}: {right} right ({hits} useful, {quiet} rightly quiet)."

    def legend(self) -> Iterator[tuple[str, str, int, str]]:
        """Verdict, CSS class, number and meaning of each kind of request."""
        for verdict, num in self.counts.items():
            yield verdict.value, _SIGNS[verdict], num, MEANINGS[verdict]

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script reads."""
        rows = [
            (round(moment.at_ms), moment.typed, moment.ghost, moment.event, moment.verdict and moment.verdict.value)
            for moment in self.moments
        ]
        signs = {verdict.value: sign for verdict, sign in _SIGNS.items()}
        return {"head": self.head, "text": self.text, "tail": self.tail, "moments": rows, "signs": signs}


def timelines(events: Iterable[Event]) -> list[Timeline]:
    """One timeline for each task of the replay."""
    recorders: list[_Recorder] = []
    for event in events:
        if isinstance(event, TaskEvent):
            recorders.append(_Recorder(event))
        else:
            recorders[-1].add(event)
    return [recorder.timeline() for recorder in recorders]


@dataclass(slots=True)
class _Recorder:
    start: TaskEvent
    typed: int = 0
    ghost: str = ""
    pieces: list[str] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    num_omitted: int = 0
    cases: dict[str, int] = field(default_factory=dict)  # moments of the requests, by case

    def add(self, event: KeyEvent | RequestEvent | AcceptEvent) -> None:
        if isinstance(event, RequestEvent):
            self._add_request(event)
        elif isinstance(event, AcceptEvent):
            self._write(event.text)
            self.ghost = ""
            self._mark_accepted(event.case)
            keys = f"{event.presses} in place of {metrics.count(event.num_keys, 'key')}"
            self._append(event.at_ms, f"Accepted {_PARTS[event.part]}: {keys}.")
        else:
            self._write(event.key)
            self.ghost = event.item
            self._append(event.at_ms, f"Typed {_name(event.key)}.")

    def timeline(self) -> Timeline:
        task = self.start.task
        # the rest stays untyped where the number of requests was limited
        rest = visible(task.text[sum(map(len, self.pieces)) :])
        text = "".join(map(visible, self.pieces)) + rest
        head = "\n".join(visible(task.head).split("\n")[-NUM_LINES - 1 :])
        tail = "\n".join(visible(task.tail).split("\n")[: NUM_LINES + 1])
        first, last = task.lines
        title = f"{visible(task.path)}, {f'line {first}' if first == last else f'lines {first} to {last}'}"
        return Timeline(title, head, text, tail, tuple(self.moments), self.num_omitted)

    def _add_request(self, event: RequestEvent) -> None:
        attempt = event.attempt
        verdict = event.verdict
        if event.is_displayed:
            self.ghost = attempt.text
        after = f"after {metrics.milliseconds(attempt.latency_ms)}"
        if event.is_cancelled:
            sentence = f"The request was cancelled {after} by the next key."
        elif attempt.text and not event.is_displayed:
            sentence = f"Answered {after}: {_quoted(attempt.text)}; the text on the screen stayed."
        elif attempt.text:
            sentence = f"Shown {after}."
        else:
            sentence = f"Answered {after}: nothing ({attempt.rejection or 'no text'})."
        self.cases[attempt.case] = len(self.moments)
        self._append(event.at_ms + attempt.latency_ms, sentence, verdict)

    def _mark_accepted(self, case: str) -> None:
        """A wrong item of which words were accepted was partly right."""
        number = self.cases.get(case, len(self.moments))
        if number < len(self.moments) and self.moments[number].verdict is Verdict.WRONG:
            self.moments[number] = replace(self.moments[number], verdict=Verdict.PARTLY)

    def _write(self, text: str) -> None:
        self.pieces.append(text)
        self.typed += len(visible(text).encode("utf-16-le")) // 2

    def _append(self, at_ms: float, event: str, verdict: Verdict | None = None) -> None:
        if len(self.moments) == MAX_MOMENTS:
            self.num_omitted += 1
        else:
            self.moments.append(Moment(at_ms, self.typed, visible(self.ghost), visible(event), verdict))


_PARTS = {"whole": "all of it", "line": "its first line", "words": "its first words"}
_KEYS = {" ": "a blank", "\t": "a tab"}


def _name(key: str) -> str:
    return "a line end" if key[:1] in "\r\n" else _KEYS.get(key, f"“{key}”")


def _quoted(text: str) -> str:
    return f"“{metrics.shorten(text, 60)}”"
