"""How a relay comes by a server: a daemon that runs, one that it starts, or a process of its own. Light."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from dg_lsp import __version__
from dg_lsp.daemon.calling import SECONDS, Refused, ask, call
from dg_lsp.daemon.place import Place
from dg_lsp.daemon.upstream import ChildUpstream, DaemonUpstream, Upstream

START_SECONDS = 60.0
RETURN_SECONDS = 2.0
"""For another editor to have started the daemon again."""
MAX_DEATHS = 3
"""In `DEATH_SECONDS`. A daemon that dies more often is not started once more, nor a process of the relay's own."""
DEATH_SECONDS = 600.0
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


@dataclass(slots=True)
class Ends:
    """When servers of one relay ended, without having been told to."""

    daemons: list[float] = field(default_factory=list)
    children: list[float] = field(default_factory=list)

    def note(self, *, is_daemon: bool) -> None:
        """One did, just now."""
        (self.daemons if is_daemon else self.children).append(time.monotonic())

    def recent(self) -> tuple[int, int]:
        """How many daemons and processes of the relay's own have ended lately."""
        limit = time.monotonic() - DEATH_SECONDS
        self.daemons, self.children = ([one for one in ends if one > limit] for ends in (self.daemons, self.children))
        return len(self.daemons), len(self.children)


class Finder:
    """Looks for a server; `find` takes a while, and is called by one thread at a time."""

    def __init__(self, ways: Ways, heard: Callable[[Upstream, bytes | None], None]) -> None:
        self._ways = ways
        self._heard = heard
        self._place = Place.at(ways.folder)
        self.ends = Ends()

    def note_end(self, *, is_daemon: bool) -> None:
        """A server has ended; a daemon that left as it should has taken its record along, and may be started again."""
        if not (is_daemon and self._place.read() is None):
            self.ends.note(is_daemon=is_daemon)

    def find(self) -> Found:
        """The best server to be had; none where nothing can be started, or what was started has ended too often."""
        num_daemons, num_children = self.ends.recent()
        is_over = num_children >= MAX_DEATHS
        time.sleep(0.0 if is_over else _PAUSES[min(num_daemons + num_children, len(_PAUSES) - 1)])
        try:
            found, said = self._daemon(is_started=num_daemons <= MAX_DEATHS and not is_over)
        except Refused as refused:
            found, said = None, str(refused)
        if found is not None:
            return Found(found)
        if is_over:
            return Found(None, f"the model's process ended {num_children} times in {DEATH_SECONDS / 60:.0f} min")
        if num_daemons > MAX_DEATHS:
            said = f"the daemon died {num_daemons} times in {DEATH_SECONDS / 60:.0f} min"
        try:
            child = ChildUpstream(self._ways.child, self._heard)
        except OSError as error:
            self.ends.note(is_daemon=False)
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

    def _daemon(self, *, is_started: bool) -> tuple[Upstream | None, str]:
        try:
            if (found := self.daemon()) is not None:
                return found, ""
        except Refused:
            if not (is_started and self._ways.starter and self._is_old_gone()):
                raise
        if not (is_started and self._ways.starter):
            return self._returned(), ""
        with _one_at_a_time(self._place):
            if (found := self.daemon()) is not None:
                return found, ""
            said = self._started()
        return self._returned(), said

    def _returned(self) -> Upstream | None:
        end = time.monotonic() + RETURN_SECONDS
        while (found := self.daemon()) is None and time.monotonic() < end:
            time.sleep(_TICK)
        return found

    def _is_old_gone(self) -> bool:
        """Has a daemon of an older version leave, unless it serves somebody."""
        record = self._place.read()
        try:
            if record is None or not _is_older(record.version) or "stopping" not in ask(record, "leave"):
                return False
        except (OSError, Refused):
            return False
        end = time.monotonic() + SECONDS
        while self._place.read() == record and time.monotonic() < end:  # until then it may still refuse us
            time.sleep(_TICK)
        return True

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


@contextmanager
def _one_at_a_time(place: Place) -> Iterator[None]:
    """Of several relays whose daemon has died one starts the next; the system lets go of it with the process."""
    if sys.platform == "win32":  # each starts one there, and the daemon's own lock decides
        yield
        return
    import fcntl

    descriptor = -1
    with suppress(OSError):  # the starter says what is wrong with the folder
        place.make()
        descriptor = os.open(place.starting, os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _is_older(version: str) -> bool:
    def parts(text: str) -> list[int]:
        return [int(part) for part in text.split(".") if part.isdigit()]

    return parts(version) < parts(__version__)
