"""How the daemon of a user is reached: its folder, connections to it, and starting one.

The folder holds the record, the lock, the socket and the log. Only the user can read it, so a process that can read the
record can use the daemon. A record, socket or folder that another user owns or can write is ignored.

A connection begins with two lines of JSON each way. The client sends its version and the token, and the daemon replies
with its proof; then the client sends its request, and the daemon answers or refuses. After `session` the connection
carries the messages of the language server.
"""

import errno
import json
import math
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from dg_lsp import __version__
from dg_lsp.daemon import pipe
from dg_lsp.errors import DaemonError, DaemonRunsError
from dg_lsp.system import NEUTRAL_FOLDER, data_folder
from dg_lsp.system import VARIABLE as DATA_VARIABLE

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
SECONDS = 5.0
"""Seconds for the other side to answer."""
START_SECONDS = 60.0
READY = "ready"
_LONGEST_LINE = 1 << 20
_LAUNCHER = "import subprocess, sys; subprocess.Popen(sys.argv[2:], creationflags=int(sys.argv[1]))"
"""The daemon must not be a child of the editor's process: editors end a server together with its children."""


@dataclass(frozen=True, slots=True)
class Record:
    """How one daemon is reached."""

    version: str
    pid: int
    token: str  # sent by the client first
    proof: str = ""
    """The daemon's reply to the token. A process that took over the port of a dead daemon cannot send it."""
    path: str = ""  # of the Unix socket; empty for TCP
    host: str = ""
    port: int = 0

    @property
    def address(self) -> str:
        """Socket path or HOST:PORT, for messages."""
        return self.path or f"{self.host}:{self.port}"


class Endpoint:
    """The folder of one daemon: the user's only one, or that of one GPU."""

    def __init__(self, folder: Path, gpu: int | None = None) -> None:
        self.folder = folder
        self.gpu = gpu
        """The GPU that the daemon is pinned to."""
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
        if runtime_folder and Path(runtime_folder).is_absolute() and not environment.get(DATA_VARIABLE):
            return cls(Path(runtime_folder) / "dg-lsp")
        return cls(data_folder().absolute() / "daemon")

    def of_gpu(self, gpu: int | None) -> "Endpoint":
        """The daemon of one GPU, in a folder inside this one; None is the user's only one."""
        return self if gpu is None else type(self)(self.folder / f"gpu{gpu}", gpu)

    def of_gpus(self) -> "list[Endpoint]":
        """The daemons of single GPUs that run, or that crashed, by GPU."""
        numbers = sorted(int(path.name[3:]) for path in self.folder.glob("gpu*") if path.name[3:].isdecimal())
        return [one for one in map(self.of_gpu, numbers) if one.read() is not None]

    def least_busy(self) -> "Endpoint":
        """The daemon for a new session: of several GPUs, the one with the fewest; this one without such daemons."""
        return min(self.of_gpus(), key=_num_sessions, default=self)

    def prepare(self) -> None:
        """Creates the folder, readable by the user only; DaemonError if it cannot, or it belongs to another user."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_private(self.folder.stat(), forbidden=0):  # root could change it, and must not
                raise PermissionError(errno.EPERM, "it belongs to another user")
            self.folder.chmod(0o700)
        except OSError as error:
            raise self._unusable(error) from error

    def read(self) -> Record | None:
        """The record; None where there is none that can be trusted. The daemon may have died since."""
        try:
            if not is_private(self.folder.stat(), stat.S_IWGRP | stat.S_IWOTH):
                return None
            with self._record.open(encoding="utf-8") as file:
                if not is_private(os.fstat(file.fileno())):
                    return None
                record = Record(**json.load(file))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return record if isinstance(record.pid, int) and isinstance(record.port, int) else None

    def write(self, record: Record) -> None:
        """Publishes the record, atomically, or raises DaemonError."""
        try:
            write_private(self._record, asdict(record))
        except OSError as error:
            raise self._unusable(error) from error

    def clear(self) -> None:
        """Removes record and socket. The caller holds the lock."""
        self._record.unlink(missing_ok=True)
        self.socket_path.unlink(missing_ok=True)

    def acquire_lock(self) -> "FileLock":
        """Locks the folder for a daemon, or raises DaemonRunsError; waits for one that is leaving and has no record."""
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

    def _unusable(self, error: OSError) -> DaemonError:
        return DaemonError(f"{self.folder} cannot be used ({error.strerror or error}); set {VARIABLE}")

    def listen(self, *, is_tcp: bool) -> socket.socket:
        """A listening Unix socket; a TCP socket on a free port of loopback where `is_tcp`, or the path is too long."""
        try:
            if is_tcp or len(os.fsencode(self.socket_path)) > _LONGEST_PATH:
                return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)  # the token is not encrypted
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(str(self.socket_path))
                self.socket_path.chmod(0o600)
                listener.listen(_BACKLOG)
            except OSError:
                listener.close()
                raise
        except OSError as error:
            raise DaemonError(f"the daemon cannot listen ({error.strerror or error}); set {VARIABLE}") from error
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
    """Writes JSON that only the user can read, atomically."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(tree, file)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


