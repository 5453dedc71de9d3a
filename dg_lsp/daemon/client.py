"""Connections to the daemon: authentication, requests, starting a daemon, and turning into the pipe of an editor.

A connection begins with two lines of JSON each way. The client sends its version and the token, and the daemon replies
with its proof; then the client sends what it wants, and the daemon answers or refuses. After `session` the connection
carries the messages of the language server.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dg_lsp import __version__
from dg_lsp.daemon import pipe
from dg_lsp.daemon.endpoint import Endpoint, Record, is_private
from dg_lsp.errors import DaemonError
from dg_lsp.system import NEUTRAL_FOLDER

SECONDS = 5.0
"""Time for the other side to answer."""
START_SECONDS = 60.0
READY = "ready"
_LONGEST_LINE = 1 << 20
_LAUNCHER = "import subprocess, sys; subprocess.Popen(sys.argv[2:], creationflags=int(sys.argv[1]))"
"""The daemon must not be a child of the editor's process: editors end a server together with its children."""


class Refused(Exception):  # noqa: N818  (an answer, not an error)
    """The daemon does not serve a connection; the message is its reason."""


def ask(record: Record, wanted: str) -> dict[str, Any]:
    """The daemon's answer to `status`, `stop` or `leave`.

    Raises:
        OSError: no daemon answers, or another program does.
        Refused: the token is wrong.
    """
    connection, answer = call(record, wanted)
    connection.close()
    return answer


def call(record: Record, wanted: str, **more: Any) -> tuple[socket.socket, dict[str, Any]]:
    """As `ask`; with the connection, which stays open."""
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
    """A connection that carries the messages of one editor; starts a daemon where none answers, as `start` does.

    Raises:
        DaemonError: no daemon can be started, or it refuses.
    """
    connection = _join(endpoint, hello)
    if connection is None:
        start(endpoint, command, given)
        connection = _join(endpoint, hello)
    if connection is None:
        raise DaemonError(f"the daemon ended at once; {endpoint.log} may contain the reason")
    return connection


def start(endpoint: Endpoint, command: Sequence[str], given: str) -> None:
    """Starts a daemon that outlives this process and its terminal, and waits until it listens.

    The command receives `given` on standard input and calls `report`. The lock of the endpoint decides which of several
    daemons that start at once stays.

    Raises:
        DaemonError: the daemon did not start.
    """
    endpoint.prepare()
    flags = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(flags), *command]
    try:
        with endpoint.open_log() as log:
            done = subprocess.run(
                launcher,
                input=given,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=NEUTRAL_FOLDER,
                start_new_session=True,
                text=True,
                timeout=START_SECONDS,
                check=False,
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


def receive(connection: socket.socket) -> dict[str, Any]:
    """One line of JSON; nothing follows it before the other side has been answered.

    Raises:
        OSError: the other side leaves, is too slow, or does not speak this protocol.
    """
    end = time.monotonic() + SECONDS
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.01, end - time.monotonic()))
        chunk = connection.recv(_LONGEST_LINE)
        if not chunk or len(line) > _LONGEST_LINE:
            raise ConnectionError("the other side does not speak this protocol")
        line += chunk
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise ConnectionError("the other side does not speak this protocol") from error


def _join(endpoint: Endpoint, hello: Mapping[str, Any]) -> socket.socket | None:
    """A session of the daemon that runs; None where none does. A daemon of another version is asked to leave.

    Raises:
        DaemonError: the daemon refuses, does not answer, or does not leave.
    """
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
