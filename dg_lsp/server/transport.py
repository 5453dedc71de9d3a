"""How messages come and go: standard input and output, or one TCP connection. Knows nothing of their content."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

from cattrs import Converter
from lsprotocol import types
from pygls import exceptions
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol

from dg_lsp.errors import UsageError

_CHUNK = 1 << 16


class StdoutWriter:
    """The protocol's side of standard output.

    Takes the descriptor for itself: whatever else in the process prints to standard output, native code included,
    goes to standard error from then on and cannot break a message.
    """

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        with suppress(OSError):
            os.dup2(2, 1)

    def write(self, data: bytes) -> None:
        """Writes all of it; a client that is gone is noticed where its messages are read."""
        rest = memoryview(data)
        with suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        """The client sees the end of the stream."""
        os.close(self._descriptor)


def stdin_reader() -> asyncio.StreamReader:
    """Standard input as a stream, read by a daemon thread that never keeps the process alive.

    Reads the bare descriptor: a daemon thread inside `sys.stdin.buffer` would hold its lock when the interpreter ends.
    """
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()

    def pump() -> None:
        # RuntimeError: the loop is closed, the session over
        with suppress(RuntimeError):
            while chunk := _read(0):
                loop.call_soon_threadsafe(reader.feed_data, chunk)
            loop.call_soon_threadsafe(reader.feed_eof)

    threading.Thread(target=pump, name="dg-lsp-stdin", daemon=True).start()
    return reader


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:
        return b""


async def accept_one(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Waits for a client and stops listening once it is there; port 0 takes a free one. Says where on standard error.

    Raises:
        UsageError: the address cannot be listened on.
    """
    arrival: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    arrival = asyncio.get_running_loop().create_future()

    def arrive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if arrival.done():
            writer.close()
        else:
            arrival.set_result((reader, writer))

    try:
        listener = await asyncio.start_server(arrive, host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host}:{port} ({reason}); choose another --tcp HOST:PORT") from error
    taken = listener.sockets[0].getsockname()
    sys.stderr.write(f"dg-lsp: listening on {taken[0]}:{taken[1]}\n")
    sys.stderr.flush()
    try:
        return await arrival
    finally:
        listener.close()


async def bodies(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """One message after the other until the client leaves."""
    # ValueError: a header line longer than the reader's limit, so this is no LSP client
    with suppress(asyncio.IncompleteReadError, ConnectionError, ValueError):
        while (length := await _content_length(reader)) is not None:
            if length:
                yield await reader.readexactly(length)


async def _content_length(reader: asyncio.StreamReader) -> int | None:
    """From one message's header; 0 when it says none, None at the end of the stream."""
    length = 0
    while line := await reader.readline():
        if not line.strip():
            return length
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            length = int(value)
    return None


_REPLACED = (
    types.INITIALIZED,
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_CLOSE,
    types.EXIT,
)
"""Our own handlers stand alone for these: documents are `documents`' matter, leaving is the transport's, and pygls
cannot run an asynchronous `initialized` of ours inside its own without a traceback when that is cancelled."""


def field_of(value: Any, name: str) -> Any:
    """A field of what a client sent outside of the specification, whatever pygls has made of it; None without it."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


class Protocol(LanguageServerProtocol):
    """Reads one message after the other."""

    def __init__(self, server: LanguageServer, converter: Converter) -> None:
        super().__init__(server, converter)
        self.on_trouble: Callable[[str], None] = lambda _: None
        """Told in one line what could not be read; never holds what the message said."""
        for method in _REPLACED:
            del self.fm.builtin_features[method]

    @property
    def is_shut_down(self) -> bool:
        """`shutdown` came."""
        return bool(self._shutdown)

    def receive(self, body: bytes) -> None:
        """Handles one message, of which nothing is known yet."""
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            self._refuse({}, exceptions.JsonRpcParseError())
            return
        if not isinstance(data, dict) or data.get("jsonrpc") != self.VERSION:
            self._refuse({}, exceptions.JsonRpcInvalidRequest())
            return
        try:
            self._check_lifecycle(data.get("method"))
            message = self.structure_message(data)
        except exceptions.JsonRpcException as error:
            self._refuse(data, error)
            return
        self.handle_message(message)

    def _check_lifecycle(self, method: str | None) -> None:
        """What may come before `initialize`, twice and after `shutdown`: see the specification's "Lifecycle"."""
        is_initialized = self._workspace is not None
        if method in (types.EXIT, None):
            return
        if not is_initialized and method != types.INITIALIZE:
            raise exceptions.JsonRpcServerNotInitialized("send initialize first")
        if is_initialized and method == types.INITIALIZE:
            raise exceptions.JsonRpcInvalidRequest("initialize came already")
        if self._shutdown:
            raise exceptions.JsonRpcInvalidRequest("the server is shutting down")

    def _refuse(self, data: dict[str, Any], error: exceptions.JsonRpcException) -> None:
        """Answers a request, says what became of a notification, and leaves answers alone."""
        method, msg_id = data.get("method"), data.get("id")
        if "method" in data and msg_id is None:
            self.on_trouble(f"notification {str(method)[:80]!r} dropped: {error.message}")
            return
        self.on_trouble(f"message {str(method or '')[:80]!r} refused: {error.message}")
        if "method" in data or not data:
            # null as the id of what could not be read: JSON-RPC 2.0, section 5
            self._send_response(msg_id, error=error.to_response_error())  # type: ignore[arg-type]
