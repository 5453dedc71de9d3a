"""One model thread. The newest request of a document wins; a stale one stops within one denoising step.

A job's future stays pending while it runs, so that whoever waits can cancel it at any moment; the thread looks
between steps. Nothing else in dg-lsp starts a thread for the model.

What a fill leaves idle goes into the next one: while the user looks at ghost text, the fill that would follow it is
made as if it had been accepted. Any request stops that.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dg_lsp.engine.cache import FillCache
from dg_lsp.engine.chat import ChatRequest
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.filling import Progress
from dg_lsp.engine.power import Power
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult, Timings
from dg_lsp.engine.rewrite import RewriteRequest, RewriteResult
from dg_lsp.errors import DgLspError
from dg_lsp.postprocess.candidate import Reason, Rejection
from dg_lsp.settings import FillSettings


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    request: FillRequest | RewriteRequest | ChatRequest
    deadline: float
    """`time.monotonic` seconds."""
    future: Future[Any]
    is_guess: bool = False
    """Nobody asked for it yet."""
    on_step: Callable[[Progress], None] | None = None

    @property
    def key(self) -> tuple[str, type]:
        """Of two jobs with the same key the newer one wins: a document's rewrite and its fills are apart."""
        request = self.request
        return request.name if isinstance(request, ChatRequest) else request.snapshot.uri, type(request)

    def steps(self, engine: Engine) -> Generator[Progress, None, Any]:
        """The work, a forward pass at a time."""
        if isinstance(self.request, RewriteRequest):
            return engine.rewrite(self.request, deadline=self.deadline)
        if isinstance(self.request, ChatRequest):
            return engine.chat(self.request, deadline=self.deadline)
        return engine.run(self.request, deadline=self.deadline)


