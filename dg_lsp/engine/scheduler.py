"""One model thread. The newest request of a document wins; a stale one stops within one denoising step.

A job's future stays pending while it runs, so that whoever waits can cancel it at any moment; the thread looks
between steps. There it also turns to what is more urgent, and comes back afterwards: nobody who types waits for a
chat. Nothing else in dg-lsp starts a thread for the model.

What a fill leaves idle goes into the next one: while the user looks at ghost text, the fill that would follow it is
made as if it had been accepted. Any request stops that.
"""

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import psutil

from dg_lsp.context.document import Snapshot
from dg_lsp.diffusion.denoiser import Footprint
from dg_lsp.engine.chat import ChatRequest
from dg_lsp.engine.completion_cache import CompletionCache
from dg_lsp.engine.decoders.base import Framer, Progress
from dg_lsp.engine.engine import Engine, LazyEngine
from dg_lsp.engine.request import FillRequest, RewriteRequest
from dg_lsp.engine.request_queue import (
    ActiveRun,
    Job,
    RequestQueue,
    Spent,
    cancel_stale,
    is_same,
    settle,
    settle_in,
)
from dg_lsp.engine.result import FillResult, RewriteResult
from dg_lsp.settings import FillSettings, Settings

_PAUSE = 30.0
"""Seconds for which an answer holds."""


class Power:
    """Remembers the last answer."""

    def __init__(self) -> None:
        self._asked = -_PAUSE
        self._is_battery = False

    def on_battery(self) -> bool:
        """True where there is a battery and it is what the machine lives on; False where nobody knows."""
        now = time.monotonic()
        if now - self._asked >= _PAUSE:
            self._asked = now
            self._is_battery = _reads_battery()
        return self._is_battery


def _reads_battery() -> bool:
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError):  # no such sensor on this system
        return False
    return battery is not None and battery.power_plugged is False


