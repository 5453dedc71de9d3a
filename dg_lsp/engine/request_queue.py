"""Requests that wait for a model thread: the most urgent first, the newest of a document alone.

The models of one process share its memory, which is counted for one model at a time, and the processor or GPU.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from dg_lsp.engine.decoders.base import PendingPass, Progress
from dg_lsp.engine.request import (
    ChatRequest,
    EngineRequest,
    FillRequest,
    Priority,
    RefreshRequest,
    RewriteRequest,
    WarmUpRequest,
)
from dg_lsp.settings import CompletionSettings

Key = tuple[Hashable, str, type]
"""Client, document or conversation, and kind of request: rewrites and fills do not replace each other."""
OnStep = Callable[[Progress], None]
Request = FillRequest | RewriteRequest | ChatRequest


class SchedulerListener(Protocol):
    """Receives the events of the requests of one client, on any thread; it must be quick and raise nothing."""

    def finished(self, request: EngineRequest[Any], outcome: Future[Any], seconds: float) -> None:
        """A request has ended so many seconds after its arrival."""


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the scheduler."""

    request: Request | RefreshRequest | WarmUpRequest
    deadline: float  # `time.monotonic` seconds
    settings: CompletionSettings
    on_step: OnStep | None = None
    future: Future[Any] = field(default_factory=Future)
    steps: Generator[Progress, None, Any] | None = None  # the rest of the work; None before it begins
    is_joinable: bool = True  # its passes may be computed together with those of another job
    seconds: float = 0.0  # of the model thread for the job that are not counted yet
    num_passes: int = 0  # since it was resumed, those of its prompt left out
    next_pass: PendingPass | None = None

    @classmethod
    def of(cls, request: Request, settings: CompletionSettings, on_step: OnStep | None = None) -> "Job":
        """A job that arrives now."""
        deadline = time.monotonic() + (request.deadline_ms or settings.deadline_ms) / 1e3
        return cls(request, deadline, settings, on_step)

    @property
    def key(self) -> Key:
        """Of two jobs with the same key the newer one wins."""
        return self.request.client, self.request.subject, type(self.request)

    @property
    def priority(self) -> int:
        """The request's; a job that has begun and is overdue comes first, to return what it has."""
        return -1 if self.steps and time.monotonic() >= self.deadline else self.request.priority

    @property
    def is_speculative(self) -> bool:
        """No client has requested it yet."""
        return self.request.priority is Priority.SPECULATION


class RequestQueue:
    """The most urgent first; of equal ones those that were interrupted, then in order of arrival.

    Interrupted jobs leave only by `pop` and `pop_done`, for the model thread to close their steps. Not thread-safe.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []

    def __bool__(self) -> bool:
        return bool(self._jobs)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs."""
        return tuple(self._jobs)

    def add(self, job: Job) -> None:
        """Lets the job wait."""
        self._jobs.append(job)

    def pop(self) -> Job:
        """The next one; the queue must not be empty."""
        job = min(self._jobs, key=lambda job: (job.priority, job.steps is None))
        self._jobs.remove(job)
        return job

    def pop_beside(self, running: Job) -> Job | None:
        """The next job that may run beside the running one: of the same priority, and requested by a client."""
        equal = (job for job in self._jobs if job.request.priority == running.request.priority and job.is_joinable)
        job = None if running.is_speculative else min(equal, key=lambda job: job.steps is None, default=None)
        if job is not None:
            self._jobs.remove(job)
        return job

    def pop_done(self) -> list[Job]:
        """Interrupted jobs whose futures have ended meanwhile."""
        done = [job for job in self._jobs if job.steps and job.future.done()]
        self._jobs = [job for job in self._jobs if job not in done]
        return done

    def outranks(self, running: Job) -> bool:
        """A job that has not begun is more urgent than the running one."""
        priority = running.priority
        return any(job.steps is None and job.priority < priority for job in self._jobs)

    def replace(self, key: Key | None) -> list[Job]:
        """Removes jobs with this key and speculative ones; returns them."""
        return self._removed([job for job in self._jobs if job.is_speculative or job.key == key])

    def clear(self) -> list[Job]:
        """Removes all jobs; returns them."""
        return self._removed(self._jobs)

    def _removed(self, jobs: list[Job]) -> list[Job]:
        self._jobs = [job for job in self._jobs if job.steps or job not in jobs]
        return jobs


LONGEST_WAIT = 0.1
"""Seconds after which a waiting request looks again whether it was cancelled or is overdue."""


class SharedDevice:
    """Models are opened one at a time, and an urgent request of one model pauses the others. Any thread may call.

    Typing does not wait for a rewrite by another model: the rewrite pauses between two steps, as it does in the queue
    of its own model. Models of other processes are not included.
    """

    def __init__(self) -> None:
        self.opening = threading.Lock()
        """Held while a model is opened: two at once would count the same memory as free."""
        self._running: Counter[int] = Counter()
        """Requests that run now, by priority, of all models."""
        self._changed = threading.Condition()

    @contextmanager
    def running(self, priority: int) -> Iterator[None]:
        """Counts a request of this priority while it runs, pauses included."""
        with self._changed:
            self._running[priority] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[priority] -= 1
                self._changed.notify_all()

    def wait(self, priority: int) -> float:
        """Waits once while a more urgent request of another model runs; returns the seconds, 0 where none runs."""
        with self._changed:
            if not any(number and running < priority for running, number in self._running.items()):
                return 0.0
            began = time.monotonic()
            self._changed.wait(LONGEST_WAIT)
            return time.monotonic() - began or LONGEST_WAIT

    def wake(self) -> None:
        """Ends the present waits: a queue has changed."""
        with self._changed:
            self._changed.notify_all()
