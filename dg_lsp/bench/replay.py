"""Types real files again on a virtual clock: which items are shown and accepted, and how many keystrokes they save.

Nothing sleeps. A typing model gives the time of each key, and the model takes the time that it really needs. A key
changes the buffer, cancels the running request and starts the editor's debounce. An acceptance does the same, but the
next request is sent at once. A shown item stays while the keys match it. The user reads it for the reaction time while
typing goes on, and then accepts the part that is right; the key presses for that take no further time. Not modelled:
typing mistakes, closing brackets that an editor inserts, and users who wait for the model.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from dg_lsp.bench import metrics, typing_model
from dg_lsp.bench.contenders import attempt_for, attempt_of
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.runner import Run
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import LINE_END, Snapshot
from dg_lsp.engine import ttfue
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.remote_engine import RemoteEngine
from dg_lsp.engine.request import FillRequest

_PRESSED = (ttfue.AcceptedPart.WHOLE, ttfue.AcceptedPart.LINE, ttfue.AcceptedPart.WORDS)
"""Parts that a key press accepts."""
CANCELLED = "cancelled"
"""Rejection of an attempt whose request was cancelled by the next key."""


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """The start of a task."""

    task: typing_model.TypingTask


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """A key pressed by hand. Times are virtual milliseconds since the start of the task."""

    key: str
    at_ms: float
    item: str = ""  # the rest of an item that is still on the screen
    completes: str | None = None  # the case whose item was typed to its end by this key


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request, answered or cancelled by a change of the buffer. An item is not displayed while an older one stays."""

    attempt: metrics.Attempt
    at_ms: float
    is_displayed: bool
    is_line_finished: bool
    is_reversal: bool | None
    """True if it starts differently from the last item, which still matches the keys; None without such an item."""

    @property
    def is_cancelled(self) -> bool:
        """True if the buffer changed before the answer."""
        return self.attempt.rejection == CANCELLED


@dataclass(frozen=True, slots=True)
class AcceptEvent:
    """An item of a case accepted in whole or in part; by hand the text would take `num_keys`."""

    case: str
    text: str
    part: ttfue.AcceptedPart
    presses: int
    num_keys: int
    at_ms: float


Event = TaskEvent | KeyEvent | RequestEvent | AcceptEvent


