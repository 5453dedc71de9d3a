"""One model thread. The newest request of a document wins; a stale one stops within one denoising step.

A job's future stays pending while it runs, so that whoever waits can cancel it at any moment; the thread looks
between steps. Nothing else in dg-lsp starts a thread for the model.

What a fill leaves idle goes into the next one: while the user looks at ghost text, the fill that would follow it is
made as if it had been accepted. Any request stops that.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from dg_lsp.engine.cache import FillCache
from dg_lsp.engine.chat import ChatRequest
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.filling import Progress
from dg_lsp.engine.jobs import Job, Spent, cancel_stale, is_same, settle, unfinished
from dg_lsp.engine.power import Power
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult
from dg_lsp.engine.rewrite import RewriteRequest, RewriteResult
from dg_lsp.errors import DgLspError
from dg_lsp.settings import FillSettings


class Worker:
    """Owns the engine: opens it first, then serves requests until closed. All methods may be called by any thread."""

    def __init__(self, open_engine: Callable[[], Engine], settings: FillSettings) -> None:
        self.ready: Future[Engine] = Future()
        """The engine once it is open, or why it could not be opened. Read it, don't run it."""
        self.ready.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it for the others
        self._settings = settings
        self.spent = Spent()
        """What the thread has worked on. Read it, don't change it."""
        self._wanted: FillSettings | None = None
        """What the engine has yet to be told."""
        self._cache = FillCache()
        self._power = Power()
        self._guess: Job | None = None
        """What would be asked next if the last fill were accepted; waits until nothing else does."""
        self._waiting: OrderedDict[tuple[str, type], Job] = OrderedDict()
        self._running: Job | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, args=(open_engine,), name="dg-lsp-model", daemon=True)
        self._thread.start()

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
        held = settings or self._settings
        seconds = (request.deadline_ms or held.deadline_ms) / 1e3
        job = Job(request, time.monotonic() + seconds, Future(), on_step=on_step, settings=settings)
        with self._changed:
            if self._is_guessed(job) and self._running is not None:
                running = self._running
                self._running = replace(running, is_guess=False)  # it is on its way
                return running.future
            kept = self._cache.find(request) if held.type_through and not self._is_closed else None
        must_wait = self._take(job, request, kept)
        if kept is not None:
            settle(job.future, kept)
        elif must_wait:
            self._watch_deadline(job, seconds)
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
            self._watch_deadline(job, seconds)
        return job.future

    def configure(self, settings: FillSettings) -> None:
        """Other settings from the next request on; what was remembered under the old ones is forgotten."""
        with self._changed:
            self._settings = settings
            self._wanted = settings
            self._cache = FillCache()
            self._guess = None

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits, no guess either."""
        with self._changed:
            return self.ready.done() and not (self._running or self._waiting or self._guess)

    def close(self) -> None:
        """Cancels what waits, stops what runs within one denoising step, and gives the model's memory back.

        A model that is still being opened is left to its daemon thread: that can take long.
        """
        with self._changed:
            self._is_closed = True
            jobs = [*self._waiting.values(), *([self._running] if self._running else [])]
            self._waiting.clear()
            self._changed.notify()
        for job in jobs:
            job.future.cancel()
        if self.ready.done():
            self._thread.join(timeout=10)

    def _is_guessed(self, job: Job) -> bool:
        """What runs is this very job, and nothing has stopped it; whoever calls holds the lock."""
        running = self._running
        if running is None or not running.is_guess or running.future.done() or self._waiting:
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
            stale, running = self._waiting.pop(job.key, None), self._running
            must_wait = not self.ready.done() or running is not None or bool(self._waiting)
            self._guess = self._guess_after(job, request, kept) if request and kept else None
            if kept is None:
                self._waiting[job.key] = job
            self._changed.notify()
        cancel_stale(job, stale, running)
        return must_wait

    def _watch_deadline(self, job: Job, seconds: float) -> None:
        timer = threading.Timer(seconds, lambda: settle(job.future, unfinished()))
        timer.daemon = True
        job.future.add_done_callback(lambda _: timer.cancel())
        timer.start()

    def _serve(self, open_engine: Callable[[], Engine]) -> None:
        try:
            engine = open_engine()
        except Exception as error:  # noqa: BLE001 - whoever waits for the engine hears it, of whatever kind
            self.ready.set_exception(error)
            self._refuse_all(error)
            return
        self.ready.set_result(engine)
        while (job := self._next()) is not None:
            engine = self._configured(engine, job)
            self._do(engine, job)
        engine.close()

    def _configured(self, engine: Engine, job: Job) -> Engine:
        wanted, self._wanted = self._wanted, None
        wanted = job.settings or wanted
        if wanted is None or wanted == engine.settings:
            return engine
        try:
            return engine.configured(wanted)
        except DgLspError:  # a prompt format that the model does not know: it goes on as it was
            return engine

    def _next(self) -> Job | None:
        with self._changed:
            self._running = None
            self._changed.wait_for(lambda: self._waiting or self._guess or self._is_closed)
            if self._is_closed:
                return None
            if self._waiting:
                _, self._running = self._waiting.popitem(last=False)
            else:
                self._running, self._guess = self._guess, None
            return self._running

    def _do(self, engine: Engine, job: Job) -> None:
        steps, began = job.steps(engine), time.monotonic()
        try:
            while not job.future.done():
                progress = next(steps)
                if job.on_step is not None:
                    job.on_step(progress)
        except StopIteration as end:
            if isinstance(job.request, FillRequest):
                self._keep(job, job.request, end.value)
            settle(job.future, end.value)
        except Exception as error:  # noqa: BLE001 - the model thread outlives whatever one request ran into
            settle(job.future, error)
        finally:
            steps.close()
            self._count(job, time.monotonic() - began)

    def _count(self, job: Job, seconds: float) -> None:
        spent = self.spent
        stale = seconds if job.future.cancelled() and not job.is_guess else 0.0
        guessing = seconds if job.is_guess else 0.0
        self.spent = Spent(spent.all + seconds, spent.stale + stale, spent.guessing + guessing)

    def _keep(self, job: Job, request: FillRequest, result: FillResult) -> None:
        with self._changed:
            self._cache.keep(request, result)
            if not (job.is_guess or self._waiting or job.future.done()):
                self._guess = self._guess_after(job, request, result)

    def _guess_after(self, job: Job, request: FillRequest, result: FillResult) -> Job | None:
        """The request that follows when the best candidate is accepted, unless it was made already."""
        held = job.settings or self._settings
        is_shown = bool(result.candidates) and result.candidates[0].chance >= held.min_chance
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
        while (job := self._next()) is not None:
            settle(job.future, error)
