"""What an editor really talks to where there is a daemon: passes messages on, and outlives whoever answers them.

`python -m dg_lsp.daemon.relay WAYS`, with `finding.Ways` as JSON. It holds no model and no text store, and imports as
little as it can, for every editor has one. When a server ends, what was asked of it is answered with nothing; the next
one hears what it has to know of the session so far, and the editor notices nothing but a line in its log.
"""

import json
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from typing import Any, BinaryIO

from dg_lsp.daemon.finding import Finder, Found, Ways
from dg_lsp.daemon.journal import Journal, Message, read_message
from dg_lsp.daemon.nothing import WHY, answer_of, is_asked_for, status_of
from dg_lsp.daemon.upstream import Upstream, framed, read_body

SILENCE = 20.0
"""Seconds without a word while something is asked, after which a server is asked whether it is there, and given up."""
LOOK_SECONDS = 30.0
"""While a process of its own serves this editor, or nothing does, it is looked that often whether there is a daemon."""
_TICK = 1.0
_DOCUMENT, _CONFIGURED = "dg-lsp/document", "workspace/didChangeConfiguration"
_OURS = "dg-lsp-relay/"
"""Ids of what a relay itself asks begin so."""
_WARNING, _INFO = 2, 3


class Relay:
    """One editor's session. Runs in one thread; others only put into its queue."""

    def __init__(self, ways: Ways, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._events: queue.SimpleQueue[tuple[Upstream | Found | None, bytes | None]] = queue.SimpleQueue()
        self._finder = Finder(ways, lambda upstream, body: self._events.put((upstream, body)))
        self._upstream: Upstream | None = None
        self._journal = Journal()
        self._pending: dict[int | str, Message] = {}
        """What the editor has asked and nobody has answered."""
        self._asked: set[int | str] = set()
        """Ids of what the server asks of the editor."""
        self._ours: dict[str, tuple[str, int]] = {}
        self._tokens: set[int | str] = set()
        """Progress that has begun at the editor."""
        self._num_ours = 0
        self._heard = self._looked = self._watched = 0.0
        self._has_pinged = self._is_looking = False
        self._why = WHY
        """What people are told while there is no server."""
        self._is_shut_down = False
        self._exit_code: int | None = None

    def run(self) -> int:
        """Until the editor leaves; the process's exit code."""
        threading.Thread(target=self._read_editor, daemon=True).start()
        self._look_for_server()
        while self._exit_code is None:
            if time.monotonic() - self._watched > _TICK:
                self._watch()
            try:
                who, body = self._events.get(timeout=_TICK)
            except queue.Empty:
                continue
            if isinstance(who, Found):
                self._adopt(who)
            elif who is None:
                self._from_editor(body)
            elif who is self._upstream:
                self._from_server(body)
        if self._upstream is not None:
            self._upstream.finish()
        return self._exit_code

    def _read_editor(self) -> None:
        while (body := read_body(self._source)) is not None:
            self._events.put((None, body))
        self._events.put((None, None))

    def _look_for_server(self) -> None:
        self._looked = time.monotonic()
        self._is_looking = True
        threading.Thread(target=lambda: self._events.put((self._finder.find(), None)), daemon=True).start()

    # from the editor

    def _from_editor(self, body: bytes | None) -> None:
        if body is None:
            self._exit_code = int(not self._is_shut_down)
            return
        message = read_message(body)
        if "method" not in message and message.get("id") not in self._asked:
            return  # to whom it answers is gone
        self._asked.discard(message.get("id", ""))
        if "method" in message and message.get("id") is not None:
            self._request(message, body)
            return
        self._journal.note(message)
        if self._upstream is not None:
            self._upstream.send(body)
        elif message.get("method") == _CONFIGURED and not self._is_looking:
            self._finder.ends.children.clear()  # another model may do better
            self._look_for_server()
        self._compact()
        if message.get("method") == "exit":
            self._exit_code = int(not self._is_shut_down)

    def _request(self, message: Message, body: bytes) -> None:
        self._is_shut_down |= message["method"] == "shutdown"
        if message["method"] == "initialize":
            self._journal.note(message)
        if self._upstream is None and (message["method"] != "initialize" or not self._is_looking):
            self._tell(answer_of(message, self._why))
            self._explain(message)
            return
        self._pending[message["id"]] = message
        if self._upstream is not None:
            self._upstream.send(body)

    def _compact(self) -> None:
        """Asks what a document is by now, where what is kept of it has become long."""
        if self._upstream is None:
            return
        for uri, document in self._journal.documents.items():
            if document.is_long:
                document.is_asked = True
                self._ask(_DOCUMENT, {"uri": uri})

    # from the server

    def _from_server(self, body: bytes | None) -> None:
        if body is None:
            self._lose("the server ended")
            return
        self._heard, self._has_pinged = time.monotonic(), False
        message = read_message(body)
        name = message.get("id")
        if "method" not in message:
            if isinstance(name, str) and name.startswith(_OURS):
                self._hear(message)
                return
            if name is not None and self._pending.pop(name, None) is None:
                return  # answered already
        elif name is not None:
            self._asked.add(name)
        elif message["method"] == "$/progress":
            self._note_progress(message.get("params") or {})
        self._write(body)

    def _hear(self, message: Message) -> None:
        held = message.get("result")
        if isinstance(held, dict) and held.get("uri") in self._journal.documents:
            self._journal.documents[held["uri"]].hold(held["version"], held["text"])

    def _note_progress(self, params: Message) -> None:
        token, value = params.get("token"), params.get("value")
        if token is None or not isinstance(value, dict):
            return
        if value.get("kind") == "end":
            self._tokens.discard(token)
        else:
            self._tokens.add(token)

    # servers come and go

    def _adopt(self, found: Found) -> None:
        self._is_looking = False
        if (upstream := found.upstream) is None:
            self._rest(found.said)
            return
        if found.said:
            self._log(_WARNING, found.said)
        self._upstream, self._heard, self._why = upstream, time.monotonic(), WHY
        upstream.start()
        if (initialize := self._journal.initialize) is None:
            return
        if initialize["id"] in self._pending:
            self._send(initialize)
            return
        self._ask("initialize", initialize.get("params"))
        for message in self._journal.messages():
            self._send(message)
        self._log(_INFO, "a server has taken over where the last one ended")

    def _lose(self, why: str) -> None:
        """Answers what is open and looks for another server."""
        upstream, self._upstream = self._upstream, None
        assert upstream is not None
        threading.Thread(target=upstream.close, daemon=True).start()  # a process may take its time to end
        self._finder.note_end(is_daemon=upstream.is_daemon)
        self._log(
            _WARNING, f"{'the daemon' if upstream.is_daemon else why} ended; what was asked of it stays unanswered"
        )
        for token in self._tokens:
            self._notify("$/progress", {"token": token, "value": {"kind": "end"}})
        self._answer_pending()
        self._tokens.clear()
        self._asked.clear()
        self._has_pinged = False
        for document in self._journal.documents.values():
            document.is_asked = False
        self._show_status()
        self._look_for_server()

    def _answer_pending(self, but: str = "initialize") -> None:
        for name, message in list(self._pending.items()):
            if message["method"] != but:
                del self._pending[name]
                self._tell(answer_of(message, self._why))
                self._explain(message)

    def _rest(self, why: str) -> None:
        """There is no server to be had for now; says so once, and keeps looking."""
        self._answer_pending(but="")
        why = f"{why}; nothing is offered until dg-lsp daemon start helps, the settings change or some time has passed"
        if why != self._why:
            self._why = why
            self._notify("window/showMessage", {"type": _WARNING, "message": f"dg-lsp: {why}"})
            self._log(_WARNING, why)
        self._show_status(is_resting=True)

    def _watch(self) -> None:
        """Notices a server that has fallen silent, and a daemon that is back."""
        self._watched = now = time.monotonic()
        if self._upstream is None:
            if not self._is_looking and now - self._looked > LOOK_SECONDS:
                self._look_for_server()
            return
        if self._pending and now - self._heard > SILENCE:
            if self._has_pinged:
                self._lose("a server that does not answer was given up; it")
            else:
                self._has_pinged, self._heard = True, now
                self._ask(_DOCUMENT, {"uri": ""})
        elif not (self._upstream.is_daemon or self._pending or self._tokens) and now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._return_to_daemon()

    def _return_to_daemon(self) -> None:
        from dg_lsp.daemon.calling import Refused

        with suppress(Refused):
            if (found := self._finder.daemon()) is not None:
                threading.Thread(target=self._upstream.close, daemon=True).start()  # type: ignore[union-attr]
                self._asked.clear()
                self._adopt(Found(found))

    # to either side

    def _ask(self, method: str, params: Any) -> None:
        self._num_ours += 1
        self._send({"id": f"{_OURS}{self._num_ours}", "method": method, "params": params})

    def _send(self, message: Message) -> None:
        assert self._upstream is not None
        self._upstream.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def _notify(self, method: str, params: Any) -> None:
        self._tell({"jsonrpc": "2.0", "method": method, "params": params})

    def _tell(self, message: Message) -> None:
        self._write(json.dumps(message).encode())

    def _write(self, body: bytes) -> None:
        with suppress(OSError):  # an editor that is gone is noticed where it is read
            self._sink.write(framed(body))
            self._sink.flush()

    def _log(self, kind: int, message: str) -> None:
        self._notify("window/logMessage", {"type": kind, "message": f"dg-lsp: {message}"})

    def _explain(self, message: Message) -> None:
        if is_asked_for(message):
            self._notify("window/showMessage", {"type": _WARNING, "message": f"dg-lsp: {self._why}"})

    def _show_status(self, *, is_resting: bool = False) -> None:
        params = (self._journal.initialize or {}).get("params")
        options = params.get("initializationOptions") if isinstance(params, dict) else None
        if isinstance(options, dict) and "editorInfo" in options:
            self._notify("didChangeStatus", status_of(self._why, is_resting=is_resting))


def main() -> int:
    """The session of the process's own standard input and output."""
    ways = json.loads(sys.argv[1])
    # not sys.stdin: a thread that reads it would hold its lock when the interpreter ends
    source = os.fdopen(os.dup(0), "rb")
    return Relay(Ways(**ways), source, sys.stdout.buffer).run()


if __name__ == "__main__":
    sys.exit(main())
