"""Models that several sessions share: opened when the first one asks, closed some time after the last one has left."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import attrs

from dg_lsp.daemon.working import Working
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.scheduler import Scheduler, SchedulerSession
from dg_lsp.errors import ModelMemoryError
from dg_lsp.settings import Settings

_OF_A_SESSION = ("fill", "exclude", "rewrite", "context", "audit", "http", "daemon")
"""Settings that two sessions of one model may have each their own of."""


@dataclass(slots=True, eq=False)
class _Held:
    """One model in memory."""

    worker: Scheduler
    num_shares: int = 0
    idle_since: float = 0.0
    """`time.monotonic` seconds at which the last session left."""
    is_wanted: bool = False
    """Something was asked of it."""


class Pool:
    """One worker for each model and way to run it. All methods may be called by any thread."""

    def __init__(
        self,
        open_engine: Callable[[Settings], Engine],
        idle_seconds: float,
        working: Working | None = None,
    ) -> None:
        """`working` is told before a model is opened, and before something is asked of an open one."""
        self._working = working
        self._open_engine = open_engine
        self._idle_seconds = idle_seconds
        self._held: dict[Settings, _Held] = {}
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        """One at a time: two would take the same memory for free."""

    def share(self, settings: Settings) -> SchedulerSession:
        """A part in the model of these settings, which begins to be opened if it is not open."""
        key = _key(settings)
        with self._lock:
            held = self._held.get(key)
            if held is None or _has_failed(held.worker):  # what was missing may be there by now
                held = self._held[key] = _Held(Scheduler.of(self._open, settings))
            held.num_shares += 1
        return SchedulerSession(
            held.worker, settings.fill, partial(self._leave, held), partial(self._ask, held, key.model)
        )

    def sweep(self) -> None:
        """Closes what nobody has needed for long enough."""
        limit = time.monotonic() - self._idle_seconds
        with self._lock:
            idle = [key for key, held in self._held.items() if not held.num_shares and held.idle_since <= limit]
            closing = [self._held.pop(key).worker for key in idle]
        for worker in closing:
            worker.close()

    def facts(self) -> list[dict[str, Any]]:
        """The models for `dg-lsp daemon status`; plain JSON values."""
        with self._lock:
            return [
                {"model": key.model, "state": _state(held.worker), "sessions": held.num_shares}
                for key, held in self._held.items()
            ]

    def close(self) -> None:
        """Closes all of them."""
        with self._lock:
            closing, self._held = list(self._held.values()), {}
        for held in closing:
            held.worker.close()

    def _open(self, settings: Settings) -> Engine:
        """The engine; where there is no memory for it, models that no session has are closed, the longest idle first.

        Raises:
            ModelError, BackendError: it cannot be opened.
        """
        key = _key(settings)
        with self._opening, self._at_work(key):
            while True:
                try:
                    return self._open_engine(settings)
                except ModelMemoryError as error:
                    if not self._close_one(key):
                        raise self._with_holders(error, key) from error

    @contextmanager
    def _at_work(self, key: Settings) -> Iterator[None]:
        """Only the model that is being opened, or that somebody waits for, is to blame for what happens meanwhile."""
        if self._working is None:
            yield
            return
        is_new = self._working.begin(key.model, partial(self._is_idle, key.model))
        try:
            yield
        finally:
            with self._lock:
                held = self._held.get(key)
            if is_new and not (held is not None and held.is_wanted):
                self._working.end(key.model)

    def _ask(self, held: _Held, model: str) -> None:
        held.is_wanted = True
        if self._working is not None and held.worker.ready.done():
            self._working.begin(model, partial(self._is_idle, model))

    def _close_one(self, but: Settings) -> bool:
        """Closes the model that no session has had for the longest time; whether there was one."""
        with self._lock:
            unneeded = [key for key, held in self._held.items() if not held.num_shares and key != but]
            if not unneeded:
                return False
            worker = self._held.pop(min(unneeded, key=lambda key: self._held[key].idle_since)).worker
        worker.close()
        return True

    def _with_holders(self, error: ModelMemoryError, but: Settings) -> ModelMemoryError:
        with self._lock:
            holders = [
                f"{key.model} ({held.num_shares} session{'s' if held.num_shares != 1 else ''})"
                for key, held in self._held.items()
                if key != but and _state(held.worker) == "ready"
            ]
        return ModelMemoryError(f"{error}; the daemon also holds {', '.join(holders)}") if holders else error

    def _is_idle(self, model: str) -> bool:
        with self._lock:
            return all(held.worker.is_idle for key, held in self._held.items() if key.model == model)

    def _leave(self, held: _Held) -> None:
        with self._lock:
            held.num_shares -= 1
            held.idle_since = time.monotonic()


def _key(settings: Settings) -> Settings:
    """What a model is opened by: all settings but those that a session has of its own."""
    plain, there = Settings(), {field.name for field in attrs.fields(Settings)}
    return attrs.evolve(settings, **{name: getattr(plain, name) for name in _OF_A_SESSION if name in there})


def _has_failed(worker: Scheduler) -> bool:
    return worker.ready.done() and worker.ready.exception() is not None


def _state(worker: Scheduler) -> str:
    if not worker.ready.done():
        return "loading"
    if _has_failed(worker):
        return "failed"
    return "asleep" if worker.is_asleep else "ready"
