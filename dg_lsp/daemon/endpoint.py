"""How the user's daemons are reached: their files, one set for each version of dg-lsp, connections, and a new daemon.

Only the user can read the folder of the files, so a process that can read a record can use the daemon. A folder that
another user owns or can use is ignored.

A connection begins with two lines of JSON each way. The client sends the token, and the daemon replies with its proof.
Then the client sends its request, and the daemon answers or refuses it. After `session` the connection carries the
messages of the language server.
"""

import errno
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from dg_lsp import __version__
from dg_lsp.errors import DaemonError, DaemonRunsError
from dg_lsp.server import pipe
from dg_lsp.system import DATA_VARIABLE, NEUTRAL_FOLDER, data_folder, is_present, read_record, write_private

DAEMON_VARIABLE = "DG_LSP_DAEMON_DIR"
"""Environment variable with the path of another folder."""
SECONDS = 5.0
"""Seconds for the other side of a connection to answer."""
START_SECONDS = 60.0
STOP_SECONDS = 20.0
"""Time for a daemon that stops to end its sessions and close its models."""
READY = "ready"
_LONGEST_LINE = 1 << 20
_LONGEST_PATH = 100
"""Bytes of a Unix socket's path; systems allow 104 or 108."""
_LONGEST_LOG = 1 << 20
_BACKLOG = 32
_TICK = 0.05
_LAUNCHER = "import subprocess, sys; subprocess.Popen(sys.argv[2:], creationflags=int(sys.argv[1]))"
"""The daemon must not be a child of the editor's process: editors end a server together with its children."""


@dataclass(frozen=True, slots=True)
class DaemonRecord:
    """How one daemon is reached."""

    pid: int
    started: float  # seconds since 1970
    token: str  # the client sends it first
    proof: str  # the daemon's reply, which a process that took over the port of a dead daemon cannot send
    address: str  # absolute path of a Unix socket, or HOST:PORT


