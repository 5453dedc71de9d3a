"""What a daemon leaves for the next one in case it dies: which models were at work, and its last words."""

import faulthandler
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from dg_lsp.daemon.place import write_private

_WORK, _WORDS = "daemon.work", "daemon.crash"
_SETTLED = 1.0
"""Seconds after which a model with nothing to do is no longer at work: what was asked has reached it by then."""
KILLED = "killed"
_MARKS = ("Fatal Python error: ", "Windows fatal exception: ")


class Working:
    """Models at work, on disk. Methods may be called by any thread."""

    def __init__(self, folder: Path) -> None:
        self._work, self._words = folder / _WORK, folder / _WORDS
        self._busy: dict[str, tuple[float, Callable[[], bool]]] = {}
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def begin(self, model: str, is_idle: Callable[[], bool]) -> bool:
        """Something is about to be asked of the model, which says itself when it has nothing to do; whether it had."""
        with self._lock:
            is_new = model not in self._busy
            self._busy[model] = (time.monotonic(), is_idle)
            if is_new:
                self._write()
        return is_new

    def end(self, model: str) -> None:
        """It has nothing to do any more."""
        with self._lock:
            if self._busy.pop(model, None) is not None:
                self._write()

    def sweep(self) -> None:
        """Takes away those that have nothing to do."""
        settled = time.monotonic() - _SETTLED
        with self._lock:
            idle = [model for model, (asked, is_idle) in self._busy.items() if asked < settled and is_idle()]
            for model in idle:
                del self._busy[model]
            if idle:
                self._write()

    def listen(self) -> None:
        """From now on this process says why, if a signal ends it: names of functions, and no text."""
        self._file = self._words.open("wb")
        self._words.chmod(0o600)
        faulthandler.enable(self._file)

    def last(self) -> tuple[str, list[str], str]:
        """How the daemon before ended, its models at work, and all that it said."""
        how, models, words = KILLED, [], ""
        with suppress(OSError):
            words = self._words.read_text(encoding="utf-8", errors="replace")
            how = next((words.partition(mark)[2].partition("\n")[0] for mark in _MARKS if mark in words), KILLED)
        with suppress(OSError, ValueError):
            models = [str(one) for one in json.loads(self._work.read_text(encoding="utf-8"))]
        return how, models, words

    def clear(self) -> None:
        """Nobody has to know any more."""
        if self._file is not None:
            faulthandler.disable()
            self._file.close()
        with self._lock:
            self._busy.clear()
        self._work.unlink(missing_ok=True)
        self._words.unlink(missing_ok=True)

    def _write(self) -> None:
        with suppress(OSError):  # a full disk keeps nobody from having a model
            write_private(self._work, [*self._busy])
