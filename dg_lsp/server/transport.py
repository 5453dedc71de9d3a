"""Reads and writes LSP messages over standard input and output or one TCP connection."""

import asyncio
import json
import logging
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from cattrs import Converter
from lsprotocol import types
from pygls import exceptions
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol

from dg_lsp.errors import UsageError

# the log of pygls contains the text of buffers: it does not reach standard error
logging.getLogger("pygls").addHandler(logging.NullHandler())
logging.getLogger("pygls").propagate = False

_LENGTH = re.compile(rb"^content-length:[ \t]*(\d+)[ \t]*\r$", re.IGNORECASE | re.MULTILINE)


class StdoutWriter:
    """Writes to standard output.

    Keeps the descriptor for itself: other output of the process, also of native code, goes to standard error and cannot
    corrupt a message.
    """

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        with suppress(OSError):
            os.dup2(2, 1)

    def write(self, data: bytes) -> None:
        """Writes all of it. Errors are ignored: the end of the connection is detected by the reader."""
        rest = memoryview(data)
        with suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        """Closes the stream."""
        os.close(self._descriptor)


def stdin_reader() -> asyncio.StreamReader:
    """Standard input as a stream, read by a daemon thread.

    Reads the descriptor: a daemon thread inside `sys.stdin.buffer` would hold its lock at interpreter exit.
    """
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()

    def pump() -> None:
        # RuntimeError: the loop is closed
        with suppress(RuntimeError):
            with suppress(OSError):
                while chunk := os.read(0, 1 << 16):
                    loop.call_soon_threadsafe(reader.feed_data, chunk)
            loop.call_soon_threadsafe(reader.feed_eof)

    threading.Thread(target=pump, name="dg-lsp-stdin", daemon=True).start()
    return reader


async def accept_client(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Accepts one client, then stops listening. Prints the address on standard error; port 0 takes a free port.

    Raises:
        UsageError: the address cannot be bound.
    """
    client: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    client = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if client.done():
            writer.close()
        else:
            client.set_result((reader, writer))

    try:
        listener = await asyncio.start_server(accept, host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host}:{port} ({reason}); choose another --tcp HOST:PORT") from error
    address = listener.sockets[0].getsockname()
    sys.stderr.write(f"dg-lsp: listening on {address[0]}:{address[1]}\n")
    sys.stderr.flush()
    try:
        return await client
    finally:
        listener.close()


async def read_messages(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Bodies of the messages until the client disconnects."""
    # LimitOverrunError: a header longer than the limit of the reader; this is no LSP client
    with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        while header := await reader.readuntil(b"\r\n\r\n"):
            length = _LENGTH.search(header)
            if length is not None and int(length[1]) > 0:
                yield await reader.readexactly(int(length[1]))


_REPLACED = (
    types.INITIALIZED,
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_CLOSE,
    types.EXIT,
)
"""Methods whose handlers of pygls are removed: we keep the documents and end the session ourselves, and pygls prints a
traceback when an asynchronous `initialized` is cancelled."""


class Protocol(LanguageServerProtocol):
    """Parses messages and checks the lifecycle of the session."""

    def __init__(self, server: LanguageServer, converter: Converter) -> None:
        super().__init__(server, converter)
        self.on_error: Callable[[str], None] = lambda _: None
        """Receives one line about each message that cannot be read, without its content."""
        for method in _REPLACED:
            del self.fm.builtin_features[method]

    @property
    def is_shut_down(self) -> bool:
        """`shutdown` was received."""
        return bool(self._shutdown)

    def receive(self, body: bytes) -> None:
        """Handles the body of one message."""
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            self._reject({}, exceptions.JsonRpcParseError())
            return
        if not isinstance(data, dict) or data.get("jsonrpc") != self.VERSION:
            self._reject({}, exceptions.JsonRpcInvalidRequest())
            return
        try:
            self._check_lifecycle(data.get("method"))
            message = self.structure_message(data)
        except exceptions.JsonRpcException as error:
            self._reject(data, error)
            return
        if data.get("method") == types.SHUTDOWN:
            # pygls does so while it iterates over the dictionary, which fails if a command is pending
            for future in [*self._request_futures.values()]:
                future.cancel()
        self.handle_message(message)

    def _check_lifecycle(self, method: str | None) -> None:
        """Raises `JsonRpcException` before `initialize`, at a second `initialize`, and after `shutdown`."""
        is_initialized = self._workspace is not None
        if method in (types.EXIT, None):
            return
        if not is_initialized and method != types.INITIALIZE:
            raise exceptions.JsonRpcServerNotInitialized("send initialize first")
        if is_initialized and method == types.INITIALIZE:
            raise exceptions.JsonRpcInvalidRequest("initialize was received already")
        if self._shutdown:
            raise exceptions.JsonRpcInvalidRequest("the server is shutting down")

    def _reject(self, data: dict[str, Any], error: exceptions.JsonRpcException) -> None:
        """Logs the error, and answers it if the message is a request."""
        method, msg_id = data.get("method"), data.get("id")
        if "method" in data and msg_id is None:
            self.on_error(f"notification {str(method)[:80]!r} dropped: {error.message}")
            return
        self.on_error(f"message {str(method or '')[:80]!r} rejected: {error.message}")
        if "method" in data or not data:
            # the id is null if the request cannot be read: JSON-RPC 2.0, section 5
            self._send_response(msg_id, error=error.to_response_error())  # type: ignore[arg-type]
