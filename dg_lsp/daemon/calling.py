"""How a connection to the daemon begins: two lines of JSON each way. Light: a relay imports it.

The caller says its token and which version it is, and the daemon shows that it is the one which the record names; then
the caller says what it wants, and the daemon answers, or says why not. After a `session` the connection carries the
language server's own messages, both ways.
"""

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dg_lsp import __version__
from dg_lsp.daemon.place import Record, is_private

SECONDS = 5.0
"""A daemon that lives answers at once."""
LONGEST_LINE = 1 << 20
_CHUNK = 1 << 12


class Refused(Exception):  # noqa: N818  (it is an answer)
    """Why the daemon does not want to talk."""


@dataclass(frozen=True, slots=True)
class Call:
    """An open connection, and the daemon's answer."""

    socket: socket.socket
    answer: dict[str, Any]


def call(record: Record, wanted: str, *, seconds: float = SECONDS, **more: Any) -> Call:
    """Connects and says what is wanted.

    Raises:
        OSError: there is no daemon, none that answers, or it is somebody else who does.
        Refused: it is another version, or knows another token.
    """
    connection = _connected(record, seconds)
    try:
        first = _exchange(connection, {"version": __version__, "token": record.token})
        if first.get("proof", "") != record.proof:
            raise ConnectionError("that is no daemon of ours")
        answer = _exchange(connection, {"want": wanted, **more})
        connection.settimeout(None)
    except ValueError as error:
        connection.close()
        raise ConnectionError("that is no daemon of ours") from error
    except BaseException:
        connection.close()
        raise
    return Call(connection, answer)


def ask(record: Record, wanted: str, *, seconds: float = SECONDS) -> dict[str, Any]:
    """The daemon's answer alone.

    Raises:
        OSError, Refused: as `call` does.
    """
    made = call(record, wanted, seconds=seconds)
    made.socket.close()
    return made.answer


def _connected(record: Record, seconds: float) -> socket.socket:
    if not record.path:
        return socket.create_connection((record.host, record.port), seconds)
    if not is_private(Path(record.path).lstat()):
        raise ConnectionError("the socket belongs to another user")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect(record.path)
    except BaseException:
        connection.close()
        raise
    return connection


def _exchange(connection: socket.socket, said: dict[str, Any]) -> dict[str, Any]:
    connection.sendall(json.dumps(said).encode() + b"\n")
    answer = json.loads(_line(connection))
    if not isinstance(answer, dict):
        raise ConnectionError("that is no daemon of ours")
    if "refused" in answer:
        raise Refused(str(answer["refused"]))
    return answer


def _line(connection: socket.socket) -> bytes:
    """Up to the line's end and no further: the daemon is silent until it hears the first message."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LONGEST_LINE:
        chunk = connection.recv(_CHUNK)
        if not chunk:
            raise ConnectionError("the daemon hung up")
        line += chunk
    return line