class Endpoint:
    """The files of one version's daemon, and connections to it."""

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
        if named := environment.get(DAEMON_VARIABLE):
            return cls(Path(named).expanduser().absolute())
        runtime_folder = environment.get("XDG_RUNTIME_DIR")
        if runtime_folder and Path(runtime_folder).is_absolute() and not environment.get(DATA_VARIABLE):
            return cls(Path(runtime_folder) / "dg-lsp")
        return cls(data_folder().absolute() / "daemon")

    def records(self) -> dict[str, DaemonRecord]:
        """The records of the daemons that run or crashed, by their versions."""
        paths = self.folder.glob("daemon-*.json") if is_present(self.folder) else ()
        versions = sorted(path.stem.removeprefix("daemon-") for path in paths)
        return {version: record for version in versions if (record := Endpoint(self.folder, version).read())}

    def prepare(self) -> None:
        """Creates the folder, readable by the user only; DaemonError if it cannot, or it belongs to another user."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self.folder, forbidden=0):  # root could change it, and must not
                raise PermissionError(errno.EPERM, "it belongs to another user")
            self.folder.chmod(0o700)
        except OSError as error:
            raise self._unusable(error) from error

    def acquire_lock(self) -> AbstractContextManager[object]:
        """The lock of a new daemon. Waits for a daemon that stops: it still has the lock, but no record.

        Raises DaemonRunsError if another daemon runs, DaemonError if the folder cannot be used.
        """
        from filelock import FileLock, Timeout

        self.prepare()
        lock = FileLock(self.lock, mode=0o600, thread_local=False)
        end = time.monotonic() + STOP_SECONDS
        while True:
            try:
                return lock.acquire(timeout=_TICK)
            except Timeout as error:
                if self.read() is not None or time.monotonic() > end:
                    raise DaemonRunsError("a daemon runs already: see dg-lsp daemon status") from error
            except OSError as error:
                raise self._unusable(error) from error

    def listen(self) -> socket.socket:
        """A listening Unix socket; on Windows, and if the path is too long, a TCP socket for this machine."""
        try:
            if sys.platform == "win32" or len(os.fsencode(self.socket_path)) > _LONGEST_PATH:
                return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)  # the token is not encrypted
            listener = socket.create_server(str(self.socket_path), family=socket.AF_UNIX, backlog=_BACKLOG)
            self.socket_path.chmod(0o600)
        except OSError as error:
            raise DaemonError(f"the daemon cannot listen ({error.strerror or error}); set {DAEMON_VARIABLE}") from error
        return listener

    def write(self, record: DaemonRecord) -> None:
        """Publishes the record, atomically, or raises DaemonError."""
        try:
            write_private(self.record_path, asdict(record))
        except OSError as error:
            raise self._unusable(error) from error

    def read(self) -> DaemonRecord | None:
        """The record; None if there is no record that can be trusted. The daemon may have died since."""
        with suppress(OSError):
            if _is_private(self.folder):  # before anything in it is read
                record = read_record(self.record_path, lambda tree: DaemonRecord(**tree))
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

    def open_session(self, settings: Mapping[str, Any], command: Sequence[str]) -> socket.socket:
        """A connection that carries the messages of one editor; starts a daemon if none answers, as `start` does."""
        request = {"want": "session"} | dict(settings)
        if (answered := self.call(request)) is None:
            self.start(command)
            answered = self.call(request)
        if answered is None:
            raise DaemonError(f"the daemon ended at once; {self.log} may contain the reason")
        return answered[0]

    def query(self, request: str) -> dict[str, Any] | None:
        """The daemon's answer to `status` or `stop`; None if no daemon runs. Raises as `call` does."""
        if (answered := self.call({"want": request})) is None:
            return None
        answered[0].close()
        return answered[1]

    def call(self, request: Mapping[str, Any]) -> tuple[socket.socket, dict[str, Any]] | None:
        """A connection, which stays open, and the daemon's answer to the request; None if no daemon runs.

        Raises DaemonError if the daemon refuses the request, or does not answer in time.
        """
        if (record := self.read()) is None:
            return None
        try:
            with ExitStack() as stack:
                host, _, port = record.address.rpartition(":")
                is_path = record.address.startswith("/")
                connection = stack.enter_context(socket.socket(socket.AF_UNIX if is_path else socket.AF_INET))
                connection.settimeout(SECONDS)
                connection.connect(record.address if is_path else (host, int(port)))
                if _exchange(connection, {"token": record.token}).get("proof") != record.proof:
                    return None  # another program has taken the port
                answer = _exchange(connection, request)
                connection.settimeout(None)
                stack.pop_all()
        except TimeoutError as error:
            raise DaemonError(f"the daemon {record.pid} does not answer: run dg-lsp daemon stop") from error
        except OSError:  # it crashed
            return None
        return connection, answer

    def start(self, command: Sequence[str]) -> None:
        """Starts a daemon that outlives this process and its terminal, and waits until it listens.

        The command calls `report`. The lock decides which of several daemons that start at once stays. Raises
        DaemonError if none starts.
        """
        self.prepare()
        flags = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        try:
            with self.open_log() as log:
                launcher = subprocess.run(
                    [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(flags), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=NEUTRAL_FOLDER,
                    start_new_session=True,
                    text=True,
                    check=False,
                    timeout=START_SECONDS,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DaemonError(f"the daemon cannot be started ({type(error).__name__})") from error
        if launcher.stdout != READY:
            raise DaemonError(launcher.stdout or f"the daemon ended at once; {self.log} may contain the reason")

    def _unusable(self, error: OSError) -> DaemonError:
        return DaemonError(f"{self.folder} cannot be used ({error.strerror or error}); set {DAEMON_VARIABLE}")


def _exchange(connection: socket.socket, message: Mapping[str, Any]) -> dict[str, Any]:
    send(connection, message)
    answer = receive(connection)
    if "refused" in answer:
        raise DaemonError(str(answer["refused"]))
    return answer


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends one line of JSON."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket) -> dict[str, Any]:
    """Receives one line of JSON. Raises OSError if the other side leaves, is too slow, or sends anything else."""
    line, end = b"", time.monotonic() + SECONDS
    while not line.endswith(b"\n"):  # the other side waits for an answer to each line
        if (seconds := end - time.monotonic()) <= 0:
            raise TimeoutError("the other side is too slow")
        connection.settimeout(seconds)
        chunk = connection.recv(1 << 16)
        line += chunk
        if not chunk or len(line) > _LONGEST_LINE:
            break
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise ConnectionError("the other side does not speak this protocol") from error


def report(message: str) -> None:
    """Sends the process that called `start` the word READY or an error, and frees its end of standard output."""
    sys.stdout.write(message)
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def become_pipe(connection: socket.socket) -> NoReturn:
    """Goes on as `pipe`, a much smaller program, in the same process."""
    sys.stdout.flush()
    if sys.platform == "win32":  # exec would start another process there, and the editor would lose this one
        sys.exit(pipe.run(connection))
    connection.set_inheritable(True)
    os.chdir(NEUTRAL_FOLDER)
    os.execv(sys.executable, [sys.executable, "-I", "-S", pipe.__file__, str(connection.fileno())])


def _is_private(folder: Path, forbidden: int = stat.S_IRWXG | stat.S_IRWXO) -> bool:
    """Whether it belongs to the user and grants others nothing of `forbidden`; always true on Windows."""
    entry = folder.stat()
    return sys.platform == "win32" or (entry.st_uid == os.getuid() and not entry.st_mode & forbidden)
