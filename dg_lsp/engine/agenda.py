"""What the model's thread has to do: jobs that wait, and runs that a more urgent one has interrupted."""

import time
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from dg_lsp.engine.filling import Progress
from dg_lsp.engine.jobs import Job

_OVERDUE = -1
"""More urgent than anything: it only has to say what it has."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A job that has begun."""

    job: Job
    steps: Generator[Progress, None, Any]


class Agenda:
    """The most urgent first; of equally urgent ones those that were interrupted, then as they came.

    Not thread-safe: the worker guards it.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[str, type], Job] = OrderedDict()
        self._paused: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self._waiting or self._paused)

    def add(self, job: Job) -> None:
        """The job waits from now on."""
        self._waiting[job.key] = job

    def pause(self, run: Run) -> None:
        """The run goes on later."""
        self._paused.append(run)

    def stale(self, key: tuple[str, type]) -> list[Job]:
        """What a new job of this key takes the place of; no longer waits, if it did."""
        waiting = self._waiting.pop(key, None)
        return [*([waiting] if waiting else []), *(run.job for run in self._paused if run.job.key == key)]

    def outranks(self, job: Job) -> bool:
        """Something here is to be done before this job, which runs."""
        urgency = _urgency(job)
        return any(other.urgency < urgency for other in self._waiting.values())

    def pop(self) -> Job | Run:
        """The next one; there has to be one."""
        run = min(self._paused, key=lambda one: _urgency(one.job), default=None)
        job = min(self._waiting.values(), key=lambda one: one.urgency, default=None)
        if job is None or (run is not None and _urgency(run.job) <= job.urgency):
            assert run is not None  # as promised
            self._paused.remove(run)
            return run
        return self._waiting.pop(job.key)

    def pop_ended(self) -> list[Run]:
        """Interrupted runs that nobody waits for any longer."""
        ended = [run for run in self._paused if run.job.future.done()]
        self._paused = [run for run in self._paused if run not in ended]
        return ended

    def clear(self) -> list[Job]:
        """All that waited; interrupted runs stay, for their own thread to end them."""
        jobs = [*self._waiting.values(), *(run.job for run in self._paused)]
        self._waiting.clear()
        return jobs


def _urgency(job: Job) -> int:
    """Of a job that has begun."""
    return _OVERDUE if time.monotonic() >= job.deadline else job.urgency
