"""What a daemon takes for itself: its place's lock, and an address at which only the user's own programs reach it."""

import os
import socket
import sys
import tempfile
import time
from pathlib import Path

from filelock import FileLock, Timeout

from dg_lsp.daemon.place import Place
from dg_lsp.errors import DaemonError, DaemonRunsError

LEAVING_SECONDS = 20.0
"""For one that has been told to leave to be gone."""
_BACKLOG = 32
_TICK = 0.05


def locked(place: Place, seconds: float = LEAVING_SECONDS) -> FileLock:
    """The place's lock; one that is leaving, and can be found no more, is waited for.

    Raises:
        DaemonRunsError: there is a daemon.
        DaemonError: the place cannot be made.
    """
    end = time.monotonic() + seconds
    try:
        place.make()
        lock = FileLock(place.lock, mode=0o600, thread_local=False)
        while True:
            try:
                lock.acquire(timeout=0)
            except Timeout as error:
                if place.read() is not None or time.monotonic() > end:
                    raise DaemonRunsError("a daemon runs already: see dg-lsp daemon status") from error
                time.sleep(_TICK)
            else:
                return lock
    except OSError as error:
        raise DaemonError(
            f"{place.folder} cannot be used ({error.strerror or error}); set DG_LSP_DAEMON_DIR"
        ) from error


def listener(place: Place, port: int | None) -> socket.socket:
    """A Unix socket; with a port, and where there are none, TCP on loopback.

    Raises:
        DaemonError: that cannot be listened on.
    """
    try:
        return _tcp(port or 0) if port is not None or sys.platform == "win32" else _unix(place)
    except OSError as error:
        raise DaemonError(f"the daemon cannot listen ({error.strerror or error})") from error


def _unix(place: Place) -> socket.socket:
    # a folder of its own where the place's path is too long for a socket
    path = place.socket or Path(tempfile.mkdtemp(prefix="dg-lsp-")) / "daemon.sock"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        made.bind(str(path))
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    finally:
        os.umask(before)
    return made


def _tcp(port: int) -> socket.socket:
    """On loopback alone: the token goes over the wire as it is."""
    if not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
        return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:  # Windows lets others share a port that is not taken in this way
        made.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        made.bind(("127.0.0.1", port))
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made
