"""One connection to the daemon, from its first line to its end: a session of the language server, or a question."""

import asyncio
import hmac
import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dg_lsp import __version__
from dg_lsp.daemon.calling import LONGEST_LINE, SECONDS
from dg_lsp.daemon.place import Record
from dg_lsp.daemon.pool import Pool
from dg_lsp.errors import SettingsError
from dg_lsp.server.app import create_server, serve
from dg_lsp.settings import parse_settings

_CHUNK = 1 << 16


class Refusal(Exception):  # noqa: N818  (it is an answer)
    """Why somebody is not served, in words for the caller."""


def hello_of(connection: socket.socket, record: Record) -> dict[str, Any]:
    """What the caller says of itself and wants, after both have shown that they know the record.

    Raises:
        Refusal: the caller does not know the token.
        OSError, ValueError: it says nothing that can be understood, or not in time.
    """
    hello = _tree(connection)
    if not hmac.compare_digest(str(hello.get("token", "")).encode(), record.token.encode()):
        raise Refusal("the daemon does not know this token")
    answer(connection, {"version": __version__, "proof": record.proof})
    return {"version": hello.get("version"), **_tree(connection)}


def answer(connection: socket.socket, said: Mapping[str, Any]) -> None:
    """One line back; a caller that is gone does not matter."""
    with suppress(OSError):
        connection.sendall(json.dumps(said).encode() + b"\n")


def run_session(connection: socket.socket, hello: Mapping[str, Any], pool: Pool) -> None:
    """Serves an editor until it leaves, in an event loop of its own: one session never holds up another.

    Raises:
        Refusal: it is of another version, or its settings make no sense.
    """
    version = hello.get("version")
    if version != __version__:
        raise Refusal(f"the daemon is dg-lsp {__version__} and this is {version}: run dg-lsp daemon stop")
    over = hello.get("over") or {}
    try:
        settings = parse_settings(hello.get("settings") or {})
        parse_settings(over)
    except (SettingsError, AttributeError) as error:
        raise Refusal(f"the daemon does not understand the settings: {error}") from error

    async def session() -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        # the client's initializationOptions come in between: the command line wins
        server = create_server(lambda merged: pool.share(parse_settings(over, merged)), settings)
        try:
            await serve(server, reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    answer(connection, {"version": __version__})
    connection.settimeout(None)
    asyncio.run(session())


def _tree(connection: socket.socket) -> dict[str, Any]:
    tree = json.loads(_line(connection))
    if not isinstance(tree, dict):
        raise ConnectionError("no hello")
    return tree


def _line(connection: socket.socket) -> bytes:
    """Up to the line's end: the caller is silent until it is answered."""
    end = time.monotonic() + SECONDS
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.01, end - time.monotonic()))
        chunk = connection.recv(_CHUNK)
        if not chunk or len(line) > LONGEST_LINE:
            raise ValueError("no line")
        line += chunk
    return line
