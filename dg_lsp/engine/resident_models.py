"""The models of one session: one for completions, and one for rewrites and chats where the settings name it.

Each has a scheduler, which other sessions may share.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from dg_lsp.engine.edit_source import NextEditRequest, proposes_edits
from dg_lsp.engine.request import ChatRequest, EngineRequest, FillRequest, RewriteRequest
from dg_lsp.engine.scheduler import OnFrame, Scheduler, SchedulerListener, ready_engine
from dg_lsp.settings import CompletionSettings, Settings

Result = TypeVar("Result")
OpenScheduler = Callable[[Settings], Scheduler]
"""Begins to load the model of these settings, or joins one that is loaded already."""
_numbers = itertools.count(1)


class ResidentModels:
    """Two schedulers, or the same one twice.

    Sessions that share one never cancel each other's requests, even for the same document.
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
