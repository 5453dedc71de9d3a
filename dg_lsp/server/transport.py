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
from functools import partial
from typing import Any, Union
from uuid import uuid4

import attrs
from cattrs import Converter
from cattrs.errors import ClassValidationError
from lsprotocol import types
from pygls import exceptions
from pygls.lsp.server import LanguageServer
from pygls.protocol import JsonRPCNotification, JsonRPCRequestMessage, LanguageServerProtocol

from dg_lsp.errors import UsageError
from dg_lsp.server.schema import check_of, is_integer

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
CLOSE_SECONDS = 3.0
"""Time for a client to receive the last answers."""
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


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Closes a connection, after a while also that of a client that does not read what was sent."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    except OSError:  # TimeoutError is one
        writer.transport.abort()


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


_CHANGE: Any = Union[types.TextDocumentContentChangePartial, types.TextDocumentContentChangeWholeDocument]  # noqa: UP007
_REPLACED = (
    types.INITIALIZED,
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_CLOSE,
    types.NOTEBOOK_DOCUMENT_DID_OPEN,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE,
    types.EXIT,
)
"""Methods whose handlers of pygls are removed: we keep the documents and end the session ourselves, and pygls prints a
traceback when an asynchronous `initialized` is cancelled."""


class Protocol(LanguageServerProtocol):
    """Parses messages and checks the lifecycle of the session."""

    def __init__(self, server: LanguageServer, converter: Converter) -> None:
        super().__init__(server, converter)
        converter.register_structure_hook(_CHANGE, partial(_structure_change, converter))
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
            data = json.loads(body, object_hook=_clamped, parse_constant=_reject_constant)
        except (ValueError, RecursionError):
            self._reject({}, exceptions.JsonRpcParseError())
            return
        if not isinstance(data, dict) or data.get("jsonrpc") != self.VERSION:
            self._reject({}, exceptions.JsonRpcInvalidRequest())
            return
        if "method" not in data:
            self._receive_response(data)
            return
        if "id" in data and not _is_id(data["id"]):
            # the answer to a request without an id has none
            self._reject({}, exceptions.JsonRpcInvalidRequest("an id is a number or a string"))
            return
        try:
            self._check_method(data["method"], is_request="id" in data)
            message = self.structure_message(data)
        except exceptions.JsonRpcMethodNotFound as error:
            if "id" in data:  # servers ignore notifications that they do not know
                self._reject(data, error)
            return
        except exceptions.JsonRpcException as error:
            self._reject(data, error)
            return
        if data["method"] == types.SHUTDOWN:
            # pygls does so while it iterates over the dictionary, which fails if a command is pending
            for future in [*self._request_futures.values()]:
                future.cancel()
        self.handle_message(message)

    def structure_message(self, data: dict[str, Any]) -> Any:
        """The request or notification as an object. Parameters outside the specification stay JSON values.

        Raises:
            JsonRpcInvalidParams: a parameter is missing or has a wrong type.
        """
        kind, params = self.get_message_type(data["method"]), data.get("params")
        head = {key: data[key] for key in ("id", "method", "jsonrpc") if key in data}
        if kind is None:
            return (JsonRPCRequestMessage if "id" in head else JsonRPCNotification)(params=params, **head)
        declared = _type_of(kind, "params")
        structured = declared and self.structured({} if params is None else params, declared, "params")
        if isinstance(structured, types.InitializeParams):
            _make_root_a_folder(structured)
        return kind(params=structured, **head)

    def structured(self, value: object, kind: Any, name: str) -> Any:
        """A JSON value as an object of a type of lsprotocol.

        Raises:
            JsonRpcInvalidParams: a field of it is missing or has a wrong type; the message has `name` and the field.
        """
        if (where := check_of(kind)(value)) is not None:
            raise exceptions.JsonRpcInvalidParams(f"{name}{where} is missing or has a wrong type")
        try:
            return self._converter.structure(value, kind)
        except (ClassValidationError, ValueError) as error:
            raise exceptions.JsonRpcInvalidParams(f"a value of {name} is not allowed") from error

    def _receive_response(self, data: dict[str, Any]) -> None:
        """Ends a request of ours, with an error if the response is malformed. Other responses are logged."""
        msg_id: Any = data.get("id")
        future = self._request_futures.get(msg_id) if _is_id(msg_id) and msg_id in self._sent else None
        if future is None or future.done():
            # what is no response either gets an answer without an id
            is_response = "id" in data or "result" in data or "error" in data
            self._reject(data if is_response else {}, exceptions.JsonRpcInvalidRequest("there is no such request"))
            return
        self._sent.discard(msg_id)
        del self._request_futures[msg_id]
        declared = _type_of(self._result_types.pop(msg_id, None), "result")
        try:
            if data.get("error") is not None:
                error = self.structured(data["error"], types.ResponseError, "error")
                raise exceptions.JsonRpcException.from_error(error)
            future.set_result(declared and self.structured(data.get("result"), declared, "result"))
        except exceptions.JsonRpcException as error:
            self._reject(data, error)
            future.set_exception(error)

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

    def follow_cancellation(self) -> None:
        """Cancels the current task when its request is cancelled: pygls runs a command in a task that it does not."""
        request = self._request_futures.get(self.msg_id) if self.msg_id is not None else None
        task = asyncio.current_task()
        if request is not None and task is not None:
            request.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)

    def _execute_handler(self, msg_id: str | int, handler: Any, callback: Any, *args: Any, **kwargs: Any) -> None:
        """Runs a handler, and forgets it at its end: pygls keeps those of notifications and commands for ever."""

        def end(future: Any) -> None:
            if self._request_futures.get(msg_id) is future:
                del self._request_futures[msg_id]
            callback(future)

        super()._execute_handler(msg_id, handler, end, *args, **kwargs)

    def _handle_cancel_notification(self, msg_id: str | int) -> None:
        if msg_id in self._request_futures and msg_id not in self._sent:
            self._cancelled.add(msg_id)
            super()._handle_cancel_notification(msg_id)

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

    def _check_method(self, method: object, *, is_request: bool) -> None:
        """Raises `JsonRpcException` for a method that cannot be called, or not now."""
        is_initialized = self._workspace is not None
        if not isinstance(method, str):
            raise exceptions.JsonRpcInvalidRequest("a method is a string")
        if not is_initialized and method not in (types.INITIALIZE, types.EXIT):
            raise exceptions.JsonRpcServerNotInitialized("send initialize first")
        if is_initialized and method == types.INITIALIZE:
            raise exceptions.JsonRpcInvalidRequest("initialize was received already")
        if self._shutdown and method != types.EXIT:
            raise exceptions.JsonRpcInvalidRequest("the server is shutting down")
        if method != types.CANCEL_REQUEST:
            self._get_handler(method)
        kind = self.get_message_type(method)
        if kind is not None and is_request != ("id" in attrs.fields_dict(kind)):
            raise exceptions.JsonRpcInvalidRequest("a notification has no id" if is_request else "a request has an id")

    def _reject(self, data: dict[str, Any], error: exceptions.JsonRpcException) -> None:
        """Logs the error, and answers it if the message is a request."""
        method, msg_id = data.get("method"), data.get("id")
        if "method" in data and msg_id is None:
            self.on_error(f"notification {str(method)[:80]!r} dropped: {error.message}")
            return
        self.on_error(f"message {str(method or '')[:80]!r} rejected: {error.message}")
        if "method" in data or not data:
            # the id is null if the request cannot be read: JSON-RPC 2.0, section 5; pygls leaves it out
            answer = {"code": error.code, "message": error.message}
            self._send_data({"jsonrpc": self.VERSION, "id": msg_id, "error": answer})


