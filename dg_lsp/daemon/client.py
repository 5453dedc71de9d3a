"""Connections to the user's daemon, and starting one.

A connection begins with two lines of JSON each way. The client sends the token, and the daemon replies with its proof.
Then the client sends its request, and the daemon answers or refuses it. After `session` the connection carries the
messages of the language server.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

from dg_lsp.daemon import pipe
from dg_lsp.daemon.endpoint import Endpoint
from dg_lsp.errors import DaemonError
from dg_lsp.system import NEUTRAL_FOLDER

SECONDS = 5.0
"""Seconds for the other side to answer."""
START_SECONDS = 60.0
READY = "ready"
_LONGEST_LINE = 1 << 20
_LAUNCHER = "import subprocess, sys; subprocess.Popen(sys.argv[2:], creationflags=int(sys.argv[1]))"
"""The daemon must not be a child of the editor's process: editors end a server together with its children."""


def open_session(endpoint: Endpoint, settings: Mapping[str, Any], command: Sequence[str]) -> socket.socket:
    """A connection that carries the messages of one editor; starts a daemon if none answers, as `start` does."""
    request = {"want": "session"} | dict(settings)
    if (answered := call(endpoint, request)) is None:
        start(endpoint, command)
        answered = call(endpoint, request)
    if answered is None:
        raise DaemonError(f"the daemon ended at once; {endpoint.log} may contain the reason")
    return answered[0]


def query(endpoint: Endpoint, request: str) -> dict[str, Any] | None:
    """The daemon's answer to `status` or `stop`; None if no daemon runs. Raises as `call` does."""
    if (answered := call(endpoint, {"want": request})) is None:
        return None
    answered[0].close()
    return answered[1]


def call(endpoint: Endpoint, request: Mapping[str, Any]) -> tuple[socket.socket, dict[str, Any]] | None:
    """A connection, which stays open, and the daemon's answer to the request; None if no daemon runs.

    Raises DaemonError if the daemon refuses the request, or does not answer in time.
    """
    if (record := endpoint.read()) is None:
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


def _exchange(connection: socket.socket, message: Mapping[str, Any]) -> dict[str, Any]:
    send(connection, message)
    answer = receive(connection)
    if "refused" in answer:
        raise DaemonError(str(answer["refused"]))
    return answer


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends one line of JSON."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket, max_bytes: int = _LONGEST_LINE) -> dict[str, Any]:
    """Receives one line of JSON. Raises OSError if the other side leaves, is too slow, or sends anything else."""
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


def start(endpoint: Endpoint, command: Sequence[str]) -> None:
    """Starts a daemon that outlives this process and its terminal, and waits until it listens, or raises DaemonError.

    The command calls `report`. The lock of the endpoint decides which of several daemons that start at once stays.
    """
    endpoint.prepare()
    flags = getattr(subprocess, "DETACHED_PROCESS", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    try:
        with endpoint.open_log() as log:
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
        raise DaemonError(launcher.stdout or f"the daemon ended at once; {endpoint.log} may contain the reason")


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
