"""The models of one session: one for completions, and one for rewrites and chats where the settings name it.

Each has a scheduler, or a share of one that serves several sessions.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from dg_lsp.engine.edit_source import NextEditRequest, proposes_edits
from dg_lsp.engine.request import ChatRequest, EngineRequest, FillRequest, RewriteRequest
from dg_lsp.engine.scheduler import ModelTime, OnFrame, Scheduler, SchedulerListener, ready_engine
from dg_lsp.settings import CompletionSettings, Settings

Result = TypeVar("Result")
_numbers = itertools.count(1)


class SchedulerSession:
    """One client of a shared scheduler. Sessions never cancel each other's requests, even for the same document."""

    def __init__(self, scheduler: Scheduler, settings: CompletionSettings, on_close: Callable[[], None]) -> None:
        self.ready = scheduler.ready
        self.listeners: tuple[SchedulerListener, ...] = ()
        self._scheduler = scheduler
        self._settings = settings
        self._on_close = on_close
        self._number = next(_numbers)
        self._pending: set[Future[Any]] = set()
        self._is_closed = False

    @property
    def model_time(self) -> ModelTime:
        """See `Scheduler.model_time`; of all sessions."""
        return self._scheduler.model_time

    def submit(self, request: EngineRequest[Result], on_frame: OnFrame | None = None) -> Future[Result]:
        """See `Scheduler.submit`."""
        request = replace(request, client=self._number)
        future = self._scheduler.submit(request, on_frame, self._settings, self.listeners)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def warm_up(self, request: FillRequest) -> None:
        """See `Scheduler.warm_up`."""
        self._scheduler.warm_up(replace(request, client=self._number), self._settings)

    def configure(self, settings: CompletionSettings) -> None:
        """See `Scheduler.configure`."""
        self._settings = settings
        self._number = next(_numbers)  # completions cached under the old number are not found any more

    def close(self) -> None:
        """Cancels the session's requests and leaves the model to the other sessions. Idempotent."""
        for future in tuple(self._pending):
            future.cancel()
        if not self._is_closed:
            self._is_closed = True
            self._on_close()


AnyScheduler = Scheduler | SchedulerSession
SchedulerT = TypeVar("SchedulerT", bound=AnyScheduler)
OpenScheduler = Callable[[Settings], SchedulerT]
"""Begins to load the model of these settings, or joins one that is loaded already."""


@dataclass(frozen=True, slots=True)
class ResidentModels(Generic[SchedulerT]):
    """Two schedulers, or the same one twice."""

    completion: SchedulerT
    rewrite: SchedulerT

    @classmethod
    def open(cls, open_scheduler: OpenScheduler[SchedulerT], settings: Settings) -> Self:
        """Begins to load the models of the settings, that of completions first."""
        completion = open_scheduler(settings)
        of_rewrites = settings.for_rewrites
        is_same = of_rewrites.model_key == settings.model_key
        return cls(completion, completion if is_same else open_scheduler(of_rewrites))

    @property
    def schedulers(self) -> tuple[SchedulerT, ...]:
        """The distinct schedulers."""
        return (self.completion,) if self.rewrite is self.completion else (self.completion, self.rewrite)

    def scheduler_for(self, request: EngineRequest[Any]) -> SchedulerT:
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
    def edit_source(self) -> SchedulerT | None:
        """The one whose model proposes next edits, that of rewrites first; None while none is loaded that does."""
        engines = ((scheduler, ready_engine(scheduler.ready)) for scheduler in (self.rewrite, self.completion))
        return next((scheduler for scheduler, engine in engines if engine and proposes_edits(engine.spec)), None)

    def listen(self, *listeners: SchedulerListener | None) -> None:
        """Reports the events of requests from the next one on to these listeners, in place of earlier ones."""
        for scheduler in self.schedulers:
            scheduler.listeners = tuple(listener for listener in listeners if listener is not None)

    def configure(self, settings: CompletionSettings) -> None:
        """See `Scheduler.configure`."""
        for scheduler in self.schedulers:
            scheduler.configure(settings)

    def close(self) -> None:
        """See `Scheduler.close`."""
        for scheduler in self.schedulers:
            scheduler.close()
