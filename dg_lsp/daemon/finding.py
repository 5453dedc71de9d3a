"""How a relay comes by a server: a daemon that runs, one that it starts, or a process of its own. Light."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dg_lsp.daemon.calling import Refused, call
from dg_lsp.daemon.place import Place
from dg_lsp.daemon.upstream import ChildUpstream, DaemonUpstream, Upstream

START_SECONDS = 30.0
RETURN_SECONDS = 2.0
"""For another editor to have started the daemon again."""
MAX_DEATHS = 3
"""In a row; a daemon that dies that often is not started once more."""
_PAUSES = (0.0, 0.0, 1.0, 2.0, 5.0, 15.0)
_TICK = 0.1


@dataclass(frozen=True, slots=True)
class Ways:
    """What a relay may do for a server."""

    folder: str
    """Of the daemon's `Place`."""
    hello: dict[str, Any]
    """What a session tells the daemon of itself."""
    starter: tuple[str, ...]
    """Starts a daemon and ends once it listens; empty where none is to be started."""
    child: tuple[str, ...]
    """Serves one editor over standard input and output."""


@dataclass(frozen=True, slots=True)
class Found:
    """A server, or why there is none, and what is to be said about it."""

    upstream: Upstream | None
    said: str = ""


class Finder:
    """Looks for a server; `find` takes a while, and is called by one thread at a time."""

    def __init__(self, ways: Ways, heard: Callable[[Upstream, bytes | None], None]) -> None:
        self._ways = ways
        self._heard = heard
        self._place = Place.at(ways.folder)

    def find(self, num_deaths: int) -> Found:
        """The best server to be had, after so many that died young in a row; none where nothing can be started."""
        time.sleep(_PAUSES[min(num_deaths, len(_PAUSES) - 1)])
        try:
            found, said = self._daemon(num_deaths)
        except Refused as refused:
            found, said = None, str(refused)
        if found is not None:
            return Found(found)
        try:
            child = ChildUpstream(self._ways.child, self._heard)
        except OSError as error:
            return Found(None, f"no server can be started ({error.strerror})")
        return Found(child, f"{said or 'no daemon runs'}; this editor has a server of its own")

    def daemon(self) -> Upstream | None:
        """The daemon, where one answers at once.

        Raises:
            Refused: it does not want us.
        """
        record = self._place.read()
        if record is None:
            return None
        try:
            connection = call(record, "session", **self._ways.hello).socket
        except OSError:
            return None
        return DaemonUpstream(connection, self._heard)

    def _daemon(self, num_deaths: int) -> tuple[Upstream | None, str]:
        if num_deaths > MAX_DEATHS:
            return None, f"the daemon died {num_deaths} times in a row"
        if (found := self.daemon()) is not None:
            return found, ""
        said = self._started() if self._ways.starter else ""
        end = time.monotonic() + RETURN_SECONDS
        while (found := self.daemon()) is None and time.monotonic() < end:
            time.sleep(_TICK)
        return found, said

    def _started(self) -> str:
        """Starts a daemon; why that failed, or nothing."""
        try:
            done = subprocess.run(
                self._ways.starter, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"the daemon cannot be started ({type(error).__name__})"
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return "" if done.returncode == 0 else (lines[-1] if lines else "the daemon cannot be started")
