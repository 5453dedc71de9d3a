"""Reads LSP messages from a stream, parses them into typed requests, and checks the lifecycle of a session."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin

import attrs
from cattrs import Converter
from lsprotocol import types
from pygls import exceptions
from pygls.lsp.server import LanguageServer
from pygls.protocol import JsonRPCNotification, JsonRPCRequestMessage, LanguageServerProtocol

# the log of pygls contains the text of buffers: it does not reach standard error
logging.getLogger("pygls").addHandler(logging.NullHandler())
logging.getLogger("pygls").propagate = False

MAX_MESSAGE_BYTES = 1 << 28
"""More than the longest document that is not excluded takes in JSON."""
MAX_POSITION = 2**31 - 1
_MAX_HEADER_LINES = 16
_HEADER_LINE = re.compile(rb"content-([\w-]+):[ \t]*(.*?)[ \t]*\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\d{1,9}")
_CHANGES = types.TextDocumentContentChangePartial, types.TextDocumentContentChangeWholeDocument
_REPLACED = (
    types.INITIALIZED,
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_CLOSE,
    types.NOTEBOOK_DOCUMENT_DID_OPEN,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE,
    types.WORKSPACE_EXECUTE_COMMAND,
    types.EXIT,
)
"""Methods whose handlers of pygls are removed: we keep the documents and end the session ourselves, pygls prints a
traceback when an asynchronous `initialized` is cancelled, and it does not cancel a command with its request."""


async def read_messages(
    reader: asyncio.StreamReader,
    on_error: Callable[[str], None] = lambda _: None,
    max_bytes: int = MAX_MESSAGE_BYTES,
    first: bytes = b"",
) -> AsyncGenerator[bytes, None]:
    """Bodies of the messages until the client disconnects, after `first` if that one has been read already.

    Ends also at a header that is not one of LSP, and passes its problem to `on_error`: the length of the message before
    was wrong and an edit may be lost, or the client is none of LSP, such as a web page.
    """
    if first:
        yield first
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
        if (field := _HEADER_LINE.fullmatch(line)) is None:
            raise ValueError("a header line does not begin with Content-")
        if field[1].lower() == b"length":
            lengths.append(field[2])
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]) or int(lengths[0]) > max_bytes:
        raise ValueError(f"a header needs one Content-Length of at most {max_bytes:,} bytes")
    return int(lengths[0])


def is_cancelled_by_client() -> bool:
    """Whether the client has cancelled the request that is being answered, and not only the work that it waits for."""
    return (task := asyncio.current_task()) is None or task.cancelling() > 0


def is_id(value: object) -> bool:
    """Whether a value of JSON may be the id of a request."""
    return isinstance(value, int | str) and not isinstance(value, bool)


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
            # buffers of Neovim may have bytes that are not UTF-8; `int` refuses NaN and Infinity, which are no JSON
            data = json.loads(body.decode("utf-8", "replace"), parse_constant=int)
        except (ValueError, RecursionError):
            self._reject({}, exceptions.JsonRpcParseError())
            return
        if not isinstance(data, dict) or data.get("jsonrpc") != self.VERSION:
            self._reject({}, exceptions.JsonRpcInvalidRequest())
            return
        if "method" not in data:
            self._receive_response(data)
            return
        if "id" in data and not is_id(data["id"]):
            self._reject({}, exceptions.JsonRpcInvalidRequest("an id is a number or a string"))
            return
        try:
            self._check_method(data["method"], is_request="id" in data)
            message = self.structure_message(data)
        except exceptions.JsonRpcException as error:
            # servers ignore notifications that they do not know
            if "id" in data or not isinstance(error, exceptions.JsonRpcMethodNotFound):
                self._reject(data, error)
            return
        self.handle_message(message)

    def structure_message(self, data: dict[str, Any]) -> Any:
        """The request or notification as an object. Parameters outside the specification stay JSON values.

        Raises:
            JsonRpcInvalidParams: a parameter is missing or has a wrong type.
        """
        kind, params = self.get_message_type(data["method"]), data.get("params")
        head = {key: data[key] for key in ("id", "method", "jsonrpc") if key in data}
        if kind is not None:
            declared = _type_of(kind, "params")
            params = declared and structured({} if params is None else params, declared, "params")
        if isinstance(params, types.InitializeParams):
            _make_root_a_folder(params)
        if isinstance(params, types.ExecuteCommandParams) and params.command not in self.fm.commands:
            raise exceptions.JsonRpcInvalidParams("there is no such command")
        if kind is None or kind is types.ExecuteCommandRequest:  # copilot.el sends a command without an id
            kind = JsonRPCRequestMessage if "id" in head else JsonRPCNotification
        return kind(params=params, **head)

    def _receive_response(self, data: dict[str, Any]) -> None:
        """Ends a request of ours, with an error if the response is malformed. Other responses are logged."""
        msg_id: Any = data.get("id")
        # pygls keeps the requests of both sides by id, and types for those to the client only
        is_sent = is_id(msg_id) and msg_id in self._result_types
        future = self._request_futures.get(msg_id) if is_sent else None
        if future is None or future.done():
            # what is no response either gets an answer without an id
            is_response = "id" in data or "result" in data or "error" in data
            self._reject(data if is_response else {}, exceptions.JsonRpcInvalidRequest("there is no such request"))
            return
        del self._request_futures[msg_id]
        declared = _type_of(self._result_types.pop(msg_id), "result")
        try:
            if data.get("error") is not None:
                error = structured(data["error"], types.ResponseError, "error")
                raise exceptions.JsonRpcException.from_error(error)
            future.set_result(declared and structured(data.get("result"), declared, "result"))
        except exceptions.JsonRpcException as error:
            self._reject(data, error)
            future.set_exception(error)

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
        is_command = method == types.WORKSPACE_EXECUTE_COMMAND
        if kind is not None and not is_command and is_request != ("id" in attrs.fields_dict(kind)):
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


def _make_root_a_folder(params: types.InitializeParams) -> None:
    """Replaces the root of old clients by a folder: pygls fails at a root that is no valid URI or path."""
    if not params.workspace_folders and params.root_uri:
        params.workspace_folders = [types.WorkspaceFolder(params.root_uri, "")]
    params.root_uri = params.root_path = None


def _type_of(message: type | None, field: str) -> Any:
    """The type of `params` or `result` of a message; None for no message, and where there is nothing."""
    kind = attrs.fields_dict(message)[field].type if message is not None else None
    return None if kind is type(None) else kind


def structured(value: Any, kind: Any, where: str) -> Any:
    """A JSON value as a type of lsprotocol; `where` is the name of the value.

    The converter of lsprotocol is lenient: any value becomes a string, and a string an object without fields. Here a
    missing field is null, an empty list is an empty object, as clients in Lua send it, and 3.0 is an integer.

    Raises:
        JsonRpcInvalidParams: a field is missing or has a wrong type; the message names it, such as `where.range.start`.
    """
    shape = _shape(kind)
    if shape is Union:
        for alternative in _alternatives(value, kind):
            with suppress(exceptions.JsonRpcInvalidParams):
                return structured(value, alternative, where)
    elif _CHECKS.get(shape, lambda _: True)(value):  # Any, and what no client sends
        if shape is Sequence:
            [item_kind] = get_args(kind)
            return tuple(structured(item, item_kind, f"{where}[{at}]") for at, item in enumerate(value))
        if shape is object:
            return _structured_object(value or {}, kind, where)
        with suppress(ValueError):  # no value of the enumeration
            return kind(value) if shape in (int, Enum) else value
    raise exceptions.JsonRpcInvalidParams(f"{where} is missing or has a wrong type")


def _alternatives(value: Any, union: Any) -> Sequence[Any]:
    """The types that a value may have. Some known values of a text are an enumeration; they stay texts here.

    A change of the whole text is one whose range is missing or null, not one whose range is wrong.
    """
    alternatives = get_args(union)
    if float in alternatives:  # any value of JSON
        return (Any,)
    if alternatives == _CHANGES and isinstance(value, Mapping):
        return alternatives[1:] if value.get("range") is None else alternatives[:1]
    return sorted(alternatives, key=lambda alternative: _shape(alternative) is Enum)


def _structured_object(tree: Mapping[str, Any], kind: Any, where: str) -> Any:
    fields = {}
    for field in attrs.fields(kind):
        name = _json_name(field.name)
        if tree.get(name) is not None or field.default is attrs.NOTHING:
            fields[field.name] = structured(tree.get(name), field.type, f"{where}.{name}")
    if kind is types.Position:
        fields = _limited(**fields)
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise exceptions.JsonRpcInvalidParams(f"a value of {where} is not allowed") from error


def _limited(line: int, character: int) -> dict[str, int]:
    """The fields of a position with numbers that LSP allows, so that no edit is lost.

    As in VS Code's own documents, lines and characters after the end mean the end, a negative character means the start
    of its line, and a negative line means the start of the text.
    """
    limited = {"line": line, "character": character if line >= 0 else 0}
    return {name: min(max(number, 0), MAX_POSITION) for name, number in limited.items()}


@cache
def _shape(kind: Any) -> Any:
    """`Union`, `Sequence` or `Enum` for a type of this kind, `object` for one with fields; any other type itself."""
    if (origin := get_origin(kind)) in (Union, Sequence):
        return origin
    if attrs.has(kind):
        return object
    return Enum if isinstance(kind, type) and issubclass(kind, Enum) else kind


def _is_integer(value: Any) -> bool:
    """Whether a value of JSON is a whole number; 3.0 is one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0


_CHECKS: dict[Any, Callable[[Any], bool]] = {
    Sequence: lambda value: isinstance(value, list),
    object: lambda value: isinstance(value, Mapping) or value == [],
    Enum: lambda value: not isinstance(value, bool),
    bool: lambda value: isinstance(value, bool),
    int: _is_integer,
    float: lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    type(None): lambda value: value is None,
    types.LSPObject: lambda value: isinstance(value, Mapping),
}


@cache
def _json_name(name: str) -> str:
    first, *further = name.removesuffix("_").split("_")
    return "".join([first, *map(str.title, further)])