class Scheduler:
    """Owns the engine: opens it first, then serves requests until closed. All methods may be called by any thread."""

    def __init__(self, open_engine: Callable[[], Engine], settings: FillSettings, idle_seconds: float = 0.0) -> None:
        """After `idle_seconds` without work the model is given up until there is some again; 0 keeps it."""
        self.ready: Future[Engine] = Future()
        """The engine once it is open, or why it could not be opened. Read it, don't run it."""
        self.ready.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it for the others
        self._held = LazyEngine(open_engine, settings)
        self._idle_seconds = idle_seconds or None
        self.spent = Spent()
        """What the thread has worked on. Read it, don't change it."""
        self._cache = CompletionCache()
        self._power = Power()
        self._guess: Job | None = None
        """What would be asked next if the last fill were accepted; waits until nothing else does."""
        self._agenda = RequestQueue()
        self._running: Job | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="dg-lsp-model", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, open_engine: Callable[[Settings], Engine], settings: Settings) -> "Scheduler":
        """One that begins to open the model of these settings."""
        return cls(lambda: open_engine(settings), settings.fill, settings.runtime.idle_seconds)

    def submit(
        self,
        request: FillRequest,
        on_step: Callable[[Progress], None] | None = None,
        settings: FillSettings | None = None,
    ) -> Future[FillResult]:
        """The result to come; cancelling it stops the model. An older request of the same document is cancelled.

        At the deadline, which counts from here and covers waiting for the model, the future has a result. What an
        earlier fill still says of this place is the result at once. `on_step` is as of `submit_rewrite`. With settings,
        they are taken instead of the worker's; the document's name then has to say whose they are.
        """
        held = settings or self._held.settings
        seconds = (request.deadline_ms or held.deadline_ms) / 1e3
        job = Job(request, time.monotonic() + seconds, Future(), on_step=on_step, settings=settings)
        with self._changed:
            if self._is_guessed(job) and self._running is not None:
                running = self._running
                self._running = replace(running, is_guess=False, on_step=on_step)  # it is on its way
                return running.future
            kept = self._cache.find(request) if held.type_through and not self._is_closed else None
        must_wait = self._take(job, request, kept)
        if kept is not None:
            settle(job.future, kept)
        elif must_wait:
            settle_in(seconds, job.future)
        return job.future

    def submit_rewrite(
        self,
        request: RewriteRequest,
        on_step: Callable[[Progress], None] | None = None,
        settings: FillSettings | None = None,
    ) -> Future[RewriteResult]:
        """The result to come; cancelling it stops the model. An older rewrite of the same document is cancelled.

        `on_step` is called by the model's thread after each forward pass.
        """
        deadline = time.monotonic() + request.deadline_ms / 1e3
        job = Job(request, deadline, Future(), on_step=on_step, settings=settings)
        self._take(job)
        return job.future

    def submit_chat(
        self, request: ChatRequest, on_step: Callable[[Progress], None] | None = None
    ) -> Future[FillResult]:
        """The answer to come, as its only candidate; cancelling it stops the model.

        An older request of the same conversation is cancelled. Deadline and `on_step` are as of `submit`.
        """
        seconds = request.deadline_ms / 1e3
        job = Job(request, time.monotonic() + seconds, Future(), on_step=on_step)
        if self._take(job):
            settle_in(seconds, job.future)
        return job.future

    def configure(self, settings: FillSettings) -> None:
        """Other settings from the next request on; what was remembered under the old ones is forgotten."""
        with self._changed:
            self._held.settings = settings
            self._cache = CompletionCache()
            self._guess = None

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits, no guess either."""
        with self._changed:
            return self.ready.done() and not (self._running or self._agenda or self._guess)

    @property
    def is_asleep(self) -> bool:
        """The model was given up for want of work; the next request has it opened again."""
        return not self._held.is_open and self.ready.done() and self.ready.exception() is None

    @property
    def footprint(self) -> Footprint:
        """What the model holds of the memory; nothing while it is given up."""
        return self._held.footprint

    def framer(self) -> Framer:
        """What makes frames of progress; only for whom the model's thread calls after a pass."""
        return self._held.open().framer()

    def close(self) -> None:
        """Cancels what waits, stops what runs within one denoising step, and gives the model's memory back.

        A model that is still being opened is left to its daemon thread: that can take long.
        """
        with self._changed:
            self._is_closed = True
            jobs = [*self._agenda.clear(), *([self._running] if self._running else [])]
            self._changed.notify()
        for job in jobs:
            job.future.cancel()
        if self.ready.done():
            self._thread.join(timeout=10)

    def _is_guessed(self, job: Job) -> bool:
        """What runs is this very job, and nothing has stopped it; whoever calls holds the lock."""
        running = self._running
        if running is None or not running.is_guess or running.future.done() or self._agenda:
            return False
        return running.settings == job.settings and is_same(running, job.request)

    def _take(self, job: Job, request: FillRequest | None = None, kept: FillResult | None = None) -> bool:
        """The job takes the place of older ones and of any guess; whether it has to wait for the model.

        One whose request an earlier fill answers, with `kept`, only does that, and the next fill is guessed instead.
        """
        with self._changed:
            if self._is_closed:
                job.future.cancel()
                return False
            stale, running = self._agenda.stale(job.key), self._running
            must_wait = not self._held.is_open or running is not None or bool(self._agenda)
            self._guess = self._guess_after(job, request, kept) if request and kept else None
            if kept is None:
                self._agenda.add(job)
            self._changed.notify()
        cancel_stale(job, stale, running)
        return must_wait

    def _serve(self) -> None:
        try:
            engine = self._held.open()
        except Exception as error:  # noqa: BLE001 - whoever waits for the engine hears it, of whatever kind
            self.ready.set_exception(error)
            self._refuse_all(error)
            return
        self.ready.set_result(engine)
        while (run := self._next()) is not None:
            self._do(run)
        self._held.close()

    def _begun(self, job: Job) -> ActiveRun | None:
        """None when there is no engine for it, and whoever waits hears why."""
        try:
            return ActiveRun(job, job.steps(self._held.configured(job.settings)))
        except Exception as error:  # noqa: BLE001 - as in `_serve`; the next one may have more luck
            settle(job.future, error)
            return None

    def _next(self) -> ActiveRun | None:
        """What is to be done now; None when the worker was closed. Gives the model up while there is nothing."""
        while True:
            self._end_unwanted()
            with self._changed:
                self._running = None
                has_work = self._changed.wait_for(self._has_work, self._idle_seconds if self._held.is_open else None)
                if self._is_closed:
                    return None
                found = self._popped() if has_work else None
            if found is None:
                self._held.close()
            elif isinstance(found, ActiveRun):
                return found
            elif (run := self._begun(found)) is not None:
                return run

    def _has_work(self) -> bool:
        return bool(self._agenda or self._guess or self._is_closed)

    def _popped(self) -> Job | ActiveRun | None:
        if self._agenda:
            found = self._agenda.pop()
            self._running = found.job if isinstance(found, ActiveRun) else found
            return found
        self._running, self._guess = self._guess, None
        return self._running

    def _do(self, run: ActiveRun) -> None:
        job, began, is_paused = run.job, time.monotonic(), False
        try:
            while not (job.future.done() or (is_paused := self._has_to_wait(run))):
                progress = next(run.steps)
                if (look := self._by_now(run).on_step) is not None:
                    look(progress)
        except StopIteration as end:
            if isinstance(job.request, FillRequest):
                self._keep(self._by_now(run), job.request, end.value)
            settle(job.future, end.value)
        except Exception as error:  # noqa: BLE001 - the model thread outlives whatever one request ran into
            settle(job.future, error)
        finally:
            if not is_paused:
                run.steps.close()
            self._count(self._by_now(run), time.monotonic() - began)

    def _by_now(self, run: ActiveRun) -> Job:
        """What runs: a guess may have become what somebody waits for."""
        return self._running or run.job

    def _end_unwanted(self) -> None:
        """Interrupted runs that nobody waits for: a remote one keeps a connection."""
        with self._changed:
            ended = self._agenda.pop_ended()
        for run in ended:
            run.steps.close()

    def _has_to_wait(self, run: ActiveRun) -> bool:
        """Something more urgent came; the run goes on after it."""
        self._end_unwanted()
        with self._changed:
            if outranked := self._agenda.outranks(job := self._by_now(run)):
                self._agenda.pause(replace(run, job=job))
            return outranked

    def _count(self, job: Job, seconds: float) -> None:
        spent = self.spent
        stale = seconds if job.future.cancelled() and not job.is_guess else 0.0
        guessing = seconds if job.is_guess else 0.0
        self.spent = Spent(spent.all + seconds, spent.stale + stale, spent.guessing + guessing)

    def _keep(self, job: Job, request: FillRequest, result: FillResult) -> None:
        with self._changed:
            self._cache.keep(request, result)
            if not (job.is_guess or self._agenda or job.future.done()):
                self._guess = self._guess_after(job, request, result)

    def _guess_after(self, job: Job, request: FillRequest, result: FillResult) -> Job | None:
        """The request that follows when the best candidate is accepted, unless it was made already."""
        held = job.settings or self._held.settings
        is_shown = bool(result.candidates) and result.candidates[0].confidence >= held.min_confidence
        if not (held.speculate and held.type_through and is_shown) or self._power.on_battery():
            return None
        snapshot, offset = request.snapshot, request.offset
        text = snapshot.text[:offset] + result.text + snapshot.text[offset:]
        accepted = replace(request, snapshot=replace(snapshot, text=text), offset=offset + len(result.text))
        if self._cache.find(accepted) is not None:
            return None
        seconds = (request.deadline_ms or held.deadline_ms) / 1e3
        return Job(accepted, time.monotonic() + seconds, Future(), is_guess=True, settings=job.settings)

    def _refuse_all(self, error: Exception) -> None:
        with self._changed:
            while self._changed.wait_for(self._has_work) and not self._is_closed:
                found = self._popped()
                if isinstance(found, Job):
                    settle(found.future, error)


