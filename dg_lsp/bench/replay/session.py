"""Sessions on the virtual clock: a user types, an editor sends requests, and a model answers them.

A key changes the buffer, cancels the running request and starts the editor's debounce. An acceptance does the same,
but the next request is sent at once. A shown item stays while the keys match it. The user reads it for the reaction
time while typing goes on, and then accepts the part that is right; the key presses for that take no further time.
Not modelled: typing mistakes, closing brackets that an editor inserts, and users who wait for the model.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate

from dg_lsp.bench.contenders import attempt_for, attempt_of
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.metrics import Attempt
from dg_lsp.bench.replay.typing_model import EditorModel, MatchingKey, TypingModel, split_keys
from dg_lsp.bench.replay.typing_tasks import TypingTask
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import LINE_END, Snapshot, is_word
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.remote_engine import RemoteEngine
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult

CONTENDER = "replay"
CANCELLED = "cancelled"
"""Rejection of an attempt whose request was cancelled by the next key."""
_WORD = re.compile(r"[^\S\r\n]*(?:\w+|[^\w\s]+)")
"""What "accept next word" inserts: a word or a run of signs, with the blanks before it."""


class AcceptedPart(StrEnum):
    """How much of an item was accepted."""

    WHOLE = "whole"
    LINE = "line"
    WORDS = "words"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The beginning of an item that a user accepts."""

    text: str
    part: AcceptedPart
    presses: int
    """Key presses: one for the whole item or its first line, else one for each word or run of signs."""


def accept(item: str, coming: str) -> Acceptance | None:
    """What a user accepts before typing `coming`: the whole item, its first line, or as many words as are right."""
    if _is_right(item, coming):
        return Acceptance(item, AcceptedPart.WHOLE, 1)
    line = LINE_END.split(item, maxsplit=1)[0]
    if line != item and _is_right(line, coming):
        return Acceptance(line, AcceptedPart.LINE, 1)
    text, presses = "", 0
    for word in _WORD.findall(line):
        if not _is_right(text + word, coming):
            break
        text, presses = text + word, presses + 1
    return Acceptance(text, AcceptedPart.WORDS, presses) if any(map(is_word, text)) else None


