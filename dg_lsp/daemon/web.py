"""The HTTP API over a daemon's models, in a thread of its own: editors and HTTP clients have one model."""

import threading
import time
from collections.abc import Callable

from dg_lsp.engine.scheduler import SchedulerSession
from dg_lsp.http.gate import Rules
from dg_lsp.http.listening import Address, Listening
from dg_lsp.settings import Settings

_LEAVING_SECONDS = 10.0


class Web:
    """Binds at once; serves from `start` to `stop`."""

    def __init__(
        self, address: Address, share: Callable[[Settings], SchedulerSession], settings: Settings, rules: Rules
    ) -> None:
        """`share` takes a part in the model of the settings.

        Raises:
            UsageError: as of `Listening`.
        """
        self._listening = Listening(address, share, settings, rules, is_lasting=True)
        self._thread = threading.Thread(target=self._listening.run, name="dg-lsp-http", daemon=True)
        self._num_answers = 0
        self._last_used = time.monotonic()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return self._listening.url

    def start(self) -> None:
        """Begins to serve, and to open the model."""
        self._thread.start()

    def stop(self) -> None:
        """Ends what it was asked, and waits for that."""
        self._listening.stop()
        if self._thread.is_alive():
            self._thread.join(_LEAVING_SECONDS)
        else:
            self._listening.close()

    def idle_seconds(self) -> float:
        """Since somebody last asked for anything, as far as whoever calls this now and then has seen."""
        num_answers, is_busy = self._listening.activity()
        if is_busy or num_answers != self._num_answers:
            self._num_answers, self._last_used = num_answers, time.monotonic()
        return time.monotonic() - self._last_used
