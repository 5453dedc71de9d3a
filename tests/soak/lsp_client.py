"""A client that sends valid and damaged messages, holds a model of every document, and judges each answer.

It makes bodies of messages and receives decoded messages; how they travel is left to its owner.
"""

import json
import re
from collections import deque
from dataclasses import dataclass
from functools import partial

import attrs
from lsprotocol import types

from soak import values
from soak.documents import CHANGE, CHANGE_NOTEBOOK, CLOSE, CLOSE_NOTEBOOK, OPEN, OPEN_NOTEBOOK, WorkspaceModel, readable

PARSE, REQUEST, METHOD, PARAMS, UNINITIALIZED = -32700, -32600, -32601, -32602, -32002
CANCELLED = -32800
COMPLETION = "textDocument/inlineCompletion"
COMMAND = "workspace/executeCommand"
COMMANDS = ("dg-lsp.rewrite", "dg-lsp.completeBlock", "dg-lsp.fillGaps", "dg-lsp.accepted")
REQUESTS = (
    "textDocument/copilotInlineEdit", "dg-lsp/stats", "checkStatus",
    "signIn", "signInInitiate", "signInConfirm", "signOut",
)  # fmt: skip
"""Methods outside the specification that are requests; the others are notifications."""
AT_END = ("shutdown", "exit", "initialize")
FILES = tuple(f"file:///project/{name}.py" for name in "abcdef")
NOTEBOOKS = tuple(f"file:///project/{name}.ipynb" for name in "xy")
CELLS = tuple(f"vscode-notebook-cell:/project/x.ipynb#W{number}" for number in range(6))
LONGEST = 20_000
NEAR = 4000
"""Characters on each side of the cursor that a completion may depend on."""
MAX_OPEN, MAX_CELLS = 12, 8
_DROPPED = re.compile(r"notification .* dropped: ", re.DOTALL)
_FAILED = re.compile(r"Feature\w+Error: |JsonRpc\w+: |fill failed")
_FORESEEN = re.compile(r"FeatureRequestError: JsonRpcInvalidParams")


@dataclass
class Expected:
    """What may answer a request."""

    method: str
    codes: tuple
    """Codes of errors; None for a result."""
    check: object = lambda _: None
    """Raises an exception for a result that is wrong."""
    body: bytes = b""


