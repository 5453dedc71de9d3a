"""Types real files again on a virtual clock: which items are shown and accepted, and how many keystrokes they save.

Nothing sleeps. A typing model gives the time of each key, and the model takes the time that it really needs. A key
changes the buffer, cancels the running request and starts the editor's debounce. An acceptance does the same, but the
next request is sent at once. A shown item stays while the keys match it, as in VS Code. The user reads it for the
reaction time while typing goes on, and then accepts the part that is right; the key presses for that take no further
time. Not modelled: typing mistakes, closing brackets that an editor inserts, and users who wait for the model.

Times between keys are log-normal, which fits measured ones well (González, Calot, Ierache and Hasperué, "On the shape
of timings distributions in free-text keystroke dynamics profiles", Heliyon 7, 2021). The mean within a line is that of
Dhakal, Feit, Kristensson and Oulasvirta, "Observations on Typing from 136 Million Keystrokes", CHI 2018: 239 ms over
168,000 people. Pauses before words and lines are longer in all studies; their length for code, and the spread, are
assumptions of this module and are printed with the results.
"""

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from dg_lsp.bench import metrics
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.runner import attempt_for, attempt_of
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import LINE_END, is_word
from dg_lsp.engine import ttfue
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.remote_engine import RemoteEngine
from dg_lsp.engine.request import FillRequest, FillResult
from dg_lsp.engine.ttfue import AcceptedPart
from dg_lsp.errors import RequestError

_KEY = re.compile(r"(?:\r\n|\r|\n)[ \t]*|.", re.DOTALL)
_WORD = re.compile(r"[^\S\r\n]*(?:\w+|[^\w\s]+)")
"""Text that "accept next word" inserts: a word or a run of signs, with the blanks before it."""
_PRESSED = (AcceptedPart.WHOLE, AcceptedPart.LINE, AcceptedPart.WORDS)
"""Parts that a key press accepts."""
CANCELLED, FAILED = "cancelled", "failed"
"""Rejections of an attempt whose request was cancelled by the next key, or could not be served."""


# the user and the editor


@dataclass(frozen=True, slots=True)
class TypingModel:
    """Milliseconds before a key: log-normal, with a mean that depends on the position of the key."""

    in_word_ms: float = 222.0
    """Also before blanks and punctuation. With every sixth key at the start of a word, the mean is 239 ms."""
    word_start_ms: float = 325.0
    line_start_ms: float = 1500.0
    spread: float = 0.5  # standard deviation of the logarithm
    speed: float = 1.0  # divides all times between keys
    reaction_ms: float = 380.0
    """Time to accept a shown item: 100 ms to see, three times 70 to decide and 70 to press (Card, Moran and Newell,
    "The Psychology of Human-Computer Interaction", 1983, matching a known name)."""

    debounce_ms: float = 50.0
    """From a key to the editor's request: VS Code waits at least 50 ms, Neovim 0.12 200, llama.vim 0."""

    def delays(self, keys: Sequence[str], seed: int) -> tuple[float, ...]:
        """Milliseconds before each key, the same for the same keys and seed."""
        rng = random.Random(f"{seed} {''.join(keys)}")
        median = -(self.spread**2) / 2  # of the logarithm, so that the mean is 1
        return tuple(
            self._mean(before, key) * rng.lognormvariate(median, self.spread) / self.speed
            for before, key in pairwise(("\n", *keys))
        )

    def _mean(self, before: str, key: str) -> float:
        if before[0] in "\r\n":
            return self.line_start_ms
        return self.word_start_ms if is_word(key) and not is_word(before) else self.in_word_ms


def split_keys(text: str) -> tuple[str, ...]:
    """Text of each key press: a character, or a line end with the next indentation, which editors insert."""
    return tuple(_KEY.findall(text))


@dataclass(frozen=True, slots=True)
class AcceptedText:
    """The beginning of an item that a user accepts, with one key press for all of it or its first line, or per word."""

    text: str
    part: AcceptedPart
    presses: int


def accept(item: str, coming: str) -> AcceptedText | None:
    """The part of an item that a user accepts before typing `coming`: all, the first line, or the right words."""
    if _is_right(item, coming):
        return AcceptedText(item, AcceptedPart.WHOLE, 1)
    line = LINE_END.split(item, maxsplit=1)[0]
    if line != item and _is_right(line, coming):
        return AcceptedText(line, AcceptedPart.LINE, 1)
    text = ""
    presses = 0
    for word in _WORD.findall(line):
        if not _is_right(text + word, coming):
            break
        text += word
        presses += 1
    return AcceptedText(text, AcceptedPart.WORDS, presses) if any(map(is_word, text)) else None


def _is_right(text: str, coming: str) -> bool:
    """True if `coming` starts with `text`, which does not end inside a word."""
    cuts_word = is_word(text[-1:]) and is_word(coming[len(text) : len(text) + 1])
    return bool(text.strip()) and coming.startswith(text) and not cuts_word


@dataclass(frozen=True, slots=True)
class TypingTask:
    """A part of a file; `head + text + tail` is the file. The tail is after the cursor all the time."""

    path: str
    language: str
    head: str  # in the buffer before the first key, including the indentation of the first line
    text: str
    tail: str


