"""The model thread and its queue. The newest request of a document wins; a stale one stops within one step.

The future of a request stays pending while the request runs, so that its owner can cancel it at any moment; the thread
checks it between steps. There the thread also turns to more urgent requests and continues afterwards: typing never
waits for a chat. Nothing else in dg-lsp starts a thread for the model.

Requests of the same priority decode side by side, several tokens in one causal pass, where such a pass is so much
cheaper than single ones that the answers come earlier on average. Otherwise they run one after the other.

Idle time after a fill goes into the next one: while the user reads the suggestion, the thread computes the fill that
follows if it is accepted, and then what the cache holds approximately. Any request stops that.
"""

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dg_lsp.diffusion.denoiser import Footprint
from dg_lsp.engine.completion_cache import CompletionCache
from dg_lsp.engine.decode_run import join
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.kv_slots import SlotState
from dg_lsp.engine.request import EngineRequest, FillRequest, Priority, RefreshRequest, RewriteRequest, WarmUpRequest
from dg_lsp.engine.request_queue import Job, OnStep, Request, RequestQueue, SchedulerListener, SharedDevice
from dg_lsp.engine.result import FillResult, Frame
from dg_lsp.errors import BackendError, DgLspError
from dg_lsp.settings import CompletionSettings, Settings

Result = TypeVar("Result")

DEADLINE_GRACE = 0.03
"""Seconds after its deadline in which a request may return what it has."""


@dataclass(frozen=True, slots=True)
class ModelTime:
    """Seconds of the model thread so far."""

    total: float = 0.0
    stale: float = 0.0  # for requests that were cancelled, by a newer one or by the client
    speculative: float = 0.0  # for what no client had requested

    def __add__(self, other: "ModelTime") -> "ModelTime":
        return ModelTime(self.total + other.total, self.stale + other.stale, self.speculative + other.speculative)