class Worker:
    """Owns the engine: opens it first, then serves requests until closed. All methods may be called by any thread."""

    def __init__(self, open_engine: Callable[[], Engine], settings: FillSettings) -> None:
        self.ready: Future[Engine] = Future()
        """The engine once it is open, or why it could not be opened. Read it, don't run it."""
        self.ready.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it for the others
        self._settings = settings
        self._wanted: FillSettings | None = None
        """What the engine has yet to be told."""
        self._cache = FillCache()
        self._power = Power()
        self._guess: _Job | None = None
        """What would be asked next if the last fill were accepted; waits until nothing else does."""
        self._waiting: OrderedDict[tuple[str, type], _Job] = OrderedDict()
        self._running: _Job | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, args=(open_engine,), name="dg-lsp-model", daemon=True)
        self._thread.start()

    def submit(self, request: FillRequest, on_step: Callable[[Progress], None] | None = None) -> Future[FillResult]:
        """The result to come; cancelling it stops the model. An older request of the same document is cancelled.

        At the deadline, which counts from here and covers waiting for the model, the future has a result. What an
        earlier fill still says of this place is the result at once. `on_step` is as of `submit_rewrite`.
        """
        seconds = (request.deadline_ms or self._settings.deadline_ms) / 1e3
        job = _Job(request, time.monotonic() + seconds, Future(), on_step=on_step)
        with self._changed:
            if self._is_closed:
                job.future.cancel()
                return job.future
            stale = self._waiting.pop(job.key, None)
            running = self._running
            if running is not None and running.is_guess and _is_same(running.request, request):
                self._running = replace(running, is_guess=False)  # guessed right: it is on its way
                return running.future
            kept = self._cache.find(request) if self._settings.type_through else None
            must_wait = not self.ready.done() or running is not None or bool(self._waiting)
            self._guess = self._guess_after(request, kept) if kept is not None else None
            if kept is None:
                self._waiting[job.key] = job
            self._changed.notify()
        _cancel_stale(job, stale, running)
        if kept is not None:
            _settle(job.future, kept)
        elif must_wait:
            self._watch_deadline(job, seconds)
        return job.future

    def submit_rewrite(
        self, request: RewriteRequest, on_step: Callable[[Progress], None] | None = None
    ) -> Future[RewriteResult]:
        """The result to come; cancelling it stops the model. An older rewrite of the same document is cancelled.

        `on_step` is called by the model's thread after each forward pass.
        """
        job = _Job(request, time.monotonic() + request.deadline_ms / 1e3, Future(), on_step=on_step)
        self._enqueue(job)
        return job.future

    def submit_chat(
        self, request: ChatRequest, on_step: Callable[[Progress], None] | None = None
    ) -> Future[FillResult]:
        """The answer to come, as its only candidate; cancelling it stops the model.

        An older request of the same conversation is cancelled. Deadline and `on_step` are as of `submit`.
        """
        seconds = request.deadline_ms / 1e3
        job = _Job(request, time.monotonic() + seconds, Future(), on_step=on_step)
        if self._enqueue(job):
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

    def _enqueue(self, job: _Job) -> bool:
        """Whether it has to wait for the model."""
        with self._changed:
            if self._is_closed:
                job.future.cancel()
                return False
            stale, running = self._waiting.pop(job.key, None), self._running
            must_wait = not self.ready.done() or running is not None or bool(self._waiting)
            self._guess = None
            self._waiting[job.key] = job
            self._changed.notify()
        _cancel_stale(job, stale, running)
        return must_wait

    def _watch_deadline(self, job: _Job, seconds: float) -> None:
        timer = threading.Timer(seconds, lambda: _settle(job.future, _unfinished()))
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
            engine = self._configured(engine)
            self._do(engine, job)
        engine.close()

    def _configured(self, engine: Engine) -> Engine:
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return engine
        try:
            return engine.configured(wanted)
        except DgLspError:  # a prompt format that the model does not know: it goes on as it was
            return engine

    def _next(self) -> _Job | None:
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

    def _do(self, engine: Engine, job: _Job) -> None:
        steps = job.steps(engine)
        try:
            while not job.future.done():
                progress = next(steps)
                if job.on_step is not None:
                    job.on_step(progress)
        except StopIteration as end:
            if isinstance(job.request, FillRequest):
                self._keep(job, job.request, end.value)
            _settle(job.future, end.value)
        except Exception as error:  # noqa: BLE001 - the model thread outlives whatever one request ran into
            _settle(job.future, error)
        finally:
            steps.close()

    def _keep(self, job: _Job, request: FillRequest, result: FillResult) -> None:
        with self._changed:
            self._cache.keep(request, result)
            if not (job.is_guess or self._waiting or job.future.done()):
                self._guess = self._guess_after(request, result)

    def _guess_after(self, request: FillRequest, result: FillResult) -> _Job | None:
        """The request that follows when the best candidate is accepted, unless it was made already."""
        is_shown = bool(result.candidates) and result.candidates[0].chance >= self._settings.min_chance
        if not (self._settings.speculate and self._settings.type_through and is_shown) or self._power.on_battery():
            return None
        snapshot, offset = request.snapshot, request.offset
        text = snapshot.text[:offset] + result.text + snapshot.text[offset:]
        accepted = replace(request, snapshot=replace(snapshot, text=text), offset=offset + len(result.text))
        if self._cache.find(accepted) is not None:
            return None
        seconds = (request.deadline_ms or self._settings.deadline_ms) / 1e3
        return _Job(accepted, time.monotonic() + seconds, Future(), is_guess=True)

    def _refuse_all(self, error: Exception) -> None:
        while (job := self._next()) is not None:
            _settle(job.future, error)


def _cancel_stale(job: _Job, waiting: _Job | None, running: _Job | None) -> None:
    """What this job takes the place of: older ones of the same key, and any guess."""
    if waiting is not None:
        waiting.future.cancel()
    if running is not None and (running.is_guess or running.key == job.key):
        running.future.cancel()


def _settle(future: Future[Any], outcome: FillResult | Exception) -> None:
    """Ends a future unless somebody was faster: the model thread, the deadline and the client all may be."""
    with suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _is_same(guessed: FillRequest | RewriteRequest | ChatRequest, asked: FillRequest) -> bool:
    """But for the document's version, which nobody can guess."""
    if not isinstance(guessed, FillRequest):
        return False
    return replace(guessed, snapshot=asked.snapshot) == asked and guessed.snapshot.text == asked.snapshot.text


def _unfinished() -> FillResult:
    """What is said at the deadline when the model never got to the request."""
    nothing = Timings(prefill=0.0, denoise=0.0, postprocess=0.0, total=0.0, predict=0.0)
    return FillResult("", (), (Rejection(Reason.UNFINISHED),), 0, 0, 0.0, 0, 0, nothing)
