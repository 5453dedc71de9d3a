"""The files of the user's daemons: a record, a lock and a socket for each version of dg-lsp, and one log.

Only the user can read their folder, so a process that can read a record can use the daemon. A folder that another user
owns or can use is ignored.
"""

import errno
import os
import socket
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dg_lsp import __version__
from dg_lsp.errors import DaemonError, DaemonRunsError
from dg_lsp.system import VARIABLE as DATA_VARIABLE
from dg_lsp.system import data_folder, read_record, write_private

if TYPE_CHECKING:
    from filelock import FileLock

VARIABLE = "DG_LSP_DAEMON_DIR"
"""Environment variable with the path of another folder."""
STOP_SECONDS = 20.0
"""Time for a daemon that stops to end its sessions and close its models."""
_LONGEST_PATH = 100
"""Bytes of a Unix socket's path; systems allow 104 or 108."""
_LONGEST_LOG = 1 << 20
_BACKLOG = 32
_TICK = 0.05


@dataclass(frozen=True, slots=True)
class Record:
    """How one daemon is reached."""

    pid: int
    started: float  # seconds since 1970
    token: str  # the client sends it first
    proof: str  # the daemon's reply, which a process that took over the port of a dead daemon cannot send
    address: str  # absolute path of a Unix socket, or HOST:PORT


class Endpoint:
    """The files of one version's daemon."""

    def __init__(self, folder: Path, version: str = __version__) -> None:
        self.folder = folder
        self.version = version
        self.lock = folder / f"daemon-{version}.lock"
        """Locked by the daemon while it lives."""
        self.socket_path = folder / f"daemon-{version}.sock"
        self.record_path = folder / f"daemon-{version}.json"
        self.log = folder / "daemon.log"
        """Standard error of the daemons. No text of a buffer is written to it."""

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> "Endpoint":
        """The current user's: in the runtime directory of the login session, else in the data folder."""
        if named := environment.get(VARIABLE):
            return cls(Path(named).expanduser().absolute())
        runtime_folder = environment.get("XDG_RUNTIME_DIR")
        if runtime_folder and Path(runtime_folder).is_absolute() and not environment.get(DATA_VARIABLE):
            return cls(Path(runtime_folder) / "dg-lsp")
        return cls(data_folder().absolute() / "daemon")

    def all_versions(self) -> "list[Endpoint]":
        """The daemons of all versions that run or crashed."""
        versions = [path.stem.removeprefix("daemon-") for path in sorted(self.folder.glob("daemon-*.json"))]
        endpoints = [Endpoint(self.folder, version) for version in versions]
        return [endpoint for endpoint in endpoints if endpoint.read() is not None]

    def prepare(self) -> None:
        """Creates the folder, readable by the user only; DaemonError if it cannot, or it belongs to another user."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self.folder, forbidden=0):  # root could change it, and must not
                raise PermissionError(errno.EPERM, "it belongs to another user")
            self.folder.chmod(0o700)
        except OSError as error:
            raise self._unusable(error) from error

    def acquire_lock(self) -> "FileLock":
        """The lock of a new daemon. Waits for a daemon that stops: it still has the lock, but no record.

        Raises DaemonRunsError if another daemon runs, DaemonError if the folder cannot be used.
        """
        from filelock import FileLock, Timeout

        self.prepare()
        lock = FileLock(self.lock, mode=0o600, thread_local=False)
        end = time.monotonic() + STOP_SECONDS
        while not lock.is_locked:
            try:
                lock.acquire(timeout=_TICK)
            except Timeout as error:
                if self.read() is not None or time.monotonic() > end:
                    raise DaemonRunsError("a daemon runs already: see dg-lsp daemon status") from error
            except OSError as error:
                raise self._unusable(error) from error
        return lock

    def listen(self) -> socket.socket:
        """A listening Unix socket; on Windows, and if the path is too long, a TCP socket for this machine."""
        try:
            if sys.platform == "win32" or len(os.fsencode(self.socket_path)) > _LONGEST_PATH:
                return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)  # the token is not encrypted
            listener = socket.create_server(str(self.socket_path), family=socket.AF_UNIX, backlog=_BACKLOG)
            self.socket_path.chmod(0o600)
        except OSError as error:
            raise DaemonError(f"the daemon cannot listen ({error.strerror or error}); set {VARIABLE}") from error
        return listener

    def write(self, record: Record) -> None:
        """Publishes the record, atomically, or raises DaemonError."""
        try:
            write_private(self.record_path, asdict(record))
        except OSError as error:
            raise self._unusable(error) from error

    def read(self) -> Record | None:
        """The record; None if there is no record that can be trusted. The daemon may have died since."""
        with suppress(OSError):
            if _is_private(self.folder):  # before anything in it is read
                record = read_record(self.record_path, lambda tree: Record(**tree))
                return record if record and isinstance(record.pid, int) and isinstance(record.address, str) else None
        return None

    def clear(self) -> None:
        """Removes record and socket. The caller holds the lock."""
        self.record_path.unlink(missing_ok=True)
        self.socket_path.unlink(missing_ok=True)

    def open_log(self) -> IO[bytes]:
        """The log, to append to; a long log is emptied."""
        is_long = self.log.exists() and self.log.stat().st_size > _LONGEST_LOG
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if is_long else 0)
        return os.fdopen(os.open(self.log, flags, 0o600), "wb")

    def _unusable(self, error: OSError) -> DaemonError:
        return DaemonError(f"{self.folder} cannot be used ({error.strerror or error}); set {VARIABLE}")


def _is_private(folder: Path, forbidden: int = stat.S_IRWXG | stat.S_IRWXO) -> bool:
    """Whether it belongs to the user and grants others nothing of `forbidden`; always true on Windows."""
    entry = folder.stat()
    return sys.platform == "win32" or (entry.st_uid == os.getuid() and not entry.st_mode & forbidden)
