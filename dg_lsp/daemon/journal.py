"""What a server has to hear to go on where another one ended. Light: a relay imports it.

Knows the protocol's messages, and no encoding: an edit is kept as it came. What an editor's session has typed would
grow without end, so that now and then a server is asked what a document is by now.
"""

import json
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]
LONGEST = 1000
"""Changes of a document that are kept before its text is asked for."""
_LAST = ("workspace/didChangeConfiguration", "dg-lsp/watch", "textDocument/didFocus")
"""Of these the last one says all."""


def read_message(body: bytes) -> Message:
    """A message as far as it can be understood; a server says better what is wrong with one."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return {"method": ""}
    return message if isinstance(message, dict) else {"method": ""}


class OpenDocument:
    """A text, and what has changed since."""

    def __init__(self, item: Message) -> None:
        self._item = item
        self._changes: list[Message] = []
        """As `didChange` says them, each with its version."""
        self.is_asked = False
        """Somebody was asked what it is by now."""

    @property
    def is_long(self) -> bool:
        """It would be good to know what it is by now."""
        return len(self._changes) > LONGEST and not self.is_asked

    def change(self, version: int, changes: list[Message]) -> None:
        """Takes edits; one of the whole text makes all before it void."""
        whole = next((i for i in reversed(range(len(changes))) if "range" not in changes[i]), None)
        if whole is not None:
            self.hold(version, changes[whole].get("text", ""))
            changes = changes[whole + 1 :]
        if changes:
            self._changes.append({"version": version, "changes": changes})

    def hold(self, version: int, text: str) -> None:
        """It was this text in this version; what came later still counts."""
        self.is_asked = False
        self._item = {**self._item, "version": version, "text": text}
        self._changes = [one for one in self._changes if one["version"] > version]

    def messages(self) -> Iterator[Message]:
        """Opens it as it is."""
        yield {"method": "textDocument/didOpen", "params": {"textDocument": self._item}}
        for one in self._changes:
            name = {"uri": self._item["uri"], "version": one["version"]}
            yield {
                "method": "textDocument/didChange",
                "params": {"textDocument": name, "contentChanges": one["changes"]},
            }


class Journal:
    """One editor's session so far."""

    def __init__(self) -> None:
        self.initialize: Message | None = None
        """The editor's own message."""
        self.is_initialized = False
        """The editor has said `initialized`."""
        self.documents: dict[str, OpenDocument] = {}
        self._last: dict[str, Message] = {}

    def note(self, message: Message) -> None:
        """Keeps of a message what a new server has to know; a message that is not as it should be, not at all."""
        method, params = message.get("method"), message.get("params")
        if method == "initialize":
            self.initialize = message
        elif method == "initialized":
            self.is_initialized = True
        elif method in _LAST:
            self._last[method] = message
        elif isinstance(params, dict) and isinstance(params.get("textDocument"), dict):
            self._note_document(str(method), params, params["textDocument"])

    def messages(self) -> Iterator[Message]:
        """All of it but `initialize`, in an order that the protocol allows."""
        if not self.is_initialized:
            return
        yield {"method": "initialized", "params": {}}
        if (configuration := self._last.get(_LAST[0])) is not None:
            yield configuration
        for document in self.documents.values():
            yield from document.messages()
        for method in _LAST[1:]:
            if method in self._last:
                yield self._last[method]

    def _note_document(self, method: str, params: Message, named: Message) -> None:
        uri = named.get("uri")
        if not isinstance(uri, str):
            return
        if method == "textDocument/didOpen":
            self.documents[uri] = OpenDocument(named)
        elif method == "textDocument/didClose":
            self.documents.pop(uri, None)
        elif method == "textDocument/didChange" and uri in self.documents:
            changes, version = params.get("contentChanges"), named.get("version")
            if isinstance(version, int) and isinstance(changes, list) and all(isinstance(one, dict) for one in changes):
                self.documents[uri].change(version, changes)