# the replay


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """A key pressed by hand. Times are virtual milliseconds since the start of the task."""

    key: str
    at_ms: float
    item: str = ""  # the rest of an item that is still on the screen
    num_keys: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request and what became of it. An item is not displayed while an older one stays."""

    attempt: metrics.Attempt
    at_ms: float
    is_displayed: bool
    is_line_finished: bool
    num_keys: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class AcceptEvent(AcceptedText):
    """An item of a case accepted in whole or in part; by hand the text would take `num_keys`."""

    case: str
    num_keys: int
    at_ms: float


Event = KeyEvent | RequestEvent | AcceptEvent


@dataclass(frozen=True, slots=True)
class Replay:
    """Tasks, and how they are typed."""

    tasks: Sequence[TypingTask]
    typing: TypingModel
    seed: int = 0
    limit: int | None = None  # maximum number of requests for each file
    decoder: DecoderName | None = None  # none takes the setting
    clock: Callable[[], float] = time.perf_counter
    """Returns seconds; it is read around every step."""

    @property
    def num_keys(self) -> int:
        """Keys of all tasks, typed by hand."""
        return sum(len(split_keys(task.text)) for task in self.tasks)

    def run(self, engine: Engine) -> Iterator[Event]:
        """All events, task after task. Closing the generator stops the session."""
        for task in self.tasks:
            num_requests = 0
            for event in Session(self, task, engine).run():
                yield event
                num_requests += isinstance(event, RequestEvent)
                if num_requests == self.limit:
                    break


@dataclass(frozen=True, slots=True)
class _Item:
    case: str
    text: str  # the part after the cursor
    readable_ms: float  # from this time on it can be accepted


class Session:
    """One task from its first key to its last, beside an engine that is idle at first.

    The engine may still be busy with the step of a stale request. The model time of an attempt includes everything in
    the engine, because it delays the next request.
    """

    def __init__(self, replay: Replay, task: TypingTask, engine: Engine) -> None:
        self._replay = replay
        self._task = task
        self._engine = engine
        self._is_remote = isinstance(engine, RemoteEngine)
        self._free_ms = 0.0  # from this virtual time on the model is idle
        self._is_served = False  # a step was made, so the model and the options are not to blame for a failure
        self._keys = split_keys(task.text)
        self._delays = replay.typing.delays(self._keys, replay.seed)
        self._starts = (0, *accumulate(map(len, self._keys)))
        self._key_at = {start: number for number, start in enumerate(self._starts)}

    def run(self) -> Iterator[Event]:
        """Events in the order of the virtual clock."""
        typing = self._replay.typing
        at_ms = 0.0
        num_done = 0
        wait_ms = typing.debounce_ms
        item: _Item | None = None
        while num_done < len(self._keys):
            key_ms = at_ms + self._delays[num_done]
            request_ms = at_ms + wait_ms
            accepted = self._accepted(item, num_done)
            stale_ms = min(key_ms, accepted.at_ms) if accepted else key_ms
            if request_ms < stale_ms:
                event = self._request(num_done, request_ms, stale_ms, item)
                yield event
                if event.is_displayed:
                    readable_ms = request_ms + event.attempt.latency_ms + typing.reaction_ms
                    item = _Item(event.attempt.case, event.attempt.text, readable_ms)
            accepted = self._accepted(item, num_done)
            if accepted and accepted.at_ms <= key_ms:
                yield accepted
                at_ms = accepted.at_ms
                num_done += accepted.num_keys
                wait_ms = 0.0
                item = None
            else:
                key = self._keys[num_done]
                is_matching = item is not None and item.text.startswith(key) and item.text != key
                item = replace(item, text=item.text[len(key) :]) if item and is_matching else None
                yield KeyEvent(key, key_ms, item.text if item else "")
                at_ms = key_ms
                num_done += 1
                wait_ms = typing.debounce_ms

    def _request(self, num_done: int, at_ms: float, stale_ms: float, item: _Item | None) -> RequestEvent:
        task = self._task
        start = self._starts[num_done]
        text = task.head + task.text[:start]
        coming = task.text[start:]
        lines = LINE_END.split(text)
        name = f"{task.path}:{len(lines)}:{len(lines[-1]) + 1}"
        case = TestCase(name, "typed", text, task.tail, coming, path=task.path, language=task.language)
        attempt = self.answer(case, at_ms, stale_ms)
        rest_of_line = LINE_END.split(coming, maxsplit=1)[0].rstrip()
        return RequestEvent(
            attempt,
            at_ms,
            is_displayed=bool(attempt.text) and item is None,
            is_line_finished=ttfue.is_line_finished(rest_of_line),
        )

    def answer(self, case: TestCase, at_ms: float, stale_ms: float) -> metrics.Attempt:
        """The attempt for a request at `at_ms`, from which its latency counts, before the buffer changes at `stale_ms`.

        The reference of the case is everything that will be typed after the cursor. A stale request stops after its
        current step.

        Raises:
            RequestError: the model takes not even the first request. A later one has failed then.
            BackendError: as the engine does.
        """
        engine = self._engine
        begun = max(at_ms, self._free_ms)
        num = 0
        spent_ms = 0.0
        rejection = CANCELLED
        result: FillResult | None = None
        request = FillRequest(case.snapshot, case.offset, decoder=self._replay.decoder, seed=self._replay.seed)
        start = self._replay.clock()
        remaining_ms = engine.settings.deadline_ms - (begun - at_ms)
        steps = engine.complete(request, deadline=time.monotonic() + remaining_ms / 1e3)
        try:
            while spent_ms < stale_ms - begun:
                next(steps)
                self._is_served = True
                num += 1
                spent_ms = 1e3 * (self._replay.clock() - start)
            steps.close()
        except StopIteration as end:
            result = end.value
            self._is_served = True
            spent_ms = 1e3 * (self._replay.clock() - start)
        except RequestError:
            if not self._is_served:
                raise
            rejection = FAILED
        self._free_ms = begun + spent_ms
        if self._free_ms >= stale_ms:
            result = None
        # the reference has as many lines as the item, at least one
        num_lines = 1 if result is None else len(LINE_END.split(result.text))
        case = replace(case, reference="\n".join(LINE_END.split(case.reference)[:num_lines]))
        if result is not None:
            result = replace(result, hidden=())  # which an editor does not display
            latency_ms = self._free_ms - at_ms
            attempt = attempt_of(result, case, engine.spec.name, latency_ms, is_remote=self._is_remote)
            return replace(attempt, model_ms=spent_ms)
        latency_ms = (self._free_ms if num else min(begun, stale_ms)) - at_ms
        decoder = self._replay.decoder or engine.settings.decoder
        attempt = attempt_for(case, engine.spec.name, decoder, "", latency_ms, rejection)
        num_steps = None if self._is_remote else num
        return replace(attempt, steps=num_steps, tokens=0, prefill_ms=0.0, model_ms=spent_ms)

    def _accepted(self, item: _Item | None, num_done: int) -> AcceptEvent | None:
        """The acceptance of an item, if it saves key presses."""
        if item is None:
            return None
        start = self._starts[num_done]
        part = accept(item.text, self._task.text[start:])
        num_keys = self._key_at.get(start + len(part.text), num_done) - num_done if part else 0
        if part is None or num_keys <= part.presses:
            return None
        return AcceptEvent(part.text, part.part, part.presses, item.case, num_keys, item.readable_ms)


def summarize_replay(events: Iterable[Event]) -> dict[str, Any]:
    """The numbers of all sessions as JSON values: times in milliseconds, shares between 0 and 1.

    They include the summary over all requests, in which a cancelled request is a miss.
    """
    listed = list(events)
    requests = [event for event in listed if isinstance(event, RequestEvent)]
    keys = [event for event in listed if isinstance(event, KeyEvent)]
    accepts = [event for event in listed if isinstance(event, AcceptEvent)]
    answered = [event for event in requests if event.attempt.rejection not in (CANCELLED, FAILED)]
    finished = [event for event in answered if event.is_line_finished]
    hits = [event for event in requests if event.attempt.ttfue_ms is not None]
    edits = [event.attempt.ttfue_ms or 0.0 for event in hits if event.is_displayed]
    accepted_cases = {event.case for event in accepts}
    by_hand = sum(event.num_keys for event in listed)
    presses = sum(event.presses for event in accepts)
    num_displayed = sum(event.is_displayed for event in requests)
    num_quiet = sum(not event.attempt.text for event in finished)
    total_ms = sum(event.attempt.model_ms or 0.0 for event in requests)
    wasted_ms = sum(event.attempt.model_ms or 0.0 for event in requests if event.attempt.case not in accepted_cases)
    numbers = {
        "num_cancelled": sum(event.attempt.rejection == CANCELLED for event in requests),
        "answer_ms": ttfue.quantiles([event.attempt.latency_ms for event in answered]),
        "num_displayed": num_displayed,
        "num_accepted": {part.value: sum(event.part is part for event in accepts) for part in _PRESSED},
        "keys_by_hand": by_hand,
        "keys_typed": len(keys),
        "keys_accepting": presses,
        "model_ms": total_ms,
        "wasted_ms": wasted_ms,
        "keystrokes_saved": ttfue.share(by_hand - len(keys) - presses, by_hand),
        "acceptance_rate": ttfue.share(len(accepts), num_displayed),
        **ttfue.summarize_edits(len(requests), len(hits), num_quiet, len(finished), edits),
        "wasted_share": ttfue.share(wasted_ms, total_ms),
    }
    return {**metrics.summarize(event.attempt for event in requests), **ttfue.rounded(numbers)}


def assumptions(replay: Replay) -> Iterator[str]:
    """What a reader of the numbers needs, one sentence each."""
    after = "the rest of the file" if any(task.tail for task in replay.tasks) else "nothing"
    model = ", ".join(f"{name} {value:g}" for name, value in asdict(replay.typing).items())
    yield f"Buffer: the text before the typed lines in the file, and {after} after the cursor."
    yield f"Typing: {model}; seed {replay.seed}. No time below includes the debounce."