def _is_right(text: str, coming: str) -> bool:
    """True if `coming` starts with `text`, which does not end inside a word."""
    cuts_word = is_word(text[-1:]) and is_word(coming[len(text) : len(text) + 1])
    return bool(text.strip()) and coming.startswith(text) and not cuts_word


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """A key pressed by hand. Times are virtual milliseconds since the start of the task."""

    key: str
    at_ms: float
    completes: str | None = None
    """The case whose item was typed to its end by this key."""


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request, answered or cancelled."""

    attempt: Attempt
    is_displayed: bool
    """True if the item came on the screen, which it does not while an older one stays."""
    is_line_finished: bool
    """True if nothing is missing on the line, so that any item is wrong."""
    is_reversal: bool | None
    """True if it starts differently from the last item, which still matches the keys; None without such an item."""

    @property
    def is_cancelled(self) -> bool:
        """True if the buffer changed before the answer."""
        return self.attempt.rejection == CANCELLED


@dataclass(frozen=True, slots=True)
class AcceptEvent:
    """An item accepted in whole or in part."""

    case: str
    """Of the request that brought the item."""
    text: str
    part: AcceptedPart
    presses: int
    num_keys: int
    """Keys that the text would take by hand."""
    at_ms: float


Event = KeyEvent | RequestEvent | AcceptEvent


@dataclass(frozen=True, slots=True, eq=False)
class TimedRequest:
    """A request of the editor, in virtual milliseconds."""

    case: TestCase
    """Its reference is everything that will be typed after the cursor."""
    request: FillRequest
    at_ms: float
    stale_ms: float
    """Time of the next change of the buffer."""


class EngineCompleter:
    """Answers requests with an engine, which may still be busy with the step of a stale request.

    The model time of an attempt includes everything in the engine, because it delays the next request. Attempts of an
    earlier run are repeated with their times.
    """

    def __init__(
        self, engine: Engine, recorded: Iterable[Attempt] = (), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`clock` returns seconds; it is read around every step."""
        self._engine = engine
        self._recorded = {attempt.case: attempt for attempt in recorded}
        self._clock = clock
        self._is_remote = isinstance(engine, RemoteEngine)
        self._free_ms = 0.0

    def reset(self) -> None:
        """Starts a new task: the virtual clock is 0 again, and the model is idle."""
        self._free_ms = 0.0

    def answer(self, timed: TimedRequest) -> Attempt:
        """The attempt; its latency counts from `at_ms`. A stale request stops after its current step.

        Raises:
            RequestError, BackendError: as the engine does.
        """
        begun = max(timed.at_ms, self._free_ms)
        if attempt := self._recorded.get(timed.case.id):
            self._free_ms = begun + attempt.model_ms if attempt.model_ms else self._free_ms
            return attempt
        if begun >= timed.stale_ms:
            return self._cancelled(timed, timed.stale_ms - timed.at_ms, model_ms=0.0, steps=0)
        remaining_ms = self._engine.settings.deadline_ms - (begun - timed.at_ms)
        start = self._clock()
        steps = self._engine.run(timed.request, deadline=time.monotonic() + remaining_ms / 1e3)
        num, result, spent_ms = self._run(steps, start, timed.stale_ms - begun)
        self._free_ms = begun + spent_ms
        latency_ms = self._free_ms - timed.at_ms
        if result is None or self._free_ms >= timed.stale_ms:
            return self._cancelled(timed, latency_ms, model_ms=spent_ms, steps=num)
        case = _with_reference(timed.case, result.text)
        attempt = attempt_of(result, case, CONTENDER, latency_ms, is_remote=self._is_remote)
        return replace(attempt, model_ms=spent_ms)

    def _run(
        self, steps: Generator[Progress, None, FillResult], start: float, limit_ms: float
    ) -> tuple[int, FillResult | None, float]:
        """Number of steps, the result unless the request became stale before, and milliseconds."""
        num, result = 0, None
        try:
            while 1e3 * (self._clock() - start) < limit_ms:
                next(steps)
                num += 1
            steps.close()
        except StopIteration as end:
            result = end.value
        return num, result, 1e3 * (self._clock() - start)

    def _cancelled(self, timed: TimedRequest, latency_ms: float, *, model_ms: float, steps: int) -> Attempt:
        case, decoder = _with_reference(timed.case, ""), timed.request.decoder or self._engine.settings.decoder
        costs = {"steps": None if self._is_remote else steps, "tokens": 0, "prefill_ms": 0.0, "model_ms": model_ms}
        return attempt_for(case, CONTENDER, decoder, "", latency_ms, rejection=CANCELLED, **costs)


def _with_reference(case: TestCase, text: str) -> TestCase:
    """The case with as many lines of its reference as the item has, at least one."""
    return replace(case, reference="\n".join(LINE_END.split(case.reference)[: len(LINE_END.split(text))]))


@dataclass(frozen=True, slots=True)
class Replay:
    """Tasks, and how they are typed."""

    tasks: Sequence[TypingTask]
    typing: TypingModel
    editor: EditorModel
    seed: int = 0
    limit: int | None = None
    """Maximum number of requests for each file."""
    decoder: DecoderName | None = None
    """None takes the setting."""

    @property
    def num_keys(self) -> int:
        """Keys of all tasks, typed by hand."""
        return sum(len(split_keys(task.text)) for task in self.tasks)

    def run(self, completer: EngineCompleter) -> Iterator[Event]:
        """All events, task after task. Closing the generator stops the session."""
        requests: Counter[str] = Counter()
        for task in self.tasks:
            if self.limit is not None and requests[task.path] >= self.limit:
                continue
            completer.reset()
            for event in _Session(self, task, completer).run():
                yield event
                requests[task.path] += isinstance(event, RequestEvent)
                if requests[task.path] == self.limit:
                    break


@dataclass(frozen=True, slots=True)
class _Item:
    case: str
    text: str
    """What is left of it after the cursor."""
    readable_ms: float
    """From this time on it can be accepted."""
    is_visible: bool = True


