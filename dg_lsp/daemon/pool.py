"""Models that sessions share: opened for the first session, closed some time after the last one has left."""

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request_queue import SharedDevice
from dg_lsp.engine.resident_models import SchedulerSession
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.errors import ModelMemoryError
from dg_lsp.settings import Settings


@dataclass(slots=True, eq=False)
class _Model:
    """One model in memory, or on its way there."""

    key: Hashable
    name: str
    scheduler: Scheduler
    num_sessions: int = 0
    timer: threading.Timer = field(default_factory=lambda: threading.Timer(0.0, lambda: None))
    """Closes the model; started when the last session leaves, and cancelled when the next one joins."""

    @property
    def state(self) -> str:
        if not self.scheduler.ready.done():
            return "loading"
        if self.scheduler.ready.exception() is not None:
            return "failed"
        return "asleep" if self.scheduler.is_asleep else "ready"


class Pool:
    """One scheduler for each model and its runtime settings. Any thread may call."""

    def __init__(self, open_engine: Callable[[Settings], Engine], idle_seconds: float) -> None:
        """A model is closed `idle_seconds` after its last session has left."""
        self._open_engine = open_engine
        self._idle_seconds = idle_seconds
        self._models: dict[Hashable, _Model] = {}
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        """Held while models are closed. A thread that gets it finds their memory free."""
        self._num_closed = 0
        self._device = SharedDevice()

    def share(self, settings: Settings) -> SchedulerSession:
        """A session's share of the model of these settings, which is opened if it is not open."""
        key = settings.model_key
        with self._lock:
            model = self._models.get(key)
            if model is None or model.state == "failed":  # what was missing may be there by now
                scheduler = Scheduler.of(self._open, settings, self._device)
                model = self._models[key] = _Model(key, settings.model.name, scheduler)
            model.timer.cancel()
            model.num_sessions += 1
        return SchedulerSession(model.scheduler, settings.completion, partial(self._leave, model))

    def facts(self) -> list[dict[str, Any]]:
        """The models for `dg-lsp daemon status`, as JSON values."""
        with self._lock:
            return [
                {"model": model.name, "state": model.state, "sessions": model.num_sessions}
                for model in self._models.values()
            ]

    def close(self) -> None:
        """Closes all models, also those with sessions."""
        for model in tuple(self._models.values()):
            model.timer.cancel()
            model.scheduler.close()

    def _leave(self, model: _Model) -> None:
        with self._lock:
            model.num_sessions -= 1
            if not model.num_sessions:
                model.timer = threading.Timer(self._idle_seconds, self._close_unused, ((model,),))
                model.timer.daemon = True
                model.timer.start()

    def _close_unused(self, models: Iterable[_Model]) -> None:
        """Closes those of the models that have no session. A model that failed may have a successor with its key."""
        with self._closing:
            with self._lock:
                unused = [model for model in models if not model.num_sessions]
                for model in unused:
                    model.timer.cancel()
                    if self._models.get(model.key) is model:
                        del self._models[model.key]
            for model in unused:
                model.scheduler.close()
                self._num_closed += 1

    def _open(self, settings: Settings) -> Engine:
        """The engine. Where its memory is missing, models without a session are closed for it."""
        while True:
            num_closed = self._num_closed
            try:
                return self._open_engine(settings)
            except ModelMemoryError as error:
                self._close_unused([model for model in tuple(self._models.values()) if model.key != settings.model_key])
                if self._num_closed == num_closed:
                    raise self._with_holders(error) from error

    def _with_holders(self, error: ModelMemoryError) -> ModelMemoryError:
        """The error with the models that take the memory."""
        ready = [(facts["model"], facts["sessions"]) for facts in self.facts() if facts["state"] == "ready"]
        holders = [f"{name} ({sessions} session{'s' * (sessions != 1)})" for name, sessions in ready]
        return ModelMemoryError(f"{error}; the daemon also holds {', '.join(holders)}") if holders else error
