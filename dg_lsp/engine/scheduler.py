"""The model thread and its queue. The newest request of a document wins; a stale one stops within one step.

The future of a request stays pending while the request runs, so that its owner can cancel it at any moment; the thread
checks it between steps. Between steps the thread also turns to more urgent requests, and continues afterwards: typing
never waits for a chat. Nothing else in dg-lsp starts a thread for the model.

Idle time after a fill goes into the next one: while the user reads the suggestion, the thread computes the fill that
follows if it is accepted, and then what the cache holds approximately. Any request stops that.
"""

import itertools
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dg_lsp.engine.completion_cache import CompletionCache
from dg_lsp.engine.decoders.base import Progress, Result
from dg_lsp.engine.edit_source import NextEditRequest, proposes_edits
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import (
    ChatRequest,
    EngineRequest,
    FillRequest,
    FillResult,
    Frame,
    IdleRequest,
    Priority,
    RewriteRequest,
)
from dg_lsp.errors import BackendError
from dg_lsp.settings import CompletionSettings, Settings

OnFrame = Callable[[Frame], None]

DEADLINE_GRACE = 0.03
"""Seconds after its deadline in which a request may return what it has."""
PAUSE = 0.005
"""Seconds after which a request that waits for the device looks again whether it may go on."""


class SchedulerListener(Protocol):
    """Receives the events of the requests of one client, on any thread; it must be quick and raise nothing."""

    def finished(
        self, request: EngineRequest[Any], outcome: Future[Any], seconds: float, engine: Engine | None
    ) -> None:
        """A request has ended so many seconds after its arrival; no engine while the model is closed."""


@dataclass(frozen=True, slots=True)
class ModelTime:
    """Seconds of the model thread so far."""

    total: float = 0.0
    stale: float = 0.0  # for requests that were cancelled, by a newer one or by the client
    speculative: float = 0.0  # for what no client had requested

    def __add__(self, other: "ModelTime") -> "ModelTime":
        return ModelTime(self.total + other.total, self.stale + other.stale, self.speculative + other.speculative)


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the scheduler."""

    request: EngineRequest[Any]
    settings: CompletionSettings
    on_frame: OnFrame | None = None
    arrival: float = field(default_factory=time.monotonic)
    future: Future[Any] = field(default_factory=Future)
    steps: Generator[Progress, None, Any] | None = None  # the rest of the work; None before it begins
    num_passes: int = 0  # since it was resumed, those of its prompt left out

    @property
    def deadline(self) -> float:
        """In `time.monotonic` seconds."""
        return self.request.deadline_from(self.arrival, self.settings)

    @property
    def key(self) -> tuple[Hashable, str, type]:
        """Client, document or conversation, and kind of request: rewrites and fills do not replace each other."""
        return self.request.client, self.request.subject, type(self.request)

    @property
    def priority(self) -> int:
        """The request's; a job that has begun and is overdue comes first, to return what it has."""
        return -1 if self.steps and time.monotonic() >= self.deadline else self.request.priority

    @property
    def is_speculative(self) -> bool:
        """No client has requested it yet."""
        return self.request.priority is Priority.SPECULATION

    def is_replacing(self, older: "Job") -> bool:
        """An older job is stale once this one has come."""
        return older.is_speculative or older.key == self.key

    def close(self) -> None:
        """Releases what its work holds, such as the connection to a server."""
        if self.steps is not None:
            self.steps.close()


class SharedDevice:
    """Models are opened one at a time, and an urgent request of one model pauses the others. Any thread may call.

    Typing does not wait for a rewrite by another model: the rewrite pauses between two steps, as it does in the queue
    of its own model. Models of other processes are not included.
    """

    def __init__(self) -> None:
        self.opening = threading.Lock()
        """Held while a model is opened: two at once would count the same memory as free."""
        self._running: list[int] = []
        """Priorities of the requests of all models that run now."""

    @contextmanager
    def running(self, priority: int) -> Iterator[None]:
        """Counts a request of this priority while it runs, pauses included."""
        self._running.append(priority)
        try:
            yield
        finally:
            self._running.remove(priority)

    def wait(self, priority: int) -> bool:
        """Waits a moment if a more urgent request of another model runs; false where none runs."""
        is_outranked = min(self._running, default=priority) < priority
        if is_outranked:
            time.sleep(PAUSE)
        return is_outranked