class Refused(Exception):  # noqa: N818  (an answer, not an error)
    """The daemon does not serve a connection; the message is its reason."""


def ask(record: Record, wanted: str) -> dict[str, Any]:
    """The daemon's answer to `status`, `stop` or `leave`. Raises as `call` does."""
    connection, answer = call(record, wanted)
    connection.close()
    return answer


def call(record: Record, wanted: str, **more: Any) -> tuple[socket.socket, dict[str, Any]]:
    """A connection, which stays open, and the daemon's answer to a request.

    Raises:
        OSError: no daemon answers, or another program does.
        Refused: the token is wrong.
    """
    connection = _connect(record)
    try:
        reply = _exchange(connection, {"version": __version__, "token": record.token})
        if reply.get("proof", "") != record.proof:
            raise ConnectionError("not our daemon")
        answer = _exchange(connection, {"want": wanted, **more})
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection, answer


def open_session(endpoint: Endpoint, hello: Mapping[str, Any], command: Sequence[str], given: str) -> socket.socket:
    """A connection that carries the messages of one editor; starts a daemon where none answers, as `start` does."""
    if (connection := _join(endpoint, hello)) is None:
        start(endpoint, command, given)
        connection = _join(endpoint, hello)
    if connection is None:
        raise DaemonError(f"the daemon ended at once; {endpoint.log} may contain the reason")
    return connection


def start(endpoint: Endpoint, command: Sequence[str], given: str) -> None:
    """Starts a daemon that outlives this process and its terminal, and waits until it listens, or raises DaemonError.

    The command receives `given` on standard input and calls `report`. The lock of the endpoint decides which of several
    daemons that start at once stays.
    """
    endpoint.prepare()
    flags = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(flags), *command]
    try:
        with endpoint.open_log() as log:
            how: dict[str, Any] = {"cwd": NEUTRAL_FOLDER, "start_new_session": True, "timeout": START_SECONDS}
            done = subprocess.run(
                launcher, input=given, stdout=subprocess.PIPE, stderr=log, text=True, check=False, **how
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DaemonError(f"the daemon cannot be started ({type(error).__name__})") from error
    if done.stdout != READY:
        raise DaemonError(done.stdout or f"the daemon ended at once; {endpoint.log} may contain the reason")


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


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """One line of JSON."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket, max_bytes: int = _LONGEST_LINE) -> dict[str, Any]:
    """One line of JSON. Raises OSError if the other side leaves, is too slow, or does not speak this protocol."""
    line, end = b"", time.monotonic() + SECONDS
    while not line.endswith(b"\n"):  # the other side waits for an answer to each line
        if (seconds := end - time.monotonic()) <= 0:
            raise TimeoutError("the other side is too slow")
        connection.settimeout(seconds)
        chunk = connection.recv(1 << 16)
        line += chunk
        if not chunk or len(line) > max_bytes:
            break
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        raise ConnectionError("the other side does not speak this protocol") from error


def _num_sessions(endpoint: Endpoint) -> float:
    """Sessions of a daemon; 0 for one that crashed, which the next session starts again."""
    record = endpoint.read()
    try:
        return float(ask(record, "status")["sessions"]) if record is not None else 0.0
    except (TimeoutError, Refused, KeyError):
        return math.inf
    except OSError:
        return 0.0


def _join(endpoint: Endpoint, hello: Mapping[str, Any]) -> socket.socket | None:
    """A session of the daemon that runs; None where none does. A daemon of another version is requested to leave."""
    record = endpoint.read()
    if record is None:
        return None
    try:
        if record.version == __version__:
            return call(record, "session", **hello)[0]
        if "leaving" not in ask(record, "leave"):
            raise DaemonError(f"the daemon is dg-lsp {record.version} and is in use: run dg-lsp daemon stop")
    except Refused as refused:
        raise DaemonError(str(refused)) from refused
    except TimeoutError as error:
        raise DaemonError(f"the daemon {record.pid} does not answer: run dg-lsp daemon stop") from error
    except OSError:
        return None  # it crashed
    return None


def _connect(record: Record) -> socket.socket:
    if not record.path:
        return socket.create_connection((record.host, record.port), SECONDS)
    if not is_private(Path(record.path).lstat()):
        raise ConnectionError("the socket belongs to another user")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(SECONDS)
        connection.connect(record.path)
    except BaseException:
        connection.close()
        raise
    return connection


def _exchange(connection: socket.socket, message: Mapping[str, Any]) -> dict[str, Any]:
    send(connection, message)
    answer = receive(connection)
    if "refused" in answer:
        raise Refused(str(answer["refused"]))
    return answer