class _Session:
    """One task from its first key to its last."""

    def __init__(self, replay: Replay, task: TypingTask, completer: EngineCompleter) -> None:
        self._replay, self._task, self._completer = replay, task, completer
        self._matching = replay.editor.on_matching_key
        self._keys = split_keys(task.text)
        self._delays = replay.typing.delays(self._keys, replay.seed)
        self._starts = (0, *accumulate(map(len, self._keys)))
        self._key_at = {start: number for number, start in enumerate(self._starts)}

    def run(self) -> Iterator[Event]:
        """Events in the order of the virtual clock."""
        debounce_ms = self._replay.editor.debounce_ms
        now, done, wait = 0.0, 0, debounce_ms
        item: _Item | None = None
        while done < len(self._keys):
            key_ms = now + self._delays[done]
            if item is None or self._matching is not MatchingKey.KEEP:
                stale_ms = min(key_ms, self._accept_ms(item, done))
                if now + wait < stale_ms:
                    event = self._request(done, now + wait, stale_ms, item)
                    yield event
                    item = self._shown(event, now + wait) if event.is_displayed else item
            accepted = self._accepted(item, done) if item else None
            if accepted and accepted.at_ms <= key_ms:
                yield accepted
                now, done, wait, item = accepted.at_ms, done + accepted.num_keys, 0.0, None
            else:
                key = self._keys[done]
                yield KeyEvent(key, key_ms, item.case if item and item.text == key else None)
                item = self._after_key(item, key)
                now, done, wait = key_ms, done + 1, debounce_ms

    def _request(self, done: int, at_ms: float, stale_ms: float, item: _Item | None) -> RequestEvent:
        task, start = self._task, self._starts[done]
        text, coming = task.head + task.text[:start], task.text[start:]
        lines = LINE_END.split(text)
        snapshot = Snapshot(task.path, done, text + task.tail, task.language)
        kind = "line-end" if lines[-1].strip() else "whole-line"
        case = TestCase(f"{task.path}:{len(lines)}:{len(lines[-1]) + 1}", kind, text, task.tail, coming)
        request = FillRequest(snapshot, len(text), decoder=self._replay.decoder, seed=self._replay.seed)
        attempt = self._completer.answer(TimedRequest(case, request, at_ms, stale_ms))
        is_shown = bool(attempt.shown)
        return RequestEvent(
            attempt,
            is_displayed=is_shown and not (item and item.is_visible),
            is_line_finished=not _first_line(coming).strip(),
            is_reversal=_first_line(attempt.text) != _first_line(item.text) if item and is_shown else None,
        )

    def _shown(self, event: RequestEvent, at_ms: float) -> _Item:
        readable_ms = at_ms + event.attempt.latency_ms + self._replay.typing.reaction_ms
        return _Item(event.attempt.case, event.attempt.text, readable_ms)

    def _accept_ms(self, item: _Item | None, done: int) -> float:
        """Time of the acceptance, unless the item goes before."""
        return item.readable_ms if item and self._accepted(item, done) else math.inf

    def _accepted(self, item: _Item, done: int) -> AcceptEvent | None:
        """The acceptance of a visible item, if it saves key presses."""
        start = self._starts[done]
        part = accept(item.text, self._task.text[start:]) if item.is_visible else None
        num_keys = self._key_at.get(start + len(part.text), done) - done if part else 0
        if part is None or num_keys <= part.presses:
            return None
        return AcceptEvent(item.case, part.text, part.part, part.presses, num_keys, item.readable_ms)

    def _after_key(self, item: _Item | None, key: str) -> _Item | None:
        """What is left of the item, or None if the key does not match."""
        if item is None or not item.text.startswith(key) or item.text == key:
            return None
        is_visible = item.is_visible and self._matching is not MatchingKey.DISMISS
        return replace(item, text=item.text[len(key) :], is_visible=is_visible)


def _first_line(text: str) -> str:
    return LINE_END.split(text, maxsplit=1)[0].rstrip()