_numbers = itertools.count(1)
_Request = TypeVar("_Request", FillRequest, RewriteRequest)


class SchedulerSession:
    """Has a worker's methods. Two of them never cancel each other's requests, even for one document."""

    def __init__(
        self,
        worker: Scheduler,
        settings: FillSettings,
        on_close: Callable[[], None],
        on_submit: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_submit` is called before the worker gets a request."""
        self._worker = worker
        self._on_submit = on_submit
        self._settings = settings
        self._on_close = on_close
        self._number = next(_numbers)
        self._pending: set[Future[Any]] = set()
        self._is_closed = False

    @property
    def ready(self) -> Future[Engine]:
        """See `Worker.ready`."""
        return self._worker.ready

    @property
    def spent(self) -> Spent:
        """The thread's, for all of them."""
        return self._worker.spent

    def submit(self, request: FillRequest, on_step: Callable[[Progress], None] | None = None) -> Future[FillResult]:
        """See `Worker.submit`."""
        self._on_submit()
        return self._noted(self._worker.submit(self._named(request), on_step, self._settings))

    def submit_rewrite(
        self, request: RewriteRequest, on_step: Callable[[Progress], None] | None = None
    ) -> Future[RewriteResult]:
        """See `Worker.submit_rewrite`."""
        self._on_submit()
        return self._noted(self._worker.submit_rewrite(self._named(request), on_step, self._settings))

    def submit_chat(
        self, request: ChatRequest, on_step: Callable[[Progress], None] | None = None
    ) -> Future[FillResult]:
        """See `Worker.submit_chat`."""
        self._on_submit()
        named = replace(request, name=f"{request.name}?client={self._number}")
        return self._noted(self._worker.submit_chat(named, on_step))

    @property
    def is_asleep(self) -> bool:
        """See `Worker.is_asleep`."""
        return self._worker.is_asleep

    @property
    def footprint(self) -> Footprint:
        """See `Worker.footprint`."""
        return self._worker.footprint

    def framer(self) -> Framer:
        """See `Worker.framer`."""
        return self._worker.framer()

    def configure(self, settings: FillSettings) -> None:
        """See `Worker.configure`."""
        self._settings = settings
        self._number = next(_numbers)  # what is remembered of the old documents is nobody's any more

    def close(self) -> None:
        """Cancels what is under way and leaves the model to the others. Harmless, also twice."""
        for future in tuple(self._pending):
            future.cancel()
        if not self._is_closed:
            self._is_closed = True
            self._on_close()

    def _named(self, request: _Request) -> _Request:
        snapshot: Snapshot = request.snapshot
        return replace(request, snapshot=replace(snapshot, uri=f"{snapshot.uri}?client={self._number}"))

    def _noted(self, future: Future[Any]) -> Future[Any]:
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future
