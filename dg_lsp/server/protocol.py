"""Messages of JSON-RPC as typed requests, and the lifecycle of a session: what pygls does not check."""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from functools import partial
from typing import Any, Union
from uuid import uuid4

from cattrs import BaseValidationError, Converter, transform_error
from lsprotocol import types
from pygls import exceptions
from pygls.lsp.server import LanguageServer
from pygls.protocol import JsonRPCNotification, JsonRPCRequestMessage, LanguageServerProtocol

from dg_lsp.server.transport import MAX_POSITION, is_id

# the log of pygls contains the text of buffers: it does not reach standard error
logging.getLogger("pygls").addHandler(logging.NullHandler())
logging.getLogger("pygls").propagate = False

_CHANGE: Any = Union[types.TextDocumentContentChangePartial, types.TextDocumentContentChangeWholeDocument]  # noqa: UP007
_CAMEL = re.compile("_([a-z])")
_MAX_UNANSWERED = 100
"""Requests to the client that may wait for its answers: some clients never answer."""
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
        for kind in (str, bool, int):
            converter.register_structure_hook(kind, _structure_primitive)
        converter.register_structure_hook(_CHANGE, partial(_structure_change, converter))
        self.on_error: Callable[[str], None] = lambda _: None
        """Receives one line about each message that cannot be read, without its content."""
        self._cancelled: set[str | int] = set()
        """Pending requests that the client cancelled."""
        self._sent: dict[str | int, Future[Any]] = {}
        """Requests to the client that it has not answered, the oldest first."""
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
        if "method" not in data:
            self._receive_response(data)
            return
        if "id" in data and (not is_id(data["id"]) or data["id"] in self._sent):
            # pygls keeps the requests of both sides by id; the answer to a request without an id of its own has none
            self._reject(
                {}, exceptions.JsonRpcInvalidRequest("an id is a number or a string that the server does not use")
            )
            return
        try:
            self._check_method(data["method"])
            message = self.structure_message(data)
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
        if kind is None:
            if "id" in data:
                return JsonRPCRequestMessage(data["id"], data["method"], data["jsonrpc"], params)
            return JsonRPCNotification(data["method"], data["jsonrpc"], params)
        message = self.structured({**data, "params": {} if params is None else params}, kind)
        if isinstance(message, types.InitializeRequest):
            _make_root_a_folder(message.params)
        return message

    def structured(self, value: object, kind: Any, name: str = "") -> Any:
        """A JSON value as an object of a type of lsprotocol.

        Raises:
            JsonRpcInvalidParams: a field of it is missing or has a wrong type; the message has `name` and the field.
        """
        try:
            return self._converter.structure(value, kind)
        except (BaseValidationError, ValueError, TypeError, KeyError, AttributeError) as error:
            path = transform_error(error)[0].rpartition("@ $")[2]  # the rest may quote a buffer
            field = (name + _CAMEL.sub(lambda match: match[1].upper(), path)).removeprefix(".")
            raise exceptions.JsonRpcInvalidParams(f"{field} is missing or has a wrong type") from error

    def _receive_response(self, data: dict[str, Any]) -> None:
        """Ends a request of ours, with an error if the response is malformed. Other responses are logged."""
        msg_id: Any = data.get("id")
        future = self._sent.get(msg_id) if is_id(msg_id) else None
        if future is None or future.done():
            # what is no response either gets an answer without an id
            is_response = "id" in data or "result" in data or "error" in data
            self._reject(data if is_response else {}, exceptions.JsonRpcInvalidRequest("there is no such request"))
            return
        declared = self._forget(msg_id)
        try:
            if data.get("error") is not None:
                error = self.structured(data["error"], types.ResponseError, "error")
                raise exceptions.JsonRpcException.from_error(error)
            future.set_result(self.structured({"result": None, **data}, declared).result)
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
        """Sends a request, whose id differs from those of the client.

        The oldest one is cancelled if the client leaves too many without an answer.
        """
        msg_id = str(uuid4()) if msg_id is None else msg_id
        if len(self._sent) >= _MAX_UNANSWERED:
            oldest, waiting = next(iter(self._sent.items()))
            self._forget(oldest)
            waiting.cancel()
        future = self._sent[msg_id] = super().send_request(method, params, callback, msg_id)
        return future

    def _forget(self, msg_id: str | int) -> Any:
        """Removes a request to the client; returns the type of its result."""
        del self._sent[msg_id], self._request_futures[msg_id]
        return self._result_types.pop(msg_id, None)

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
        if is_id(msg_id) and msg_id in self._request_futures and msg_id not in self._sent:
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

    def _check_method(self, method: object) -> None:
        """Raises `JsonRpcException` for a method that cannot be called now."""
        is_initialized = self._workspace is not None
        if not isinstance(method, str):
            raise exceptions.JsonRpcInvalidRequest("a method is a string")
        if not is_initialized and method not in (types.INITIALIZE, types.EXIT):
            raise exceptions.JsonRpcServerNotInitialized("send initialize first")
        if is_initialized and method == types.INITIALIZE:
            raise exceptions.JsonRpcInvalidRequest("initialize was received already")
        if self._shutdown and method != types.EXIT:
            raise exceptions.JsonRpcInvalidRequest("the server is shutting down")

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


def _structure_change(converter: Converter, value: Any, _kind: Any) -> Any:
    """A change of a part of the text, or of the whole text: its range is missing or null."""
    is_part = value.get("range") is not None
    return converter.structure(
        value, types.TextDocumentContentChangePartial if is_part else types.TextDocumentContentChangeWholeDocument
    )


def _structure_primitive(value: Any, kind: type) -> Any:
    """The member of an enumeration, or a value of exactly this type; lsprotocol takes any value for a string."""
    if issubclass(kind, Enum):
        return kind(value)
    if kind is int and is_integer(value):  # 3.0 is an integer
        return int(value)
    if type(value) is not kind:
        raise TypeError(f"no {kind.__name__}")
    return value


def _clamped(tree: dict[str, Any]) -> dict[str, Any]:
    """A JSON object; a position has numbers that LSP allows, so that no edit is lost.

    As in VS Code's own documents, lines and characters after the end mean the end, a negative character means the start
    of its line, and a negative line means the start of the text.
    """
    if "line" in tree and "character" in tree and is_integer(tree["line"]) and is_integer(tree["character"]):
        is_before = tree["line"] < 0
        for key in ("line", "character"):
            tree[key] = 0 if is_before else min(max(tree[key], 0), MAX_POSITION)
    return tree


def is_integer(value: Any) -> bool:
    """Whether a value of JSON is a whole number; 3.0 is one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