class Scheduler:
    """Owns the engine: opens it first, then serves requests until it is closed. Any thread may call any method."""

    def __init__(
        self,
        open_engine: Callable[[Settings], Engine],
        settings: Settings,
        device: SharedDevice | None = None,
        on_leave: Callable[["Scheduler"], None] = lambda scheduler: scheduler.close(),
    ) -> None:
        """Starts to open the model of these settings; `device` is that of the other models of the process.

        `on_leave` is called when a session does not need the model any more.
        """
        self.ready: Future[Engine] = Future()
        """The engine once it is open, or the error. Read only."""
        self.ready.set_running_or_notify_cancel()  # no client can cancel it for the others
        self.model_time = ModelTime()  # read only
        self._open_engine = partial(open_engine, settings)
        self.engine: Engine | None = None
        """While the model is open. It belongs to the model thread; others only read what any thread may."""
        self._on_leave = on_leave
        self._settings = settings.completion  # of requests that bring no settings
        self._idle_seconds = settings.model.idle_seconds or None
        # a model on a server shares no device with the others
        self._device = SharedDevice() if device is None or settings.is_remote else device
        self._cache = CompletionCache()
        self._queue: list[Job] = []
        """In order of arrival. Jobs that have begun are removed by the model thread only, which closes their steps."""
        self._active: Job | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="dg-lsp-model", daemon=True)
        self._thread.start()

    def submit(
        self,
        request: EngineRequest[Result],
        on_frame: OnFrame | None = None,
        settings: CompletionSettings | None = None,
        listeners: Iterable[SchedulerListener] = (),
    ) -> Future[Result]:
        """The result to come; cancelling it stops the model.

        An older request of the same kind for the same document or conversation is cancelled. The deadline counts from
        now and covers waiting for the model. The rest of an earlier fill at this position is the result at once.
        `on_frame` is called by the model thread with each canvas. `settings` replace the scheduler's.
        """
        job = Job(request, settings or self._settings, on_frame)
        for listener in listeners:
            job.future.add_done_callback(partial(self._report, listener, job))
        if isinstance(request, FillRequest):
            cached = self._cache.find(request, request.min_confidence(job.settings))
            if cached is not None:
                self._replace(job.is_replacing, self._next_fill(job.settings, request, cached))
                _settle(job.future, cached)
                return job.future
        self._replace(job.is_replacing, job)
        self._settle_at_deadline(job)
        return job.future

    def warm_up(self, request: FillRequest, settings: CompletionSettings | None = None) -> None:
        """Decodes the prompt of this fill as soon as the model is idle, unless there is something better to do.

        Any request stops it, and a newer warm-up replaces it. Nothing happens while a request runs or waits.
        """
        warm_up = Job(IdleRequest(request, client=request.client), settings or self._settings)
        with self._changed:
            is_needed = any(not isinstance(job.request, IdleRequest) for job in self._jobs())
            if self._is_closed or self.is_asleep or is_needed or not warm_up.settings.speculate:
                return
            self._replace(lambda _: True, warm_up)

    @property
    def is_asleep(self) -> bool:
        """The model is closed for lack of work; the next request opens it again."""
        return self.engine is None and self.ready.done() and self.ready.exception() is None

    def leave(self) -> None:
        """Ends a session's use of the model."""
        self._on_leave(self)

    def close(self) -> None:
        """Cancels all requests, stops the running one within one denoising step, and frees the model's memory.

        A model that is being opened is left to its daemon thread, since that can take long.
        """
        with self._changed:
            self._is_closed = True
        self._replace(lambda _: True)
        if self.ready.done():
            self._thread.join(timeout=10)

    def _jobs(self) -> list[Job]:
        """All jobs, the running one last. Requires the lock."""
        return self._queue if self._active is None else [*self._queue, self._active]

    def _replace(self, is_stale: Callable[[Job], bool], newer: Job | None = None) -> None:
        """Cancels stale jobs, the running one included, and queues a newer one; after `close` that is cancelled too."""
        with self._changed:
            stale = [job for job in self._jobs() if is_stale(job)]
            self._queue = [job for job in self._queue if job.steps or job not in stale]
            if newer is not None:
                (stale if self._is_closed else self._queue).append(newer)
            self._changed.notify()
        for job in stale:
            job.future.cancel()

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
            job = self._next_job()
            if job is None:
                self._close_engine()
            elif self._run(job):
                self._end(job)
        except Exception as error:  # noqa: BLE001 - without its thread a model never answers again
            if self._active is not None:
                _settle(self._active.future, error)
            place = traceback.extract_tb(error.__traceback__)[-1]  # its message may quote a buffer
            where = f"{Path(place.filename).name}:{place.lineno}"
            sys.stderr.write(f"dg-lsp: {type(error).__name__} in the model thread, which goes on ({where})\n")

    def _open(self, settings: CompletionSettings | None = None) -> Engine:
        """The engine with these settings, or with its own; opens it where it is closed.

        Raises:
            BackendError: the scheduler was closed while it waited for another model to be opened.
        """
        engine = self.engine
        if engine is None:
            with self._device.opening:
                if not self._is_closed:
                    engine = self.engine = self._open_engine()
                if engine is None or self._is_closed:
                    self._close_engine()  # before another model counts the free memory
                    raise BackendError("the model was closed before it was opened")
        if settings is not None and settings != engine.settings:
            engine = self.engine = engine.configured(settings)
        return engine

    def _close_engine(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    def _next_job(self) -> Job | None:
        """Waits for work; None after `idle_seconds` without any, or when the scheduler is closed.

        The most urgent job is first; of equally urgent ones those that were interrupted, then in order of arrival.
        """
        self._close_done()
        with self._changed:
            self._active = None
            timeout = None if self.engine is None else self._idle_seconds
            self._changed.wait_for(lambda: self._queue or self._is_closed, timeout)
            if self._queue and not self._is_closed:
                self._active = min(self._queue, key=lambda job: (job.priority, job.steps is None))
                self._queue.remove(self._active)
            return self._active

    def _run(self, job: Job) -> bool:
        """Runs a job until it has ended; false where a more urgent one waits and the job is queued again."""
        began = time.monotonic()
        job.num_passes = 0
        outcome: Any = None
        try:
            if job.steps is None:
                self.ready.result()  # a model that could not be opened is not tried again
                job.steps = job.request.run(self._open(job.settings), job.deadline)
            with self._device.running(job.request.priority):
                while not job.future.done():
                    if self._is_interrupted(job):
                        return False
                    if self._device.wait(job.priority):
                        continue
                    progress = next(job.steps)
                    job.num_passes = progress.number
                    is_piece = not (len(progress.ids) or progress.text)  # of a prompt
                    if job.on_frame is not None and not is_piece:
                        job.on_frame(progress.frame())
        except StopIteration as end:
            outcome = end.value
        except Exception as error:  # noqa: BLE001 - the model thread outlives the failure of a request
            # many requests get the error of a model that cannot be opened: its frames would keep all their buffers
            outcome = error.with_traceback(None)
        finally:
            seconds = time.monotonic() - began
            is_stale = job.future.cancelled() and not job.is_speculative
            self.model_time += ModelTime(seconds, seconds * is_stale, seconds * job.is_speculative)
        if isinstance(job.request, FillRequest) and isinstance(outcome, FillResult):
            self._cache.keep(job.request, outcome)
        _settle(job.future, outcome)
        return True

    def _end(self, job: Job) -> None:
        job.close()
        is_answered = not job.future.cancelled() and job.future.exception() is None
        if is_answered and isinstance(job.request, FillRequest):
            idle_jobs = self._idle_jobs(job.settings, job.request, job.future.result())
            with self._changed:
                if not self._queue:
                    self._queue += idle_jobs

    def _idle_jobs(self, settings: CompletionSettings, request: FillRequest, result: FillResult) -> list[Job]:
        """What idle time computes after a fill, the most useful first."""
        refresh = Job(IdleRequest(), settings)
        if not settings.speculate or request.priority is Priority.SPECULATION:
            return [refresh]
        if request.is_followed and (result.is_unfinished or result.is_prompt_cut):
            # the fill is cached then, if the cursor stays where it is
            return [Job(replace(request, priority=Priority.SPECULATION, deadline_ms=math.inf), settings)]
        # the next key needs the warm prompt
        warm_up = Job(IdleRequest(request, client=request.client), settings)
        return [warm_up, self._next_fill(settings, request, result) or refresh]

    def _next_fill(self, settings: CompletionSettings, request: FillRequest, result: FillResult) -> Job | None:
        """The fill that follows when the best candidate is accepted, unless it is known."""
        if not (settings.speculate and request.is_followed and result.candidates):
            return None
        before = request.snapshot.text[: request.offset]
        accepted = before + result.candidates[0].text
        snapshot = replace(request.snapshot, text=accepted + request.snapshot.text[request.offset :])
        following = replace(request, snapshot=snapshot, offset=len(accepted), priority=Priority.SPECULATION)
        return Job(following, settings) if self._cache.find(following) is None else None

    def _is_interrupted(self, job: Job) -> bool:
        if not self._queue:  # the usual case; a request that arrives right now interrupts the next step
            return False
        self._close_done()
        with self._changed:
            priority = job.priority
            is_outranked = any(waiting.steps is None and waiting.priority < priority for waiting in self._queue)
            if is_outranked:
                self._queue.append(job)
                self._active = None
        return is_outranked

    def _close_done(self) -> None:
        """Removes interrupted jobs whose futures have ended meanwhile, and closes their steps."""
        with self._changed:
            done = [job for job in self._queue if job.steps and job.future.done()]
            self._queue = [job for job in self._queue if job not in done]
        for job in done:
            job.close()

    def _report(self, listener: SchedulerListener, job: Job, outcome: Future[Any]) -> None:
        listener.finished(job.request, outcome, time.monotonic() - job.arrival, self.engine)

    def _settle_at_deadline(self, job: Job) -> None:
        """Ends the job as unfinished after its deadline, whatever the model thread does, unless a pass is done.

        After a pass, and of a rewrite that it has begun, the thread itself returns what is settled.
        """

        def settle() -> None:
            if isinstance(job.request, RewriteRequest):
                if job.steps is None:
                    _settle(job.future, job.request.unfinished())
            elif job is not self._active or not job.num_passes:
                _settle(job.future, FillResult.unfinished())

        timer = threading.Timer(max(0.0, job.deadline - time.monotonic()) + DEADLINE_GRACE, settle)
        timer.daemon = True
        job.future.add_done_callback(lambda _: timer.cancel())
        timer.start()


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


OpenScheduler = Callable[[Settings], Scheduler]
"""Begins to load the model of these settings, or joins one that is loaded already."""
_numbers = itertools.count(1)


class ResidentModels:
    """The models of one session: one for completions, and one for rewrites and chats where the settings name it.

    Each has a scheduler, which other sessions may share: they never cancel each other's requests, even for the same
    document.
    """

    def __init__(self, open_scheduler: OpenScheduler, settings: Settings) -> None:
        """Begins to load the models of the settings, that of completions first."""
        self.completion = open_scheduler(settings)
        of_rewrites = settings.for_rewrites
        is_same = of_rewrites.model_key == settings.model_key
        self.rewrite = self.completion if is_same else open_scheduler(of_rewrites)
        self._settings = settings.completion
        self._listeners: tuple[SchedulerListener, ...] = ()
        self._number = next(_numbers)
        self._pending: set[Future[Any]] = set()
        self._is_closed = False

    @property
    def schedulers(self) -> tuple[Scheduler, ...]:
        """The distinct schedulers."""
        return (self.completion,) if self.rewrite is self.completion else (self.completion, self.rewrite)

    def scheduler_for(self, request: EngineRequest[Any]) -> Scheduler:
        """The one that serves a request.

        Gaps are completions, and so is a text that is continued. A rewrite without an instruction that keeps a part of
        the selection needs a canvas; if its own model has none, it goes to that of completions.
        """
        if isinstance(request, NextEditRequest):
            return self.edit_source or self.completion
        if isinstance(request, ChatRequest):
            return self.completion if request.is_raw else self.rewrite
        if not isinstance(request, RewriteRequest) or request.gaps:
            return self.completion
        if request.strength < 1 and not request.instruction.strip() and (engine := ready_engine(self.rewrite.ready)):
            return self.rewrite if engine.spec.has_free_canvas else self.completion
        return self.rewrite

    @property
    def edit_source(self) -> Scheduler | None:
        """The one whose model proposes next edits, that of rewrites first; None while none is loaded that does."""
        engines = ((scheduler, ready_engine(scheduler.ready)) for scheduler in (self.rewrite, self.completion))
        return next((scheduler for scheduler, engine in engines if engine and proposes_edits(engine.spec)), None)

    def submit(self, request: EngineRequest[Result], on_frame: OnFrame | None = None) -> Future[Result]:
        """See `Scheduler.submit`."""
        request = replace(request, client=(self._number, request.client))
        future = self.scheduler_for(request).submit(request, on_frame, self._settings, self._listeners)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def warm_up(self, request: FillRequest) -> None:
        """See `Scheduler.warm_up`."""
        self.completion.warm_up(replace(request, client=(self._number, request.client)), self._settings)

    def listen(self, *listeners: SchedulerListener | None) -> None:
        """Reports the events of requests from the next one on to these listeners, in place of earlier ones."""
        self._listeners = tuple(listener for listener in listeners if listener is not None)

    def configure(self, settings: CompletionSettings) -> None:
        """Other settings from the next request on; completions that are cached are not found any more."""
        self._settings = settings
        self._number = next(_numbers)

    def close(self) -> None:
        """Cancels the session's requests and leaves the models to the other sessions, if there are any. Idempotent."""
        for future in tuple(self._pending):
            future.cancel()
        if not self._is_closed:
            self._is_closed = True
            for scheduler in self.schedulers:
                scheduler.leave()
