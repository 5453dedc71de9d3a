"""Parses JSON-RPC messages into typed requests and checks the lifecycle of a session, which pygls does not."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import ClassValidationError
from lsprotocol import types
from pygls import exceptions
from pygls.lsp.server import LanguageServer
from pygls.protocol import JsonRPCNotification, JsonRPCRequestMessage, LanguageServerProtocol

from dg_lsp.server.transport import MAX_POSITION, is_id

# the log of pygls contains the text of buffers: it does not reach standard error
logging.getLogger("pygls").addHandler(logging.NullHandler())
logging.getLogger("pygls").propagate = False

_CHANGE: Any = Union[types.TextDocumentContentChangePartial, types.TextDocumentContentChangeWholeDocument]  # noqa: UP007
DID_ACCEPT = "dg-lsp/didAccept"
"""A notification that takes the place of `workspace/executeCommand` where that has no id, as copilot.el sends it."""
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
        converter.register_structure_hook(
            _CHANGE, lambda change, _: converter.structure(change, _kind_of_change(change))
        )
        converter.register_structure_hook(types.Position, _position)
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
            # buffers of Neovim may have bytes that are not UTF-8
            data = json.loads(body.decode("utf-8", "replace"), parse_constant=_reject_constant)
        except (ValueError, RecursionError):
            self._reject({}, exceptions.JsonRpcParseError())
            return
        if not isinstance(data, dict) or data.get("jsonrpc") != self.VERSION:
            self._reject({}, exceptions.JsonRpcInvalidRequest())
            return
        if "method" not in data:
            self._receive_response(data)
            return
        if "id" in data and (not is_id(data["id"]) or self._is_sent(data["id"])):
            # pygls keeps the requests of both sides by id; the answer to a request without an id of its own has none
            self._reject(
                {}, exceptions.JsonRpcInvalidRequest("an id is a number or a string that the server does not use")
            )
            return
        try:
            self._check_method(data["method"], is_request="id" in data)
            message = self.structure_message(data)
        except exceptions.JsonRpcException as error:
            # servers ignore notifications that they do not know
            if "id" in data or not isinstance(error, exceptions.JsonRpcMethodNotFound):
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
        if kind is types.ExecuteCommandRequest and "id" not in head:
            return JsonRPCNotification(**{**head, "method": DID_ACCEPT}, params={"item": {"command": params}})
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
        if (where := mismatch(value, kind)) is not None:
            raise exceptions.JsonRpcInvalidParams(f"{name}{where} is missing or has a wrong type")
        try:
            return self._converter.structure(value, kind)
        except (ClassValidationError, ValueError) as error:
            raise exceptions.JsonRpcInvalidParams(f"a value of {name} is not allowed") from error

    def _receive_response(self, data: dict[str, Any]) -> None:
        """Ends a request of ours, with an error if the response is malformed. Other responses are logged."""
        msg_id: Any = data.get("id")
        future = self._request_futures.get(msg_id) if is_id(msg_id) and self._is_sent(msg_id) else None
        if future is None or future.done():
            # what is no response either gets an answer without an id
            is_response = "id" in data or "result" in data or "error" in data
            self._reject(data if is_response else {}, exceptions.JsonRpcInvalidRequest("there is no such request"))
            return
        del self._request_futures[msg_id]
        declared = _type_of(self._result_types.pop(msg_id), "result")
        try:
            if data.get("error") is not None:
                error = self.structured(data["error"], types.ResponseError, "error")
                raise exceptions.JsonRpcException.from_error(error)
            future.set_result(declared and self.structured(data.get("result"), declared, "result"))
        except exceptions.JsonRpcException as error:
            self._reject(data, error)
            future.set_exception(error)

    def _is_sent(self, msg_id: str | int) -> bool:
        """Whether it is the id of a request to the client that it has not answered."""
        return msg_id in self._result_types

    def follow_cancellation(self) -> None:
        """Cancels the current task when its request is cancelled; pygls does not cancel the task of a command."""
        request = self._request_futures.get(self.msg_id) if self.msg_id is not None else None
        task = asyncio.current_task()
        if request is not None and task is not None:
            request.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)

    def _execute_handler(self, msg_id: str | int, handler: Any, callback: Any, *args: Any, **kwargs: Any) -> None:
        """Runs a handler and forgets it at its end; pygls keeps those of notifications and commands for ever."""

        def end(future: Any) -> None:
            if self._request_futures.get(msg_id) is future:
                del self._request_futures[msg_id]
            callback(future)

        super()._execute_handler(msg_id, handler, end, *args, **kwargs)

    def _handle_cancel_notification(self, msg_id: str | int) -> None:
        if not self._is_sent(msg_id):
            super()._handle_cancel_notification(msg_id)

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


def _kind_of_change(change: Mapping[str, Any]) -> type:
    """A change of a part of the text, or of the whole text: its range is missing or null."""
    is_part = change.get("range") is not None
    return types.TextDocumentContentChangePartial if is_part else types.TextDocumentContentChangeWholeDocument


def _reject_constant(name: str) -> None:
    """Raises `ValueError`: JSON has no NaN and no infinity."""
    raise ValueError(name)


def _position(tree: Mapping[str, Any], _kind: type) -> types.Position:
    """A position with numbers that LSP allows, so that no edit is lost.

    As in VS Code's own documents, lines and characters after the end mean the end, a negative character means the start
    of its line, and a negative line means the start of the text.
    """
    line, character = (min(max(int(tree[key]), 0), MAX_POSITION) for key in ("line", "character"))
    return types.Position(line, character if tree["line"] >= 0 else 0)


def is_integer(value: Any) -> bool:
    """Whether a value of JSON is a whole number; 3.0 is one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0


