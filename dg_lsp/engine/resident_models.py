"""The models of one session: one for completions, and one for rewrites and chats where the settings name it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from dg_lsp.engine.request import ChatRequest, EngineRequest, RewriteRequest
from dg_lsp.engine.scheduler import AnyScheduler, ready_engine
from dg_lsp.settings import CompletionSettings, Settings

OpenScheduler = Callable[[Settings], AnyScheduler]
"""Begins to load the model of these settings, or joins one that is loaded already."""


@dataclass(frozen=True, slots=True)
class ResidentModels:
    """Two schedulers, or the same one twice."""

    completion: AnyScheduler
    rewrite: AnyScheduler

    @classmethod
    def open(cls, open_scheduler: OpenScheduler, settings: Settings) -> Self:
        """Begins to load the models of the settings, that of completions first."""
        completion, other = open_scheduler(settings), settings.for_rewrites
        return cls(completion, completion if other.model_key == settings.model_key else open_scheduler(other))

    def reopened(self, open_scheduler: OpenScheduler, settings: Settings) -> Self:
        """The same models, those that could not be opened being opened again."""

        def again(scheduler: AnyScheduler, own: Settings) -> AnyScheduler:
            if not scheduler.ready.done() or scheduler.ready.exception() is None:
                return scheduler
            scheduler.close()
            return open_scheduler(own)

        completion = again(self.completion, settings)
        is_one = self.rewrite is self.completion
        return type(self)(completion, completion if is_one else again(self.rewrite, settings.for_rewrites))

    @property
    def schedulers(self) -> tuple[AnyScheduler, ...]:
        """Each once."""
        return (self.completion,) if self.rewrite is self.completion else (self.completion, self.rewrite)

    def scheduler_for(self, request: EngineRequest[Any]) -> AnyScheduler:
        """The one that serves a request.

        Gaps are completions, and so is a text that is continued. A rewrite without an instruction that keeps a part of
        the selection needs a canvas; if its own model has none, it goes to that of completions.
        """
        if isinstance(request, ChatRequest):
            return self.completion if request.text is not None else self.rewrite
        if not isinstance(request, RewriteRequest) or request.holes:
            return self.completion
        if request.strength < 1 and not request.instruction.strip() and (engine := ready_engine(self.rewrite)):
            return self.rewrite if engine.spec.has_free_canvas else self.completion
        return self.rewrite

    def configure(self, settings: CompletionSettings) -> None:
        """See `Scheduler.configure`."""
        for scheduler in self.schedulers:
            scheduler.configure(settings)

    def close(self) -> None:
        """See `Scheduler.close`."""
        for scheduler in self.schedulers:
            scheduler.close()