class EngineCompleter:
    """Answers requests with an engine, which may still be busy with the step of a stale request.

    The model time of an attempt includes everything in the engine, because it delays the next request. Attempts of an
    earlier run are repeated with their times.
    """

    def __init__(
        self, engine: Engine, recorded: Iterable[metrics.Attempt] = (), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`clock` returns seconds; it is read around every step."""
        self.contender = engine.spec.name
        """The model, or the server if it has no name."""
        self._engine = engine
        self._recorded = {attempt.case: attempt for attempt in recorded}
        self._clock = clock
        self._is_remote = isinstance(engine, RemoteEngine)
        self._free_ms = 0.0

    def reset(self) -> None:
        """Starts a new task: the virtual clock is 0 again, and the model is idle."""
        self._free_ms = 0.0

    def answer(self, case: TestCase, request: FillRequest, at_ms: float, stale_ms: float) -> metrics.Attempt:
        """The attempt for a request at `at_ms`, from which its latency counts, before the buffer changes at `stale_ms`.

        The reference of the case is everything that will be typed after the cursor. A stale request stops after its
        current step.

        Raises:
            RequestError, BackendError: as the engine does.
        """
        begun = max(at_ms, self._free_ms)
        if attempt := self._recorded.get(case.id):
            self._free_ms = begun + attempt.model_ms if attempt.model_ms else self._free_ms
            return attempt
        num, spent_ms, result, start = 0, 0.0, None, self._clock()
        remaining_ms = self._engine.settings.deadline_ms - (begun - at_ms)
        steps = self._engine.run(request, deadline=time.monotonic() + remaining_ms / 1e3)
        try:
            while spent_ms < stale_ms - begun:
                next(steps)
                num, spent_ms = num + 1, 1e3 * (self._clock() - start)
            steps.close()
        except StopIteration as end:
            result, spent_ms = end.value, 1e3 * (self._clock() - start)
        self._free_ms = begun + spent_ms
        is_stale = result is None or self._free_ms >= stale_ms
        # the reference has as many lines as the item, at least one
        num_lines = 1 if result is None or is_stale else len(LINE_END.split(result.text))
        case = replace(case, reference="\n".join(LINE_END.split(case.reference)[:num_lines]))
        if result is None or is_stale:
            latency_ms = (self._free_ms if num else min(begun, stale_ms)) - at_ms
            costs = {"steps": None if self._is_remote else num, "tokens": 0, "prefill_ms": 0.0, "model_ms": spent_ms}
            decoder = request.decoder or self._engine.settings.decoder
            return attempt_for(case, self.contender, decoder, "", latency_ms, rejection=CANCELLED, **costs)
        attempt = attempt_of(result, case, self.contender, self._free_ms - at_ms, is_remote=self._is_remote)
        return replace(attempt, model_ms=spent_ms)


@dataclass(frozen=True, slots=True)
class Replay:
    """Tasks, and how they are typed."""

    tasks: Sequence[typing_model.TypingTask]
    typing: typing_model.TypingModel
    editor: typing_model.EditorModel
    seed: int = 0
    limit: int | None = None  # maximum number of requests for each file
    decoder: DecoderName | None = None  # none takes the setting

    @property
    def num_keys(self) -> int:
        """Keys of all tasks, typed by hand."""
        return sum(len(typing_model.split_keys(task.text)) for task in self.tasks)

    def run(self, completer: EngineCompleter) -> Iterator[Event]:
        """All events, task after task. Closing the generator stops the session."""
        requests: Counter[str] = Counter()
        for task in self.tasks:
            if self.limit is not None and requests[task.path] >= self.limit:
                continue
            completer.reset()
            yield TaskEvent(task)
            for event in _Session(self, task, completer).run():
                yield event
                requests[task.path] += isinstance(event, RequestEvent)
                if requests[task.path] == self.limit:
                    break


@dataclass(frozen=True, slots=True)
class _Item:
    case: str
    text: str  # the part after the cursor
    readable_ms: float  # from this time on it can be accepted
    is_visible: bool = True


class _Session:
    """One task from its first key to its last."""

    def __init__(self, replay: Replay, task: typing_model.TypingTask, completer: EngineCompleter) -> None:
        self._replay, self._task, self._completer = replay, task, completer
        self._matching = replay.editor.on_matching_key
        self._keys = typing_model.split_keys(task.text)
        self._delays = replay.typing.delays(self._keys, replay.seed)
        self._starts = (0, *accumulate(map(len, self._keys)))
        self._key_at = {start: number for number, start in enumerate(self._starts)}

    def run(self) -> Iterator[Event]:
        """Events in the order of the virtual clock."""
        debounce_ms = self._replay.editor.debounce_ms
        at_ms, done, wait = 0.0, 0, debounce_ms
        item: _Item | None = None
        while done < len(self._keys):
            key_ms = at_ms + self._delays[done]
            if item is None or self._matching is not typing_model.MatchingKey.KEEP:
                accepted = self._accepted(item, done)
                stale_ms = min(key_ms, accepted.at_ms) if accepted else key_ms
                if at_ms + wait < stale_ms:
                    event = self._request(done, at_ms + wait, stale_ms, item)
                    yield event
                    if event.is_displayed:
                        readable_ms = at_ms + wait + event.attempt.latency_ms + self._replay.typing.reaction_ms
                        item = _Item(event.attempt.case, event.attempt.text, readable_ms)
            accepted = self._accepted(item, done)
            if accepted and accepted.at_ms <= key_ms:
                yield accepted
                at_ms, done, wait, item = accepted.at_ms, done + accepted.num_keys, 0.0, None
            else:
                key = self._keys[done]
                completes = item.case if item and item.text == key else None
                item = self._after_key(item, key)
                yield KeyEvent(key, key_ms, item.text if item and item.is_visible else "", completes)
                at_ms, done, wait = key_ms, done + 1, debounce_ms

    def _request(self, done: int, at_ms: float, stale_ms: float, item: _Item | None) -> RequestEvent:
        task, start = self._task, self._starts[done]
        text, coming = task.head + task.text[:start], task.text[start:]
        lines = LINE_END.split(text)
        snapshot = Snapshot(task.path, done, text + task.tail, task.language)
        kind = "line-end" if lines[-1].strip() else "whole-line"
        case = TestCase(f"{task.path}:{len(lines)}:{len(lines[-1]) + 1}", kind, text, task.tail, coming)
        request = FillRequest(snapshot, len(text), decoder=self._replay.decoder, seed=self._replay.seed)
        attempt = self._completer.answer(case, request, at_ms, stale_ms)
        is_shown = bool(attempt.text)
        return RequestEvent(
            attempt,
            at_ms,
            is_displayed=is_shown and not (item and item.is_visible),
            is_line_finished=ttfue.is_line_finished(_first_line(coming)),
            is_reversal=_first_line(attempt.text) != _first_line(item.text) if item and is_shown else None,
        )

    def _accepted(self, item: _Item | None, done: int) -> AcceptEvent | None:
        """The acceptance of a visible item, if it saves key presses."""
        if item is None or not item.is_visible:
            return None
        start = self._starts[done]
        part = typing_model.accept(item.text, self._task.text[start:])
        num_keys = self._key_at.get(start + len(part.text), done) - done if part else 0
        if part is None or num_keys <= part.presses:
            return None
        return AcceptEvent(item.case, part.text, part.part, part.presses, num_keys, item.readable_ms)

    def _after_key(self, item: _Item | None, key: str) -> _Item | None:
        """The rest of the item, or None if the key does not match."""
        if item is None or not item.text.startswith(key) or item.text == key:
            return None
        is_visible = item.is_visible and self._matching is not typing_model.MatchingKey.DISMISS
        return replace(item, text=item.text[len(key) :], is_visible=is_visible)


def _first_line(text: str) -> str:
    return LINE_END.split(text, maxsplit=1)[0].rstrip()


def summarize_replay(events: Iterable[Event]) -> dict[str, Any]:
    """The numbers of all sessions as JSON values: times in milliseconds, shares between 0 and 1.

    They include the summary over all requests, in which a cancelled request is a miss.
    """
    listed = list(events)
    requests = [event for event in listed if isinstance(event, RequestEvent)]
    keys = [event for event in listed if isinstance(event, KeyEvent)]
    accepts = [event for event in listed if isinstance(event, AcceptEvent)]
    answered = [event for event in requests if not event.is_cancelled]
    finished = [event for event in answered if event.is_line_finished]
    hits = [event for event in requests if event.attempt.ttfue_ms is not None]
    edits = [event.attempt.ttfue_ms or 0.0 for event in hits if event.is_displayed]
    # answers with an item while the keys still matched the last item
    reversals = [event.is_reversal for event in requests if event.is_reversal is not None]
    accepted_cases = {event.case for event in accepts}
    by_hand = len(keys) + sum(event.num_keys for event in accepts)
    presses = sum(event.presses for event in accepts)
    chars_accepted = sum(len(event.text) for event in accepts)
    chars = sum(len(event.key) for event in keys) + chars_accepted
    num_displayed, num_quiet = sum(event.is_displayed for event in requests), sum(not e.attempt.text for e in finished)

    def model_ms(chosen: Iterable[RequestEvent]) -> float:
        return sum(event.attempt.model_ms or 0.0 for event in chosen)

    total_ms, wasted_ms = model_ms(requests), model_ms(e for e in requests if e.attempt.case not in accepted_cases)
    numbers = {
        "num_cancelled": len(requests) - len(answered),
        "answer_ms": ttfue.quantiles([event.attempt.latency_ms for event in answered]),
        "num_displayed": num_displayed,
        "num_accepted": {part.value: sum(event.part is part for event in accepts) for part in _PRESSED},
        "num_typed_through": sum(event.completes is not None for event in keys),
        "keys_by_hand": by_hand,
        "keys_typed": len(keys),
        "keys_accepting": presses,
        "chars": chars,
        "chars_accepted": chars_accepted,
        "num_finished_lines": len(finished),
        "num_quiet": num_quiet,
        "num_confirmable": len(reversals),
        "num_reversed": sum(reversals),
        "model_ms": total_ms,
        "wasted_ms": wasted_ms,
        "unshown_ms": model_ms(event for event in requests if not event.is_displayed),
        "keystrokes_saved": ttfue.share(by_hand - len(keys) - presses, by_hand),
        "chars_accepted_share": ttfue.share(chars_accepted, chars),
        "acceptance_rate": ttfue.share(len(accepts), num_displayed),
        "reversal_rate": ttfue.share(sum(reversals), len(reversals)),
        **ttfue.summarize_edits(len(requests), len(hits), num_quiet, len(finished), edits),
        "wasted_share": ttfue.share(wasted_ms, total_ms),
    }
    return {**metrics.summarize(event.attempt for event in requests), **ttfue.rounded(numbers)}


def replay_json(run: Run, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The object that `bench replay --json` prints; `numbers` are those of `summarize_replay`."""
    files = list(run.header.data)
    return {**run.facts(), "files": files, "length_knowledge": "none", **run.header.options, **numbers}


def replay_tables(run: Run, numbers: Mapping[str, Any]) -> list[metrics.Table]:
    """The numbers of `summarize_replay`, and summaries of the requests."""
    shares = {name: metrics.percent(value) for name, value in numbers.items() if isinstance(value, float)}
    accepted = ", ".join(f"{num} {part}" for part, num in numbers["num_accepted"].items())
    rows = (
        ("requests", f"{numbers['num']}, {numbers['num_cancelled']} of them cancelled by the next key"),
        ("TTFUE of hits", _quantiles(numbers["ttfue_ms"])),
        (
            "useful edits",
            f"{numbers['useful_edits']['num']:,} displayed items, {_quantiles(numbers['useful_edits'])}",
        ),
        ("useful by", ", ".join(f"{metrics.percent(part)} by {cut} ms" for cut, part in numbers["useful_by"].items())),
        ("misses", f"{shares['miss_rate']}, including cancelled requests and silence"),
        ("right", f"{shares['right_rate']} of the requests: useful, or silent where nothing was missing"),
        ("answered after", _quantiles(numbers["answer_ms"])),
        (
            "show rate",
            f"{shares['show_rate']} of the requests; {metrics.count(numbers['num_displayed'], 'item')} displayed",
        ),
        ("acceptance rate", f"{shares['acceptance_rate']} of the displayed items ({accepted})"),
        ("typed through", metrics.count(numbers["num_typed_through"], "item")),
        ("reversals between requests", f"{shares['reversal_rate']} of {numbers['num_confirmable']} answers"),
        ("quiet rate", f"{shares['quiet_rate']} of {numbers['num_finished_lines']} answers at ends of finished lines"),
        ("keystrokes saved", f"{shares['keystrokes_saved']} of {numbers['keys_by_hand']}"),
        ("characters accepted", f"{shares['chars_accepted_share']} of {numbers['chars']}"),
        ("model time", metrics.milliseconds(numbers["model_ms"])),
        ("wasted model time", f"{shares['wasted_share']}, of requests whose item was not accepted"),
        ("model time per useful edit", metrics.milliseconds(numbers["model_ms_per_useful"])),
    )
    table = metrics.Table("Typing with the model", ("measure", "value"), {"": rows})
    return [
        table,
        metrics.summary_table("Requests", metrics.by_kind(run.attempts)),
        *metrics.decoder_tables(run.attempts),
    ]


def assumptions(replay: Replay, selection: typing_model.Selection) -> Iterator[str]:
    """The typing and editor models, one sentence each."""
    typing, editor = replay.typing, replay.editor
    in_word, word, line = (ms / typing.speed for ms in (typing.in_word_ms, typing.word_start_ms, typing.line_start_ms))
    after = "nothing" if selection is typing_model.Selection.ONWARDS else "the rest of the file"
    yield f"Buffer: the text before the typed lines in the file, and {after} after the cursor."
    yield (
        f"Typing: log-normal, mean {in_word:.0f} ms in a word, {word:.0f} before a word, {line:.0f} before a line, "
        f"spread {typing.spread:g}; {typing.reaction_ms:.0f} ms to accept; seed {replay.seed}."
    )
    yield (
        f"Editor: sends a request {editor.debounce_ms:.0f} ms after a key, which no time below includes; "
        f"on a key that matches an item: {editor.on_matching_key}."
    )


def _quantiles(times: Mapping[str, float | None]) -> str:
    return f"p50 {metrics.milliseconds(times['p50'])}, p90 {metrics.milliseconds(times['p90'])}"