class Client:
    """One session."""

    def __init__(self, rng, methods, figures, *, folder=None):
        """`methods` are those that the server registers. Completions are the texts that the model saw."""
        self.rng = rng
        self.methods = methods
        self.figures = figures
        self.folder = folder
        self.state = "new"
        self.encoding = "utf-16"
        self.workspace = WorkspaceModel()
        self.pending = {}
        self.nameless = deque()
        """Codes of the answers without an id that must come next."""
        self.replies = deque()
        self.touched = set()
        """URIs of the documents that the last message opens, changes or closes."""
        self.last = b""
        """The last body, or its beginning."""
        self.num_dropped = 0
        """Notifications that must be dropped with a line in the log."""
        self.is_silent = rng.random() < 0.1
        """Never answers the server."""
        self._next_id = 0
        self._names = []  # of items
        self._tokens = []
        self._special = {
            types.Position: self._position,
            types.Range: self._range,
            types.TextDocumentIdentifier: lambda: {"uri": self._uri()},
            types.VersionedTextDocumentIdentifier: lambda: {"uri": self._uri(), "version": self._version()},
            types.TextDocumentItem: self._item,
            types.DidChangeTextDocumentParams: self._change,
            types.NotebookCell: self._cell,
            types.NotebookDocument: self._any_notebook,
            types.NotebookDocumentIdentifier: lambda: {"uri": rng.choice(NOTEBOOKS)},
            types.NotebookDocumentCellContentChanges: self._cell_change,
            types.ExecuteCommandParams: self._command,
            types.DidChangeConfigurationParams: self._configuration,
            types.WorkspaceFolder: lambda: {"uri": rng.choice((*values.URIS, *FILES)), "name": values.text(rng, 1)},
            types.WorkDoneProgressCancelParams: lambda: {"token": rng.choice([*self._tokens, 0, "", "x"])},
            types.CancelParams: lambda: {"id": rng.choice([*self.pending, 0, "", "gone"])},
            types.SelectedCompletionInfo: lambda: {"range": self._range(), "text": values.text(rng, 2)},
        }

    # messages to the server

    def message(self):
        """The body of the next message."""
        rng = self.rng
        if self.state == "new":
            return self._send(self._initialize())
        if self.replies and rng.random() < 0.8:
            return self._send(self.replies.popleft())
        kind = rng.random()
        if kind < 0.4:
            message = self._call(CHANGE)
        elif kind < 0.52:
            message = self._call(COMPLETION)
        elif kind < 0.58:
            is_full = len(self.documents) > MAX_OPEN or (self.documents and rng.random() < 0.3)
            message = self._call(CLOSE if is_full else OPEN)
        elif kind < 0.64:
            message = self._notification(*self._notebook())
        elif kind < 0.97:
            message = self._call(rng.choice(self.methods))
        else:
            return self._expect(self._noise())
        if rng.random() < 0.25:
            message = values.damaged_message(message, rng)
        return self._send(message)

    def probe(self):
        """Id and body of a request of an unknown method: its answer shows that all messages before it were handled."""
        message = {"jsonrpc": "2.0", "id": f"p{self._id()}", "method": "soak/probe"}
        last = self.last
        body = self._send(message)
        self.last = last
        return message["id"], body

    def end(self):
        """The bodies of the messages that end the session, in order."""
        yield self._send({"jsonrpc": "2.0", "id": "end", "method": "shutdown"})
        yield self._send(self._call(COMPLETION))
        yield self._send(self._call(CHANGE))
        yield self._send({"jsonrpc": "2.0", "method": "exit"})

    def _send(self, message):
        # some encoders escape all characters, others none
        is_ascii = self.rng.random() < 0.5
        try:
            return self._expect(json.dumps(message, ensure_ascii=is_ascii).encode())
        except UnicodeEncodeError:  # halves of surrogate pairs
            return self._expect(json.dumps(message).encode())

    def _initialize(self):
        rng = self.rng
        encodings = rng.choice((["utf-8"], ["utf-16"], ["utf-32"], ["utf-32", "utf-8"], ["x", "utf-8"], [], None))
        capabilities = values.make(types.ClientCapabilities, rng, self._special)
        capabilities["general"] = {**capabilities.get("general", {}), "positionEncodings": encodings}
        capabilities["workspace"] = {**capabilities.get("workspace", {}), "configuration": rng.random() < 0.5}
        capabilities["window"] = {**capabilities.get("window", {}), "workDoneProgress": rng.random() < 0.7}
        options = {"completion": {"deadline_ms": 600_000, "early_stop_ms": 0}, "rewrite": {"deadline_ms": 600_000}}
        params = {"capabilities": capabilities, "initializationOptions": options, "processId": None}
        params["rootUri"] = rng.choice((self.folder, None, rng.choice(values.URIS)))
        if rng.random() < 0.5:
            params["workspaceFolders"] = [{"uri": rng.choice((self.folder or "", *values.URIS)), "name": "a"}]
        if rng.random() < 0.3:
            options["editorInfo"] = values.anything(rng)
            options |= values.settings(rng)
        message = {"jsonrpc": "2.0", "id": self._id(), "method": "initialize", "params": params}
        return values.damaged_message(message, rng) if rng.random() < 0.2 else message

    def _notification(self, method, params):
        return {"jsonrpc": "2.0", "method": method, "params": params}

    def _call(self, method):
        kind = types.METHOD_TO_TYPES.get(method, (None,))[0]
        if kind is None:
            params = self._copilot()
        else:
            params = values.make(attrs.fields_dict(kind)["params"].type, self.rng, self._special)
        message = self._notification(method, params)
        is_request = method in REQUESTS if kind is None else "id" in attrs.fields_dict(kind)
        if is_request != (self.rng.random() < 0.03):  # some have an id that they must not have, or none
            message["id"] = self._id()
        return message

    def _copilot(self):
        return {
            "textDocument": {"uri": self._uri(), "version": self._version()},
            "position": self._position(),
            "item": {"command": {"arguments": [self.rng.choice([*self._names, "x"])]}},
            "acceptedLength": self.rng.choice(values.BOUNDS),
            "on": self.rng.random() < 0.1,
        }

    def _item(self):
        rng = self.rng
        uri = rng.choice(FILES if rng.random() < 0.8 else values.URIS)
        head = {"uri": uri, "languageId": rng.choice(values.LANGUAGES), "version": self._version()}
        return {**head, "text": values.text(rng, rng.choice((0, 3, 60, 60, 300)))}

    def _notebook(self):
        """A notebook that is opened, changed or closed; mostly as editors do."""
        rng = self.rng
        uri = self.rng.choice(NOTEBOOKS)
        head = {"uri": uri, "version": self._version()}
        if uri not in self.workspace.notebooks or rng.random() < 0.05:
            cells = [self._cell() for _ in range(rng.randint(0, 4))]
            notebook = {**head, "notebookType": "jupyter-notebook", "cells": cells}
            return OPEN_NOTEBOOK, {"notebookDocument": notebook, "cellTextDocuments": self._items(cells)}
        cells = self.workspace.notebooks[uri]
        if rng.random() < 0.1:
            closed = [{"uri": cell} for cell in cells]
            return CLOSE_NOTEBOOK, {"notebookDocument": {"uri": uri}, "cellTextDocuments": closed}
        changed = {}
        if rng.random() < 0.4:
            changed["structure"] = self._structure(cells)
        if rng.random() < 0.1:
            changed["data"] = [self._cell() for _ in range(rng.randint(0, 2))]
        if rng.random() < 0.7:
            changed["textContent"] = [self._cell_change() for _ in range(rng.choice((1, 1, 2)))]
        return CHANGE_NOTEBOOK, {"notebookDocument": head, "change": {"cells": changed}}

    def _any_notebook(self):
        """A notebook, which is closed or replaced some time: an editor does not open more and more of them."""
        uri = self.rng.choice((*NOTEBOOKS, *values.URIS))
        cells = [self._cell() for _ in range(self.rng.randint(0, 4))]
        return {"uri": uri, "notebookType": values.text(self.rng, 1), "version": self._version(), "cells": cells}

    def _structure(self, cells):
        """Cells that are inserted, deleted or moved."""
        rng = self.rng
        start = rng.randint(0, len(cells) + (rng.random() < 0.1))
        number = rng.choice((0, 0, 1, 2, values.MOST))
        deleted = cells[start : start + number]
        new = [self._cell() for _ in range(rng.randint(0, 2) if len(cells) < MAX_CELLS else 0)]
        array = {"start": start, "deleteCount": number, "cells": new}
        return {"array": array, "didOpen": self._items(new), "didClose": [{"uri": cell} for cell in deleted]}

    def _cell(self):
        rng = self.rng
        cell = {"kind": rng.choice((2, 2, 2, 1)), "document": rng.choice(CELLS)}
        return {**cell, "executionSummary": {"executionOrder": 3}} if rng.random() < 0.1 else cell

    def _items(self, cells):
        items = [{**self._item(), "uri": cell["document"]} for cell in cells]
        return [{**item, "languageId": "python"} if self.rng.random() < 0.8 else item for item in items]

    def _cell_change(self):
        change = self._change()
        return {"document": change["textDocument"], "changes": change["contentChanges"]}

    def _change(self):
        rng = self.rng
        uri = self._uri()
        document = self.documents.get(uri)
        changes = []
        is_long = document is not None and len(document.text) > LONGEST
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3, 0))):
            change = {"text": values.text(rng, rng.choice((1, 1, 2, 8)))}
            if not is_long and rng.random() < 0.97:
                change["range"] = self._range(document)
                if rng.random() < 0.1:
                    change["rangeLength"] = rng.choice((0, 1, 5))
            elif rng.random() < 0.1:
                change["range"] = None
            changes.append(change)
        return {"textDocument": {"uri": uri, "version": self._version()}, "contentChanges": changes}

    def _command(self):
        rng = self.rng
        argument = {"uri": self._uri(), "range": self._range(), "position": self._position()}
        if rng.random() < 0.5:
            argument |= {"instruction": values.text(rng, 2), "strength": rng.choice((1, 0.5, 0, -1, 2, 1e308, "1"))}
        name = rng.choice((*COMMANDS, values.text(rng, 1)))
        arguments = [rng.choice([*self._names, "x"]) if name.endswith("accepted") else argument]
        if rng.random() < 0.2:
            arguments = values.damaged(arguments, rng)
        return {"command": name, "arguments": arguments} if isinstance(arguments, list) else {"command": name}

    def _configuration(self):
        tree = values.settings(self.rng)
        return {"settings": self.rng.choice((tree, {"dg-lsp": tree}, None, values.anything(self.rng)))}

    def _uri(self):
        choices = [*self.documents] if self.documents and self.rng.random() < 0.95 else [*FILES, *values.URIS]
        return self.rng.choice(choices)

    def _version(self):
        return self.rng.choice((self._next_id, 0, 1, -5, values.MOST))

    def _position(self, document=None):
        rng = self.rng
        if rng.random() < 0.1:
            return {"line": rng.choice(values.BOUNDS), "character": rng.choice(values.BOUNDS[:12])}
        document = document or (rng.choice([*self.documents.values()]) if self.documents else None)
        if document is None:
            return {"line": 0, "character": 0}
        at = document.position(rng.randint(0, len(document.text)), self.encoding)
        if rng.random() < 0.1:
            at["character"] += rng.choice((1, 2, 100))
        return at

    def _range(self, document=None):
        start = self._position(document)
        if self.rng.random() < 0.6:
            return {"start": start, "end": start}
        # mostly short, so that texts are not used up
        end = self._position(document)
        if self.rng.random() < 0.8:
            end = {"line": start["line"], "character": start["character"] + self.rng.randint(0, 5)}
        return {"start": start, "end": end}

    def _id(self):
        self._next_id += 1
        odd = self.rng.choice((0, -1, 2**53, 2**70, "", "0", "\x00", "é" * 50, -(2**31)))
        is_odd = self.rng.random() < 0.05 and odd not in self.pending
        return odd if is_odd else self.rng.choice((self._next_id, f"r{self._next_id}"))

    def _noise(self):
        """A body that is no message, or one whose head is damaged."""
        rng = self.rng
        head = {"jsonrpc": "2.0", "id": self._id(), "method": rng.choice((*self.methods, "x", "$/x", "x" * 10_000))}
        if head["method"] in AT_END:
            del head["method"]
        bodies = (
            rng.randbytes(rng.randint(1, 60)),
            b"[" * 100_000,
            b'{"jsonrpc": "2.0", "id": NaN, "method": "x"}',
            b'{"jsonrpc": "2.0", "id": %s, "method": "x"}' % (b"9" * 5000),
            json.dumps(values.anything(rng)).encode(),
            json.dumps([head]).encode(),
            json.dumps(head).encode()[: -rng.randint(1, 20)],
            *[json.dumps(values.damaged(head, rng), default=str).encode() for _ in range(8)],
        )
        return rng.choice(bodies)

    # what must follow, by JSON-RPC 2.0 and LSP 3.18

    def _expect(self, body):
        self.touched = set()
        self.last = body[:500]
        try:
            data = json.loads(body, parse_constant=int)  # refuses NaN and infinities
        except (ValueError, RecursionError):
            self.nameless.append(PARSE)
            return body
        if not isinstance(data, dict) or data.get("jsonrpc") != "2.0":
            self.nameless.append(REQUEST)
        elif "method" not in data:
            if not {"id", "result", "error"} & set(data):
                self.nameless.append(REQUEST)
        elif "id" in data and (isinstance(data["id"], bool) or not isinstance(data["id"], int | str)):
            self.nameless.append(REQUEST)
        else:
            if "id" in data and data["id"] in self.pending:  # damaged to the id of another request
                data["id"] = self._id()
                body = json.dumps(data).encode()
            self._expect_call(data, body)
        return body

    def _expect_call(self, data, body):
        code = self._refusal(data)
        method = data["method"]
        if "id" in data:
            expected = Expected(str(method)[:80], (code,), body=body[:500])
            if code is None:
                expected.codes, expected.check = self._outcomes(method, data.get("params"))
            self.pending[data["id"]] = expected
        elif code is not None:
            self.num_dropped += code != METHOD
        if code is None:
            self._apply(method, data.get("params"))

    def _refusal(self, data):
        """The code of the error that must answer a call; None if it is valid."""
        method = data["method"]
        is_request = "id" in data
        if not isinstance(method, str):
            return REQUEST
        if self.state == "new" and method not in ("initialize", "exit"):
            return UNINITIALIZED
        if (self.state != "new" and method == "initialize") or (self.state == "ending" and method != "exit"):
            return REQUEST
        if method not in (*self.methods, *AT_END, "$/cancelRequest"):
            return METHOD
        kind = types.METHOD_TO_TYPES.get(method, (None,))[0]
        if kind is None:
            return None
        fields = attrs.fields_dict(kind)
        if is_request != ("id" in fields) and method != COMMAND:  # copilot.el sends commands without an id
            return REQUEST
        params = data.get("params")
        is_void = fields["params"].type is type(None)
        if not (is_void or values.fits({} if params is None else params, fields["params"].type)):
            return PARAMS
        return PARAMS if method == COMMAND and params["command"] not in COMMANDS else None

    def _outcomes(self, method, params):
        """Codes that may answer a valid request, and the check of its result."""
        if method == COMPLETION:
            return (None, CANCELLED), self._check_of_completion(params)
        if method == "initialize":
            return (None,), self._check_initialized
        computes = method.endswith("InlineEdit") or method in (COMMAND, "dg-lsp/why")
        return (None, CANCELLED) if computes else (None,), lambda _: None

    def _check_initialized(self, result):
        self.encoding = result["capabilities"]["positionEncoding"]

    def _apply(self, method, params):
        """What a valid message changes."""
        self.touched = self.workspace.apply(method, params, self.encoding)
        if method == "initialize":
            self.state = "running"
            self.replies.append(self._notification("initialized", {}))
        elif method == "shutdown":
            self.state = "ending"

    @property
    def documents(self):
        return self.workspace.documents

    def _check_of_completion(self, params):
        uri = params["textDocument"]["uri"]
        document = self.documents.get(uri)
        if document is None:  # no item has this range
            return partial(self._check_completion, "", 0, 0, None, None, is_cell=False)
        selected = (params.get("context") or {}).get("selectedCompletionInfo")
        if selected is not None:
            start, end = document.span(selected["range"], self.encoding)
            typed = readable(selected["text"])
        else:
            start = end = document.offset(params["position"], self.encoding)
            typed = None
        where = {"start": document.position(start, self.encoding), "end": document.position(end, self.encoding)}
        is_cell = document.notebook in self.workspace.notebooks
        return partial(self._check_completion, document.text, start, end, typed, where, is_cell=is_cell)

    def _check_completion(self, text, start, end, typed, where, result, *, is_cell):
        """Raises `AssertionError` if an item belongs to another request, or to another text."""
        for item in result["items"]:
            assert item["range"] == where, f"range {item['range']} instead of {where}"
            self._names = [*self._names[-5:], item["command"]["arguments"][0]]
            head, _, tail = item["insertText"].rpartition('{"text": ')
            assert head == typed if typed is not None else not head.strip(), f"it begins with {head!r}"
            seen = json.loads('{"text": ' + tail)
            text = text[:start] + head + text[end:]
            at = start + len(head)
            cursor = seen["offset"]
            if is_cell:  # between the texts of other cells
                seen["text"] = seen["text"][max(0, cursor - at) : cursor - at + len(text)]
                cursor = at
            near = seen["text"][max(0, cursor - NEAR) : cursor + NEAR]
            expected = text[max(0, at - NEAR) : at + NEAR]
            assert near == expected, f"text {near!r} instead of {expected!r}"
            self.figures.add("compared_cells" if is_cell else "compared")

    # messages from the server

    def receive(self, message):
        """Judges a message of the server."""
        if "method" not in message:
            self._receive_answer(message)
        elif "id" in message:
            if not self.is_silent:
                self.replies.extend(self._replies(message))
        elif message["method"] == "window/logMessage":
            line = message["params"]["message"]
            self.num_dropped -= _DROPPED.match(line) is not None
            if _FAILED.match(line) and not _FORESEEN.match(line):
                self.figures.add("unexpected", f"logged: {line}")

    def _receive_answer(self, message):
        msg_id = message["id"]
        code = message.get("error", {}).get("code")
        if msg_id is None:
            expected = self.nameless.popleft() if self.nameless else None
            if code != expected:
                self.figures.add("unexpected", f"an answer without id: {message}, expected {expected}")
            return
        expected = self.pending.pop(msg_id, None)
        if expected is None:
            self.figures.add("crossed", f"an answer that was not expected: {message}")
            return
        self.figures.add("answers")
        if code not in expected.codes:
            self.figures.add("unexpected", f"{expected.method}: {message}, expected {expected.codes}; {expected.body}")
        elif code is None:
            try:
                expected.check(message["result"])
            except (AssertionError, KeyError, ValueError) as error:
                self.figures.add("crossed", f"{expected.method}: {error!r}")

    def _replies(self, message):
        """What the client answers to a request of the server: mostly valid, sometimes damaged or twice."""
        rng = self.rng
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        results = {
            "workspace/configuration": [values.settings(rng)],
            "workspace/applyEdit": {"applied": rng.random() < 0.5},
            "window/workDoneProgress/create": None,
        }
        if message["method"] == "window/workDoneProgress/create":
            self._tokens = [*self._tokens[-5:], message["params"]["token"]]
        kind = rng.random()
        if kind < 0.7:
            return [{**reply, "result": results[message["method"]]}]
        if kind < 0.8:
            return [{**reply, "error": {"code": rng.choice((-32603, -32800, 0, 7)), "message": "no"}}]
        wrong = {**reply, rng.choice(("result", "error")): values.anything(rng)}
        return rng.choice(
            ([reply], [wrong], [wrong, wrong], [{**reply, "result": results[message["method"]], "error": None}])
        )

    def is_idle(self):
        """Every answer that does not wait for one of ours has arrived."""
        waits = self.is_silent or self.replies
        return not self.nameless and all(waits and call.method == COMMAND for call in self.pending.values())

    def finish(self):
        """Counts what never came; call it when the session has ended."""
        for msg_id, expected in self.pending.items():
            self.figures.add("lost", f"no answer to {expected.method} {msg_id!r}: {expected.body}")
        for code in self.nameless:
            self.figures.add("lost", f"no answer without id, with {code}")
        if self.num_dropped:
            self.figures.add("unexpected", f"{self.num_dropped} lines about dropped notifications are missing")
