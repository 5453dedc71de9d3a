"""Where the daemon of a user is reached: its folder, and in it the record, the lock, the socket and the log.

Only the user can read the folder and its files. Every connection starts with the token of the record, so a process
that can read the record can use the daemon. A record, socket or folder that belongs to another user, or that another
user can write, is ignored.
"""

import errno
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dg_lsp.errors import DaemonError, DaemonRunsError
from dg_lsp.system import VARIABLE as DATA_VARIABLE
from dg_lsp.system import data_folder

if TYPE_CHECKING:
    from filelock import FileLock

VARIABLE = "DG_LSP_DAEMON_DIR"
"""Environment variable with the path of another folder."""
STOP_SECONDS = 20.0
"""Time for a daemon that is leaving to end its sessions and close its models."""
_LONGEST_PATH = 100
"""Bytes of a Unix socket's path; systems allow 104 or 108."""
_LONGEST_LOG = 1 << 20
_BACKLOG = 32
_TICK = 0.05


@dataclass(frozen=True, slots=True)
class Record:
    """How one daemon is reached."""

    version: str
    pid: int
    token: str
    """Sent by the client first."""
    proof: str = ""
    """The daemon's reply to the token. A process that took over the port of a dead daemon cannot send it."""
    path: str = ""
    """Of the Unix socket; empty for TCP."""
    host: str = ""
    port: int = 0

    @property
    def address(self) -> str:
        """Socket path or HOST:PORT, for messages."""
        return self.path or f"{self.host}:{self.port}"


class Endpoint:
    """The folder of one daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = folder / "daemon.lock"
        """Locked by the daemon while it lives."""
        self.socket_path = folder / "daemon.sock"
        self.log = folder / "daemon.log"
        """Standard error of the daemon. No text of a buffer is written to it."""
        self.crashes = folder / "daemon.crashes"
        """The file of `pool.CrashLog`."""
        self._record = folder / "daemon.json"

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> "Endpoint":
        """The current user's: in the runtime directory of the login session, else in the data folder."""
        if given := environment.get(VARIABLE):
            return cls(Path(given).expanduser().absolute())
        runtime_folder = environment.get("XDG_RUNTIME_DIR")
        if runtime_folder and not environment.get(DATA_VARIABLE):
            return cls(Path(runtime_folder) / "dg-lsp")
        return cls(data_folder().absolute() / "daemon")

    def prepare(self) -> None:
        """Creates the folder, readable by the user only.

        Raises:
            DaemonError: the folder cannot be created, or belongs to another user.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_private(self.folder.stat(), forbidden=0):  # root could change it, and must not
                raise PermissionError(errno.EPERM, "it belongs to another user")
            self.folder.chmod(0o700)
        except OSError as error:
            raise DaemonError(f"{self.folder} cannot be used ({error.strerror or error}); set {VARIABLE}") from error

    def read(self) -> Record | None:
        """The record; None where there is none that can be trusted. The daemon may have died since."""
        try:
            if not is_private(self.folder.stat(), stat.S_IWGRP | stat.S_IWOTH):
                return None
            with self._record.open(encoding="utf-8") as file:
                if not is_private(os.fstat(file.fileno())):
                    return None
                record = Record(**json.load(file))
        except (OSError, ValueError, TypeError):
            return None
        return record if isinstance(record.pid, int) and isinstance(record.port, int) else None

    def write(self, record: Record) -> None:
        """Publishes the record, atomically."""
        write_private(self._record, asdict(record))

    def clear(self) -> None:
        """Removes record and socket. The caller holds the lock."""
        self._record.unlink(missing_ok=True)
        self.socket_path.unlink(missing_ok=True)

    def acquire_lock(self) -> "FileLock":
        """Locks the folder for a daemon; waits for one that is leaving, which has no record any more.

        Raises:
            DaemonRunsError: another daemon runs.
            DaemonError: the folder cannot be used.
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
        return lock

    def listen(self, *, is_tcp: bool) -> socket.socket:
        """A listening Unix socket; a TCP socket on a free port of loopback where `is_tcp`, or the path is too long.

        Raises:
            DaemonError: the system refuses.
        """
        if is_tcp or len(os.fsencode(self.socket_path)) > _LONGEST_PATH:
            return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)  # the token is not encrypted
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self.socket_path))
            self.socket_path.chmod(0o600)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise DaemonError(f"the daemon cannot listen ({error.strerror or error})") from error
        return listener

    def open_log(self) -> IO[bytes]:
        """The log, to append to; a long one is emptied."""
        is_long = self.log.exists() and self.log.stat().st_size > _LONGEST_LOG
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if is_long else 0)
        return os.fdopen(os.open(self.log, flags, 0o600), "wb")


def is_private(found: os.stat_result, forbidden: int = stat.S_IRWXG | stat.S_IRWXO) -> bool:
    """Whether it belongs to the user and grants others nothing of `forbidden`; always true on Windows."""
    return sys.platform == "win32" or (found.st_uid == os.getuid() and not found.st_mode & forbidden)


def write_private(path: Path, tree: Any) -> None:
    """Writes JSON that only the user can read, atomically.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(tree, file)
    draft.replace(path)
