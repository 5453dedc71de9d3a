"""One piece of work for the model's thread, and how it ends."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dg_lsp.engine.chat import ChatRequest
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest, Priority, RewriteRequest
from dg_lsp.engine.result import FillResult, Timings
from dg_lsp.postprocess.validate import Reason, Rejection
from dg_lsp.settings import FillSettings


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A request on its way through the worker."""

    request: FillRequest | RewriteRequest | ChatRequest
    deadline: float
    """`time.monotonic` seconds."""
    future: Future[Any]
    is_guess: bool = False
    """Nobody asked for it yet."""
    on_step: Callable[[Progress], None] | None = None
    settings: FillSettings | None = None
    """Of who asks, where several share the model; None takes the worker's."""

    @property
    def key(self) -> tuple[str, type]:
        """Of two jobs with the same key the newer one wins: a document's rewrite and its fills are apart."""
        request = self.request
        return request.name if isinstance(request, ChatRequest) else request.snapshot.uri, type(request)

    @property
    def priority(self) -> Priority:
        """Who goes first."""
        if self.is_guess:
            return Priority.GUESS
        if isinstance(self.request, FillRequest):
            return self.request.priority
        return Priority.CHAT if isinstance(self.request, ChatRequest) else Priority.REWRITE

    def steps(self, engine: Engine) -> Generator[Progress, None, Any]:
        """The work, a forward pass at a time."""
        if isinstance(self.request, RewriteRequest):
            return engine.rewrite(self.request, deadline=self.deadline)
        if isinstance(self.request, ChatRequest):
            return engine.chat(self.request, deadline=self.deadline)
        return engine.run(self.request, deadline=self.deadline)


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the model's thread so far."""

    all: float = 0.0
    stale: float = 0.0
    """For requests that were cancelled, by a newer one or by who asked."""
    guessing: float = 0.0
    """For fills that nobody had asked for yet."""


def cancel_stale(job: Job, stale: Sequence[Job], running: Job | None) -> None:
    """What this job takes the place of: older ones of the same key, and any guess."""
    for one in stale:
        one.future.cancel()
    if running is not None and (running.is_guess or running.key == job.key):
        running.future.cancel()


def settle(future: Future[Any], outcome: FillResult | Exception) -> None:
    """Ends a future unless somebody was faster: the model thread, the deadline and the client all may be."""
    with suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def settle_in(seconds: float, future: Future[Any]) -> None:
    """Ends it as unfinished at its deadline, whatever the model's thread is at."""
    timer = threading.Timer(seconds, lambda: settle(future, unfinished()))
    timer.daemon = True
    future.add_done_callback(lambda _: timer.cancel())
    timer.start()


def is_same(job: Job, asked: FillRequest | RewriteRequest | ChatRequest) -> bool:
    """But for the document's version, which nobody can guess."""
    guessed = job.request
    if not (isinstance(guessed, FillRequest) and isinstance(asked, FillRequest)):
        return False
    return replace(guessed, snapshot=asked.snapshot) == asked and guessed.snapshot.text == asked.snapshot.text


def unfinished() -> FillResult:
    """What is said at the deadline when the model never got to the request."""
    nothing = Timings(prefill=0.0, denoise=0.0, postprocess=0.0, total=0.0, predict=0.0)
    return FillResult("", (), (Rejection(Reason.UNFINISHED),), 0, 0, 0.0, 0, 0, nothing)


_OVERDUE = -1
"""More urgent than anything: it only has to say what it has."""


@dataclass(frozen=True, slots=True, eq=False)
class ActiveRun:
    """A job that has begun."""

    job: Job
    steps: Generator[Progress, None, Any]


class RequestQueue:
    """The most urgent first; of equally urgent ones those that were interrupted, then as they came.

    Not thread-safe: the worker guards it.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[str, type], Job] = OrderedDict()
        self._paused: list[ActiveRun] = []

    def __bool__(self) -> bool:
        return bool(self._waiting or self._paused)

    def add(self, job: Job) -> None:
        """The job waits from now on."""
        self._waiting[job.key] = job

    def pause(self, run: ActiveRun) -> None:
        """The run goes on later."""
        self._paused.append(run)

    def stale(self, key: tuple[str, type]) -> list[Job]:
        """What a new job of this key takes the place of; no longer waits, if it did."""
        waiting = self._waiting.pop(key, None)
        return [*([waiting] if waiting else []), *(run.job for run in self._paused if run.job.key == key)]

    def outranks(self, job: Job) -> bool:
        """Something here is to be done before this job, which runs."""
        priority = _priority(job)
        return any(other.priority < priority for other in self._waiting.values())

    def pop(self) -> Job | ActiveRun:
        """The next one; there has to be one."""
        run = min(self._paused, key=lambda one: _priority(one.job), default=None)
        job = min(self._waiting.values(), key=lambda one: one.priority, default=None)
        if job is None or (run is not None and _priority(run.job) <= job.priority):
            assert run is not None  # as promised
            self._paused.remove(run)
            return run
        return self._waiting.pop(job.key)

    def pop_ended(self) -> list[ActiveRun]:
        """Interrupted runs that nobody waits for any longer."""
        ended = [run for run in self._paused if run.job.future.done()]
        self._paused = [run for run in self._paused if run not in ended]
        return ended

    def clear(self) -> list[Job]:
        """All that waited; interrupted runs stay, for their own thread to end them."""
        jobs = [*self._waiting.values(), *(run.job for run in self._paused)]
        self._waiting.clear()
        return jobs


def _priority(job: Job) -> int:
    """Of a job that has begun."""
    return _OVERDUE if time.monotonic() >= job.deadline else job.priority