def _is_id(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _make_root_a_folder(params: types.InitializeParams) -> None:
    """Replaces the root of old clients by a folder: pygls fails at a root that is no valid URI or path."""
    if not params.workspace_folders and params.root_uri:
        params.workspace_folders = [types.WorkspaceFolder(params.root_uri, "")]
    params.root_uri = params.root_path = None


def _type_of(message: type | None, field: str) -> Any:
    """The type of `params` or `result` of a message; None for no message, and where there is nothing."""
    kind = attrs.fields_dict(message)[field].type if message is not None else None
    return None if kind is type(None) else kind


def _structure_change(converter: Converter, value: Any, _kind: Any) -> Any:
    """A change of a part of the text, or of the whole text: its range is missing or null."""
    is_part = value.get("range") is not None
    return converter.structure(
        value, types.TextDocumentContentChangePartial if is_part else types.TextDocumentContentChangeWholeDocument
    )


def _reject_constant(name: str) -> None:
    """Raises `ValueError`: JSON has no NaN and no infinity."""
    raise ValueError(name)


def _clamped(tree: dict[str, Any]) -> dict[str, Any]:
    """A JSON object; a position has numbers that LSP allows, so that no edit is lost.

    Lines and characters after the end mean the end, and a negative line means the first.
    """
    if "line" in tree and "character" in tree:
        for key, lowest in (("line", 0), ("character", -MAX_POSITION)):
            if is_integer(tree[key]):
                tree[key] = min(max(tree[key], lowest), MAX_POSITION)
    return tree