_PRIMITIVES: dict[type, Callable[[Any], bool]] = {
    bool: lambda value: isinstance(value, bool),
    int: is_integer,
    float: lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    str: lambda value: isinstance(value, str),
    type(None): lambda value: value is None,
    types.LSPObject: lambda value: isinstance(value, Mapping),
}


def mismatch(value: Any, kind: Any) -> str | None:
    """Where a JSON value differs from a type of lsprotocol, such as `.range.start`; None where it does not differ.

    Needed because the converter of lsprotocol is lenient: any value becomes a string, and a string an object without
    fields. Null is a missing field. An empty list is an empty object, as clients in Lua send it, and 3.0 is an integer.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Union:
        if kind == _CHANGE and isinstance(value, Mapping):
            return mismatch(value, _kind_of_change(value))
        is_right = any(mismatch(value, alternative) is None for alternative in arguments)
    elif origin is Sequence:
        if isinstance(value, list):
            places = ((f"[{at}]", mismatch(item, arguments[0])) for at, item in enumerate(value))
            return next((f"{place}{where}" for place, where in places if where is not None), None)
        is_right = False
    elif attrs.has(kind):
        return _mismatch_of_object(value, kind)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        is_right = not isinstance(value, bool) and value in [member.value for member in kind]
    else:
        is_right = _PRIMITIVES.get(kind, lambda _: True)(value)  # Any, and what no client sends
    return None if is_right else ""


def _mismatch_of_object(value: Any, kind: Any) -> str | None:
    if not isinstance(value, Mapping) and value != []:
        return ""
    for name, field_kind, is_required in fields_of(kind):
        field_value = value.get(name) if value else None
        is_checked = is_required or field_value is not None
        if is_checked and (where := mismatch(field_value, field_kind)) is not None:
            return f".{name}{where}"
    return None


@cache
def fields_of(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """The fields of a type of lsprotocol: their names in JSON, their types, and whether they are required."""
    return tuple((_json_name(field.name), field.type, field.default is attrs.NOTHING) for field in attrs.fields(kind))


def _json_name(name: str) -> str:
    first, *further = name.removesuffix("_").split("_")
    return "".join([first, *map(str.title, further)])
