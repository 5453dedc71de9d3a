"""Models that sessions share: opened for the first session, closed some time after the last one has left.

`CrashLog` records which models were in use when daemons crashed: a model that crashes every daemon is refused.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dg_lsp.daemon.client import write_private
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request_queue import SharedDevice
from dg_lsp.engine.resident_models import SchedulerSession
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.engine.ttfue import Usage
from dg_lsp.errors import BackendError, ModelCrashedError, ModelMemoryError
from dg_lsp.settings import Settings

MAX_CRASHES = 3
"""A model that was in use in so many crashes of the last `CRASH_SECONDS` is refused."""
CRASH_SECONDS = 600.0
_SETTLE_SECONDS = 0.2
"""A request may take this long from the session to the model's queue."""


class CrashLog:
    """A small file of model names and times. Any thread may call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._in_use: Sequence[str] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def crashes(self) -> list[tuple[float, list[str]]]:
        """Recent crashes, oldest first: seconds since 1970, and the models in use at that time."""
        return self._read()[1]

    def set_in_use(self, models: Sequence[str]) -> None:
        """Names the models that are at fault if the daemon crashes now."""
        with self._lock:
            if models != self._in_use and not self._is_closed and self._write(models, self.crashes()):
                self._in_use = models

    def close(self) -> None:
        """No model is at fault any more; from now on the file belongs to another daemon."""
        self.set_in_use([])
        self._is_closed = True

    def add_crash(self) -> None:
        """The previous daemon crashed; the models that it named last are at fault."""
        in_use, crashes = self._read()
        self._write([], [*crashes, (time.time(), in_use)])

    def check(self, model: str) -> None:
        """Raises ModelCrashedError when the model crashed too many daemons."""
        times = [at for at, models in self.crashes() if model in models]
        if len(times) >= MAX_CRASHES:
            minutes = (CRASH_SECONDS - (time.time() - times[-MAX_CRASHES])) / 60
            raise ModelCrashedError(
                f"{model} crashed the daemon {len(times)} times and is refused for {minutes:.0f} min: choose another"
                " model, or run dg-lsp daemon stop to try it again"
            )

    def clear(self) -> None:
        """Forgets all crashes: the user wants to try again."""
        with self._lock:
            if self._path.exists():
                self._write(self._read()[0], [])

    def _read(self) -> tuple[list[str], list[tuple[float, list[str]]]]:
        try:
            tree = json.loads(self._path.read_text(encoding="utf-8"))
            crashes = [(float(at), [str(one) for one in models]) for at, models in tree["crashes"]]
            recent = [one for one in crashes if 0 <= time.time() - one[0] < CRASH_SECONDS]
            return [str(one) for one in tree["in_use"]], recent
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return [], []

    def _write(self, in_use: Sequence[str], crashes: Sequence[tuple[float, list[str]]]) -> bool:
        """False on a full disk: models work there too."""
        with suppress(OSError):
            write_private(self._path, {"in_use": in_use, "crashes": crashes})
            return True
        return False


@dataclass(slots=True, eq=False)
class _OpenModel:
    """One model in memory, or on its way there. All times are of `time.monotonic`."""

    name: str
    scheduler: Scheduler
    num_sessions: int = 0
    idle_since: float = 0.0  # when the last session left
    is_opening: bool = False
    is_opened: bool = False
    last_request: float | None = None  # none once all requests are done

    @property
    def is_in_use(self) -> bool:
        return self.is_opening or (self.is_opened and self.last_request is not None)

    @property
    def state(self) -> str:
        if not self.scheduler.ready.done():
            return "loading"
        if self.scheduler.ready.exception() is not None:
            return "failed"
        return "asleep" if self.scheduler.is_asleep else "ready"


class Pool:
    """One scheduler for each model and its runtime settings. Any thread may call."""

    def __init__(self, open_engine: Callable[[Settings], Engine], idle_seconds: float, crash_log: CrashLog) -> None:
        self._open_engine = open_engine
        self._idle_seconds = idle_seconds
        self._crash_log = crash_log
        self._usage = Usage()
        self._models: dict[tuple[object, ...], _OpenModel] = {}
        self._closing: list[threading.Thread] = []
        """Each closes a model."""
        self._lock = threading.Lock()
        self._device = SharedDevice()

    def share(self, settings: Settings) -> SchedulerSession:
        """A session's share of the model of these settings, which is opened where it is not open."""
        key = settings.model_key
        with self._lock:
            before = model = self._models.get(key)
            if model is None or model.state == "failed":  # what was missing may be there by now
                model = self._models[key] = _OpenModel(settings.model.name, self._scheduler(settings))
            model.num_sessions += 1
        self._close_replaced(before)
        callbacks = partial(self._leave, model), partial(self._note_request, model)
        return SchedulerSession(model.scheduler, settings.completion, *callbacks, self._usage)

    def sweep(self) -> None:
        """Closes models that no session has used for long enough; called about once a second.

        Does not wait for them: a model ends after its step, and the caller accepts clients.
        """
        now = time.monotonic()
        with self._lock:
            for model in self._models.values():
                last = model.last_request
                if last is not None and last < now - _SETTLE_SECONDS and model.scheduler.is_idle:
                    model.last_request = None
            idle = [key for key in self._unused() if self._models[key].idle_since <= now - self._idle_seconds]
            for model in [self._models.pop(key) for key in idle]:
                self._closing.append(threading.Thread(target=model.scheduler.close, daemon=True))
                self._closing[-1].start()
            self._update_crash_log()

    def facts(self) -> list[dict[str, Any]]:
        """The models for `dg-lsp daemon status`, as JSON values."""
        with self._lock:
            return [
                {"model": model.name, "state": model.state, "sessions": model.num_sessions}
                for model in self._models.values()
            ]

    def close(self) -> None:
        """Closes all models."""
        with self._lock:
            closing, self._models = list(self._models.values()), {}
        for model in closing:
            model.scheduler.close()
        self._wait_for_closing()

    def _scheduler(self, settings: Settings) -> Scheduler:
        return Scheduler.of(self._open, settings, self._device)

    def _open(self, settings: Settings) -> Engine:
        """The engine; closes unused models, the longest idle first, until there is memory for it."""
        key = settings.model_key
        with self._marked_as_opening(key):
            while True:
                try:
                    return self._open_engine(settings)
                except ModelMemoryError as error:
                    if self._wait_for_closing():
                        continue
                    with self._lock:
                        unused = [one for one in self._unused() if one != key]
                        closing = self._models.pop(unused[0]) if unused else None
                    if closing is None:
                        raise self._with_holders(error) from error
                    closing.scheduler.close()

    def _wait_for_closing(self) -> bool:
        """True if models were closed since the last call."""
        with self._lock:
            closing, self._closing = self._closing, []
        for thread in closing:
            thread.join()
        return bool(closing)

    @contextmanager
    def _marked_as_opening(self, key: tuple[object, ...]) -> Iterator[None]:
        with self._lock:
            model = self._models.get(key)
            if model is None:
                raise BackendError("the model was closed before it was opened")
            self._crash_log.check(model.name)
            model.is_opening, model.is_opened = True, False
            self._update_crash_log()
        try:
            yield
            model.is_opened = True
        finally:
            with self._lock:
                model.is_opening = False
                self._update_crash_log()

    def _unused(self) -> list[tuple[object, ...]]:
        """Models without a session, the longest idle first. The caller holds the lock."""
        keys = [key for key, model in self._models.items() if not model.num_sessions]
        return sorted(keys, key=lambda key: self._models[key].idle_since)

    def _update_crash_log(self) -> None:
        """The caller holds the lock."""
        self._crash_log.set_in_use(sorted({one.name for one in self._models.values() if one.is_in_use}))

    def _with_holders(self, error: ModelMemoryError) -> ModelMemoryError:
        ready = [(one["model"], one["sessions"]) for one in self.facts() if one["state"] == "ready"]
        holders = [f"{model} ({sessions} session{'s' * (sessions != 1)})" for model, sessions in ready]
        return ModelMemoryError(f"{error}; the daemon also holds {', '.join(holders)}") if holders else error

    def _note_request(self, model: _OpenModel) -> None:
        with self._lock:
            model.last_request = time.monotonic()
            self._update_crash_log()

    def _leave(self, model: _OpenModel) -> None:
        with self._lock:
            model.num_sessions -= 1
            model.idle_since = time.monotonic()
        self._close_replaced(model)

    def _close_replaced(self, model: _OpenModel | None) -> None:
        """Ends the thread of a model that failed and was opened again, when no session has it any more."""
        with self._lock:
            is_unused = model is not None and not model.num_sessions and model not in self._models.values()
        if model is not None and is_unused:
            model.scheduler.close()
