"""Reads and writes LSP messages over standard input and output or one TCP connection."""

import asyncio
import hmac
import json
import logging
import os
import re
import secrets
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from cattrs import Converter
from lsprotocol import types
from pygls import exceptions
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol

from dg_lsp.errors import UsageError

# the log of pygls contains the text of buffers: it does not reach standard error
logging.getLogger("pygls").addHandler(logging.NullHandler())
logging.getLogger("pygls").propagate = False

MAX_MESSAGE_BYTES = 1 << 28
"""More than the longest document that is not excluded takes in JSON."""
MAX_FIRST_BYTES = 1 << 20
"""Longest first message of a client that has not sent the token yet."""
AUTHENTICATION_SECONDS = 10.0
"""Time for a client to send its first message."""
TOKEN = "token"
"""Option of `initialize` with the token of a TCP server."""
MAX_POSITION = 2**31 - 1
_MAX_HEADER_LINES = 16
_HEADER_LINE = re.compile(rb"content-([\w-]+):[ \t]*(.*?)[ \t]*\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\d{1,9}")


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


@dataclass(frozen=True, slots=True)
class TcpClient:
    """A client that has sent the token, and its first message."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    first: bytes


async def accept_client(host: str, port: int, token: str) -> TcpClient:
    """Accepts the first client that sends the token, then stops listening. Others do not keep it from connecting.

    Prints the address on standard error, with a new token if the one given is empty; port 0 takes a free port.

    Raises:
        UsageError: the address cannot be bound.
    """
    accepted: asyncio.Future[TcpClient] = asyncio.get_running_loop().create_future()
    wanted = token or secrets.token_urlsafe(32)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(AUTHENTICATION_SECONDS):
                first = await _first_message(reader, writer, wanted)
        if first and not accepted.done():
            accepted.set_result(TcpClient(reader, writer, first))
        else:
            writer.close()

    try:
        listener = await asyncio.start_server(accept, host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host}:{port} ({reason}); choose another --tcp HOST:PORT") from error
    address = listener.sockets[0].getsockname()
    sys.stderr.write(f"dg-lsp: listening on {address[0]}:{address[1]}\n")
    if not token:
        sys.stderr.write(f"dg-lsp: the client must send initializationOptions.{TOKEN} = {wanted}\n")
    sys.stderr.flush()
    try:
        return await accepted
    finally:
        listener.close()


async def _first_message(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> bytes:
    """The body of an `initialize` with the token; empty for anything else, which is answered if it is a message."""
    async with aclosing(read_messages(reader, max_bytes=MAX_FIRST_BYTES)) as messages:
        body = await anext(messages, b"")
    if not body:
        return b""
    message, sent = None, None
    with suppress(ValueError, RecursionError, KeyError, TypeError):
        message = json.loads(body)
        sent = message["params"]["initializationOptions"][TOKEN]
    if isinstance(sent, str) and hmac.compare_digest(sent.encode("utf-8", "replace"), token.encode()):
        return body
    msg_id = message.get("id") if isinstance(message, dict) else None
    problem = f"the token is missing or wrong: send initialize with initializationOptions.{TOKEN}"
    error = {"code": exceptions.JsonRpcInvalidRequest.CODE, "message": problem}
    answer = json.dumps({"jsonrpc": "2.0", "id": msg_id if _is_id(msg_id) else None, "error": error})
    writer.write(f"Content-Length: {len(answer)}\r\n\r\n{answer}".encode())
    await writer.drain()
    return b""


async def read_messages(
    reader: asyncio.StreamReader,
    on_error: Callable[[str], None] = lambda _: None,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> AsyncGenerator[bytes, None]:
    """Bodies of the messages until the client disconnects.

    Ends also at a header that is not one of LSP, and passes its problem to `on_error`: the length of the message before
    was wrong and an edit may be lost, or the client is none of LSP, such as a web page.
    """
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        try:
            while True:
                if length := await _read_length(reader, max_bytes):
                    yield await reader.readexactly(length)
        except asyncio.LimitOverrunError:
            on_error("the connection is closed: a header line is too long")
        except ValueError as error:
            on_error(f"the connection is closed: {error}")


async def _read_length(reader: asyncio.StreamReader, max_bytes: int) -> int:
    """Reads a header and returns the length of its body. Raises `ValueError` for what is none."""
    lengths = []
    for _ in range(_MAX_HEADER_LINES):
        line = await reader.readuntil(b"\n")
        if line == b"\r\n":
            break
        if (found := _HEADER_LINE.fullmatch(line)) is None:
            raise ValueError("a header line does not begin with Content-")
        if found[1].lower() == b"length":
            lengths.append(found[2])
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]) or int(lengths[0]) > max_bytes:
        raise ValueError(f"a header needs one Content-Length of at most {max_bytes:,} bytes")
    return int(lengths[0])


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
        self._cancelled: set[str | int] = set()
        """Pending requests that the client cancelled."""
        self._sent: set[str | int] = set()
        """Requests to the client that it has not answered."""
        for method in _REPLACED:
            del self.fm.builtin_features[method]

    @property
    def is_shut_down(self) -> bool:
        """`shutdown` was received."""
        return bool(self._shutdown)

    def receive(self, body: bytes) -> None:
        """Handles the body of one message."""
        try:
            data = json.loads(body, object_hook=_clamped)
        except (ValueError, RecursionError):
            self._reject({}, exceptions.JsonRpcParseError())
            return
        if not isinstance(data, dict) or data.get("jsonrpc") != self.VERSION:
            self._reject({}, exceptions.JsonRpcInvalidRequest())
            return
        if not _is_id(data.get("id")):
            # the answer to a request without an id has none; a response is not answered
            self._reject(
                {} if "method" in data else data, exceptions.JsonRpcInvalidRequest("an id is a number or a string")
            )
            return
        try:
            self._check_lifecycle(data.get("method"))
            _check_cancellation(data)
            message = self.structure_message(data)
        except exceptions.JsonRpcException as error:
            self._reject(data, error)
            return
        if data.get("method") == types.SHUTDOWN:
            # pygls does so while it iterates over the dictionary, which fails if a command is pending
            for future in [*self._request_futures.values()]:
                future.cancel()
        self.handle_message(message)

    def send_request(
        self,
        method: str,
        params: Any = None,
        callback: Callable[[Any], None] | None = None,
        msg_id: str | int | None = None,
    ) -> Future[Any]:
        """Sends a request, whose id differs from those of the client."""
        msg_id = str(uuid4()) if msg_id is None else msg_id
        self._sent.add(msg_id)
        future: Future[Any] = super().send_request(method, params, callback, msg_id)
        return future

    def _handle_cancel_notification(self, msg_id: str | int) -> None:
        if msg_id in self._request_futures:
            self._cancelled.add(msg_id)
        super()._handle_cancel_notification(msg_id)

    def _handle_response(self, msg_id: str | int, result: Any = None, error: types.ResponseError | None = None) -> None:
        """Ignores responses to requests that are cancelled, or that are the client's own."""
        future = self._request_futures.get(msg_id)
        if msg_id in self._sent and future is not None and not future.done():
            super()._handle_response(msg_id, result, error)
        self._sent.discard(msg_id)

    def _send_handler_result(self, future: Any, *, msg_id: str | int) -> None:
        """Answers a request; one that the client did not cancel itself was replaced by a newer one, or by the end."""
        is_by_client = msg_id in self._cancelled
        self._cancelled.discard(msg_id)
        if is_by_client or not future.cancelled():
            super()._send_handler_result(future, msg_id=msg_id)
            return
        self._request_futures.pop(msg_id, None)
        error = types.ResponseError(
            types.LSPErrorCodes.ServerCancelled, "a newer request replaced this one, or the server ends"
        )
        self._send_response(msg_id, error=error)

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


def _is_id(value: object) -> bool:
    """Whether it is the id of a request, or of none."""
    return value is None or (isinstance(value, int | str) and not isinstance(value, bool))


def _check_cancellation(data: dict[str, Any]) -> None:
    """Raises `JsonRpcException` for a cancellation of no request."""
    if data.get("method") == types.CANCEL_REQUEST:
        params = data.get("params")
        if not isinstance(params, dict) or params.get("id") is None or not _is_id(params["id"]):
            raise exceptions.JsonRpcInvalidParams("it has no id")


def _clamped(tree: dict[str, Any]) -> dict[str, Any]:
    """A JSON object; a position has numbers that LSP allows, so that no edit is lost.

    Lines and characters after the end mean the end, and a negative line means the first.
    """
    for key, lowest in (("line", 0), ("character", -MAX_POSITION)) if len(tree) == 2 else ():
        if isinstance(tree.get(key), int):
            tree[key] = min(max(tree[key], lowest), MAX_POSITION)
    return tree