class Scheduler:
    """Owns the engine: opens it first, then serves requests until it is closed. Any thread may call any method."""

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        settings: CompletionSettings,
        idle_seconds: float = 0.0,
        device: SharedDevice | None = None,
    ) -> None:
        """After `idle_seconds` without work the model is closed until the next request; 0 keeps it open.

        `device` is that of the other models of the process.
        """
        self.ready: Future[Engine] = Future()
        """The engine once it is open, or the error. Read only."""
        self.ready.set_running_or_notify_cancel()  # no client can cancel it for the others
        self.model_time = ModelTime()  # read only
        self.listeners: tuple[SchedulerListener, ...] = ()
        """Receive the events of the requests that bring no listeners."""
        self._open_engine = open_engine
        self._engine: Engine | None = None  # belongs to the model thread; None while the model is closed
        self._settings = settings  # of requests that bring no settings
        self._idle_seconds = min(idle_seconds, threading.TIMEOUT_MAX) or None
        self._device = device or SharedDevice()
        self._cache = CompletionCache()
        self._queue = RequestQueue()
        self._active: tuple[Job, ...] = ()
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="dg-lsp-model", daemon=True)
        self._thread.start()

    @classmethod
    def of(
        cls, open_engine: Callable[[Settings], Engine], settings: Settings, device: SharedDevice | None = None
    ) -> "Scheduler":
        """A scheduler that starts to open the model of these settings; `device` as in the constructor."""
        device = None if settings.is_remote else device  # a server computes elsewhere
        return cls(lambda: open_engine(settings), settings.completion, settings.model.idle_seconds, device)

    def submit(
        self,
        request: EngineRequest[Result],
        on_step: OnStep | None = None,
        settings: CompletionSettings | None = None,
        listeners: tuple[SchedulerListener, ...] | None = None,
    ) -> Future[Result]:
        """The result to come; cancelling it stops the model.

        An older request of the same kind for the same document or conversation is cancelled. The deadline counts from
        now and covers waiting for the model. The rest of an earlier fill at this position is the result at once.
        `on_step` is called by the model thread after each forward pass. `settings` and `listeners` replace the
        scheduler's.
        """
        assert isinstance(request, Request)
        job = Job.of(request, settings or self._settings, on_step)
        for listener in self.listeners if listeners is None else listeners:
            job.future.add_done_callback(partial(_report, listener, request, time.monotonic()))
        cached: FillResult | None = None
        queued: Job | None = job
        if isinstance(request, FillRequest) and job.settings.type_through:
            with self._changed:
                if (cached := self._cache.find(request, request.min_confidence(job.settings))) is not None:
                    queued = self._next_fill(job, request, cached)
        self._enqueue(job, queued)
        if cached is not None:
            _settle(job.future, cached)
        elif not isinstance(request, RewriteRequest):
            self._settle_at_deadline(job)
        return job.future

    def warm_up(self, request: FillRequest, settings: CompletionSettings | None = None) -> None:
        """Decodes the prompt of this fill as soon as the model is idle, unless there is something better to do.

        Any request stops it, and a newer warm-up replaces it. Nothing happens while a request runs or waits.
        """
        warm_up = _warm_up_job(request, settings or self._settings)
        with self._changed:
            is_waiting = any(not isinstance(job.request, WarmUpRequest) for job in self._queue.jobs)
            if self._is_closed or is_waiting or not warm_up.settings.speculate:
                return
            if any(not isinstance(active.request, WarmUpRequest) for active in self._active):
                return
            for active in self._active:
                active.future.cancel()
            self._queue.clear()
            self._queue.add(warm_up)
            self._changed.notify()

    def configure(self, settings: CompletionSettings) -> None:
        """Other settings from the next request on; cached completions are dropped."""
        with self._changed:
            self._settings = settings
            self._cache = CompletionCache()
            self._queue.replace(None)

    @property
    def is_asleep(self) -> bool:
        """The model is closed for lack of work; the next request opens it again."""
        return self._engine is None and self.ready.done() and self.ready.exception() is None

    @property
    def footprint(self) -> Footprint:
        """The model's memory now."""
        engine = self._engine
        return engine.footprint if engine is not None else Footprint()

    @property
    def slots(self) -> tuple[SlotState, ...]:
        """See `Engine.slots`; none while the model is closed."""
        engine = self._engine
        return engine.slots if engine is not None else ()

    def frame(self, progress: Progress) -> Frame:
        """See `Engine.frame`; for callbacks on the model thread."""
        return self._open().frame(progress)

    def close(self) -> None:
        """Cancels all requests, stops the running one within one denoising step, and frees the model's memory.

        A model that is being opened is left to its daemon thread, since that can take long.
        """
        with self._changed:
            self._is_closed = True
            jobs = [*self._queue.clear(), *self._active]
            self._changed.notify()
        for job in jobs:
            job.future.cancel()
        if self.ready.done():
            self._thread.join(timeout=10)

    def _enqueue(self, job: Job, queued: Job | None) -> None:
        """Cancels what the job replaces, and queues it or another one."""
        with self._changed:
            if self._is_closed:
                job.future.cancel()
                return
            stale = self._queue.replace(job.key)
            stale += [active for active in self._active if active.is_speculative or active.key == job.key]
            if queued is not None:
                self._queue.add(queued)
                self._changed.notify()
        self._device.wake()
        for stale_job in stale:
            stale_job.future.cancel()

    def _serve(self) -> None:
        try:
            engine = self._open()
        except Exception as error:  # noqa: BLE001 - every client gets the error, of whatever kind
            self.ready.set_exception(error)
        else:
            self.ready.set_result(engine)
        while not self._is_closed:
            self._serve_next()
        self._serve_next()  # closes the model

    def _serve_next(self) -> None:
        """Serves the next request, or closes the model, after idle time or at the end. Survives and reports errors."""
        try:
            if (first := self._next_job()) is not None:
                self._advance(first)
            else:
                self._close_engine()
        except Exception as error:  # noqa: BLE001 - without its thread a model never answers again
            for active in self._active:
                _settle(active.future, error)
            place = traceback.extract_tb(error.__traceback__)[-1]  # its message may quote a buffer
            where = f"{Path(place.filename).name}:{place.lineno}"
            sys.stderr.write(f"dg-lsp: {type(error).__name__} in the model thread, which goes on ({where})\n")

    def _open(self, settings: CompletionSettings | None = None) -> Engine:
        """The engine with these settings, or with its own; opens it where it is closed.

        Raises:
            BackendError: the scheduler was closed while it waited for another model to be opened.
        """
        if (engine := self._engine) is None:
            with self._device.opening:
                if self._is_closed:
                    raise BackendError("the model was closed before it was opened")
                engine = self._engine = self._open_engine()
        if settings is not None and settings != engine.settings:
            with suppress(DgLspError):  # a prompt format that the model lacks: it keeps the settings that it had
                engine = self._engine = engine.configured(settings)
        return engine

    def _close_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _next_job(self) -> Job | None:
        """Waits for work; None after `idle_seconds` without any, or when the scheduler is closed."""
        self._close_done()
        with self._changed:
            self._active = ()
            timeout = None if self._engine is None else self._idle_seconds
            self._changed.wait_for(lambda: self._queue or self._is_closed, timeout)
            if not (self._queue and not self._is_closed):
                return None
            job = self._queue.pop()
            self._active = (job,)
            return job

    def _advance(self, first: Job) -> None:
        """Runs a job, and others beside it where that pays, until all have ended or a more urgent one waits."""
        self._begin(first)
        with self._device.running(first.request.priority):
            while self._active and not self._is_interrupted():
                if done := [job for job in self._active if job.future.done()]:  # cancelled during a pause
                    for job in done:
                        self._end(job, None)
                elif not self._device.wait(min(job.priority for job in self._active)):
                    self._admit()
                    self._join()
                    for job in self._active:
                        self._step(job)

    def _begin(self, job: Job) -> None:
        if job.steps is not None:
            return
        began = time.monotonic()
        try:
            self.ready.result()  # a model that could not be opened is not tried again
            job.steps = job.request.run(self._open(job.settings), job.deadline)
        except Exception as error:  # noqa: BLE001 - see `_step`
            self._end(job, error)
        job.seconds += time.monotonic() - began

    def _step(self, job: Job) -> None:
        """One forward pass of a job, or its end."""
        progress: Progress | None = None
        outcome: Any = None
        began = time.monotonic()
        try:
            if not job.future.done() and job.steps is not None:
                progress = next(job.steps)
                if job.on_step is not None and len(progress.ids):  # not between pieces of a prompt
                    job.on_step(progress)
        except StopIteration as end:
            outcome = end.value
        except Exception as error:  # noqa: BLE001 - the model thread outlives the failure of a request
            progress = None
            outcome = error
        job.seconds += time.monotonic() - began
        if progress is None:
            self._end(job, outcome)
        else:
            job.num_passes = progress.number
            job.next_pass = progress.next_pass

    def _end(self, job: Job, outcome: Any) -> None:
        if isinstance(job.request, FillRequest) and isinstance(outcome, FillResult):
            self._keep(job, job.request, outcome)
        _settle(job.future, outcome)
        if job.steps is not None:
            job.steps.close()
        self._count(job)
        self._finish_later(job)
        self._remove([job])

    def _is_interrupted(self) -> bool:
        """Pauses all jobs where a more urgent one waits."""
        if not self._queue:  # the usual case; a request that arrives right now interrupts the next step
            return False
        self._close_done()
        with self._changed:
            if not self._queue.outranks(min(self._active, key=lambda job: job.priority)):
                return False
            self._remove(self._active, is_paused=True)
        return True

    def _admit(self) -> None:
        """Takes waiting requests of the same priority beside the active ones, where joined passes pay."""
        engine = self._engine
        while self._queue and engine is not None and len(self._active) < engine.max_joined:
            if not all(job.next_pass for job in self._active):
                return
            with self._changed:
                admitted = self._queue.pop_beside(self._active[0])
                if admitted is None:
                    return
                self._active = (*self._active, admitted)
            self._begin(admitted)

    def _join(self) -> None:
        """Computes the next passes of the active jobs in one; where that is impossible, only the first one goes on."""
        if len(self._active) < 2:
            return
        began = time.monotonic()
        ready = [job for job in self._active if job.next_pass is not None and not job.future.done()]
        passes = [job.next_pass for job in ready if job.next_pass is not None]
        is_possible = not any(job.num_passes and job.next_pass is None for job in self._active)
        if is_possible and len(passes) > 1:
            is_possible = join(passes)
        if not is_possible:
            paused = self._active[1:]
            for job in paused:
                job.is_joinable = False
            self._remove(paused, is_paused=True)
        elif len(passes) > 1:
            for job in ready:
                job.seconds += (time.monotonic() - began) / len(ready)

    def _remove(self, ended: Sequence[Job], *, is_paused: bool = False) -> None:
        """Takes jobs from the active ones; paused ones wait in the queue."""
        with self._changed:
            self._active = tuple(job for job in self._active if job not in ended)
            for job in ended if is_paused else ():
                self._count(job)
                job.num_passes = 0
                job.next_pass = None
                self._queue.add(job)

    def _close_done(self) -> None:
        """Ends interrupted jobs that were cancelled: a remote one holds a connection."""
        with self._changed:
            done = self._queue.pop_done()
        for job in done:
            if job.steps is not None:
                job.steps.close()

    def _count(self, job: Job) -> None:
        """Adds the model time of a job since it was counted last."""
        is_stale = job.future.cancelled() and not job.is_speculative
        self.model_time += ModelTime(
            total=job.seconds,
            stale=job.seconds if is_stale else 0.0,
            speculative=job.seconds if job.is_speculative else 0.0,
        )
        job.seconds = 0.0

    def _keep(self, job: Job, request: FillRequest, result: FillResult) -> None:
        with self._changed:
            self._cache.keep(request, result)
            if self._queue or len(self._active) > 1 or job.future.done():
                return
            following = None if job.is_speculative else self._next_fill(job, request, result)
            is_last = job.is_speculative or result.is_unfinished
            if job.settings.speculate and not is_last:  # first: the next key needs it
                self._queue.add(_warm_up_job(request, job.settings))
            if following is None and self._engine is not None and not self._engine.is_exact:
                following = Job(RefreshRequest(), math.inf, job.settings)
            if following is not None:
                self._queue.add(following)

    def _settle_at_deadline(self, job: Job) -> None:
        """Ends the job as unfinished after its deadline, whatever the model thread does, unless a pass is done.

        After a pass the thread itself returns what is settled.
        """

        def settle() -> None:
            if job not in self._active or not job.num_passes:
                _settle(job.future, FillResult.unfinished())

        timer = threading.Timer(max(0.0, job.deadline - time.monotonic()) + DEADLINE_GRACE, settle)
        timer.daemon = True
        job.future.add_done_callback(lambda _: timer.cancel())
        timer.start()

    def _finish_later(self, job: Job) -> None:
        """Computes in idle time a fill for which there was no time, so that it is known if the cursor stays there."""
        future = job.future
        request = job.request
        if not (isinstance(request, FillRequest) and future.done() and not future.cancelled()):
            return
        is_missing = future.exception() is None and future.result().is_unfinished
        if is_missing and job.settings.speculate and job.settings.type_through and not job.is_speculative:
            with self._changed:
                self._queue.add(Job(replace(request, priority=Priority.SPECULATION), math.inf, job.settings))

    def _next_fill(self, job: Job, request: FillRequest, result: FillResult) -> Job | None:
        """The fill that follows when the best candidate is accepted, unless it is known."""
        if not (job.settings.speculate and job.settings.type_through and result.candidates):
            return None
        before = request.snapshot.text[: request.offset]
        accepted = before + result.candidates[0].text
        snapshot = replace(request.snapshot, text=accepted + request.snapshot.text[request.offset :])
        following = replace(request, snapshot=snapshot, offset=len(accepted), priority=Priority.SPECULATION)
        return Job.of(following, job.settings) if self._cache.find(following) is None else None


def _warm_up_job(request: FillRequest, settings: CompletionSettings) -> Job:
    return Job(WarmUpRequest(request, client=request.client), math.inf, settings)


def _settle(future: Future[Any], outcome: Any) -> None:
    """Ends a future unless it has ended: the model thread, the deadline and the client all may end it."""
    with suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def ready_engine(ready: Future[Engine]) -> Engine | None:
    """The engine of `Scheduler.ready`; None while it is opened, and if it cannot be opened."""
    return ready.result() if ready.done() and ready.exception() is None else None


def _report(listener: SchedulerListener, request: EngineRequest[Any], arrival: float, outcome: Future[Any]) -> None:
    listener.finished(request, outcome, time.monotonic() - arrival)
