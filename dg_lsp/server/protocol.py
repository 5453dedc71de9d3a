"""pygls' protocol, made to answer every request exactly once.

pygls drops requests that it cannot read or that come after `shutdown`, and keeps a future for every notification that
one of its own generators handles. Here nothing goes unanswered, and the text store, whose positions are wrong, is out.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from cattrs import Converter
from lsprotocol import types
from pygls import exceptions
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol

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
