"""Language clients that exchange bytes with a server, in a process or in a thread, and keep every message."""

import asyncio
import json
import os
import socket
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial

from gates import TIMEOUT, wait_until

from dg_lsp.engine.scheduler import Scheduler, SharedDevice
from dg_lsp.server.app import create_server
from dg_lsp.server.pipe import END_OF_SESSION
from dg_lsp.server.transport import socket_streams

PATIENT = {"completion": {"deadline_ms": 60_000, "early_stop_ms": 0}}
"""A busy machine must not turn an answer into a deadline."""


def span(line, start, end, last_line=None):
    last = {"line": line if last_line is None else last_line, "character": end}
    return {"start": {"line": line, "character": start}, "end": last}


class Client:
    """A client of a server process."""

    URI = "file:///project/main.py"
    AUTOMATIC, INVOKED = 2, 1
    CANCELLED = -32800
    """By the client, and by the server."""

    def __init__(self, argv, env, directory, *, deaf=False):
        self.stderr_path = directory / f"stderr-{time.monotonic_ns()}.txt"
        with self.stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, cwd=directory
            )
        self.connect(self.process.stdin, self.process.stdout, deaf=deaf)

    def connect(self, out, source, *, deaf=False):
        self.out = out
        self.messages = []
        self.requested = []
        self.has_ended = False
        self.reader = threading.Thread(target=self._read, args=(source,), daemon=True)
        if not deaf:
            self.reader.start()

    def _read(self, source):
        with suppress(ConnectionError):  # a server that closes does not read what is on its way
            while header := source.readline().strip(END_OF_SESSION):
                length = int(header.split(b":")[1])
                while source.readline().strip():
                    pass
                self.messages.append(json.loads(source.read(length)))
        self.has_ended = True

    # sending

    def send_bytes(self, data):
        self.out.write(data)
        self.out.flush()

    @staticmethod
    def encode(**message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        return b"Content-Length: %d\r\n\r\n" % len(body) + body

    def notify(self, method, params):
        self.send_bytes(self.encode(method=method, params=params))

    def request(self, method, params=None, msg_id=None):
        msg_id = f"r{len(self.requested)}" if msg_id is None else msg_id
        self.requested.append(msg_id)
        self.send_bytes(self.encode(id=msg_id, method=method, params=params))
        return msg_id

    def cancel(self, msg_id):
        self.notify("$/cancelRequest", {"id": msg_id})

    # receiving

    def wait_until(self, happened):
        """The first true value of `happened()`."""

        def checked():
            has_ended, value = self.has_ended, happened()
            assert value or not has_ended, f"the server ended: {self.stderr}"
            return value

        return wait_until(checked, lambda: f"timeout; last messages: {self.messages[-5:]}")

    def answers(self, msg_id):
        return [message for message in self.messages if "method" not in message and message.get("id") == msg_id]

    def answer(self, msg_id):
        return self.wait_until(lambda: self.answers(msg_id))[0]

    def result(self, msg_id):
        answer = self.answer(msg_id)
        assert "result" in answer, answer
        return answer["result"]

    def items(self, msg_id):
        return self.result(msg_id)["items"]

    def is_cancelled(self, msg_id):
        return self.answer(msg_id).get("error", {}).get("code") == self.CANCELLED

    def received(self, method):
        """Parameters of all notifications and requests of a method so far."""
        return [message["params"] for message in self.messages if message.get("method") == method]

    def logged(self, part=""):
        """Messages in the log with this part."""
        return [params["message"] for params in self.received("window/logMessage") if part in params["message"]]

    def shown(self):
        """Messages that the user sees."""
        return [params["message"] for params in self.received("window/showMessage")]

    def wait_request(self, method):
        """The first request of a method from the server."""
        return self.wait_until(lambda: [message for message in self.messages if message.get("method") == method])[0]

    def reply(self, method, result):
        """Answers the first request of a method from the server; returns its parameters."""
        request = self.wait_request(method)
        self.send_bytes(self.encode(id=request["id"], result=result))
        return request["params"]

    def wait_log(self, part):
        return self.wait_until(
            lambda: [params for params in self.received("window/logMessage") if part in params["message"]]
        )[0]

    def wait_status(self, holds):
        """The newest status, once it holds."""
        self.wait_until(lambda: self.received("didChangeStatus") and holds(self.received("didChangeStatus")[-1]))
        return self.received("didChangeStatus")[-1]

    @property
    def stderr(self):
        return self.stderr_path.read_text(errors="replace")

    # the session

    def focus(self, uri):
        self.notify("textDocument/didFocus", {"textDocument": {"uri": uri}})

    def handshake(self, capabilities=None, options=None, folder=None):
        params = {"processId": os.getpid(), "rootUri": None, "capabilities": capabilities or {}}
        if folder is not None:
            params["workspaceFolders"] = [{"uri": folder, "name": "project"}]
        if options is not None:
            params["initializationOptions"] = options
        result = self.result(self.request("initialize", params))
        self.notify("initialized", {})
        return result

    def open(self, text, uri=URI, language="python", version=1):
        item = {"uri": uri, "languageId": language, "version": version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})

    def change(self, version, *changes, uri=URI):
        self.notify(
            "textDocument/didChange", {"textDocument": {"uri": uri, "version": version}, "contentChanges": [*changes]}
        )

    def begin(self, text="\n", capabilities=None, folder=None, **options):
        self.handshake(capabilities, {**PATIENT, **options}, folder)
        self.open(text)
        return self

    def type(self, version, line, character, text, uri=URI):
        at = {"line": line, "character": character}
        self.change(version, {"range": {"start": at, "end": at}, "text": text}, uri=uri)

    def completion(self, line, character, *, uri=URI, kind=AUTOMATIC, **context):
        position = {"line": line, "character": character}
        return {"textDocument": {"uri": uri}, "position": position, "context": {"triggerKind": kind, **context}}

    def complete(self, line, character, **options):
        """Requests an inline completion; returns the id of the request."""
        return self.request("textDocument/inlineCompletion", self.completion(line, character, **options))

    def texts(self, line, character, **options):
        return [item["insertText"] for item in self.items(self.complete(line, character, **options))]

    def close_document(self, uri=URI):
        self.notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    def configure(self, **settings):
        self.notify("workspace/didChangeConfiguration", {"settings": settings})

    def command(self, name, uri=URI, **argument):
        """Runs a command of the server; returns the id of the request."""
        return self.request("workspace/executeCommand", {"command": name, "arguments": [{"uri": uri, **argument}]})

    def actions(self, where, *diagnostics, uri=URI, **context):
        params = {"textDocument": {"uri": uri}, "range": where, "context": {"diagnostics": diagnostics, **context}}
        return self.result(self.request("textDocument/codeAction", params))

    def stats(self):
        return self.result(self.request("dg-lsp/stats", {}))

    def leave(self):
        """Sends `shutdown` and `exit`; returns the exit code."""
        self.result(self.request("shutdown"))
        self.notify("exit", None)
        return self.wait_end()

    def wait_end(self):
        code = self.process.wait(TIMEOUT)
        self.reader.join(TIMEOUT)
        return code

    def check(self):
        """Ends a session that still runs. Every request has one answer, and standard error is empty."""
        if not self.has_ended:
            assert self.leave() == 0
        self.wait_end()
        answered = [message.get("id") for message in self.messages if "method" not in message]
        assert sorted(answered, key=str) == sorted(self.requested, key=str)
        assert self.stderr == ""

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        with suppress(BrokenPipeError):  # what was written last is still in the buffer
            self.process.stdin.close()
        if self.reader.ident:
            self.reader.join(TIMEOUT)
        self.process.stdout.close()


class SocketClient(Client):
    """A client over a socket."""

    stderr = ""

    def __init__(self, connection):
        self.connection = connection
        stream = connection.makefile("rwb")
        self.connect(stream, stream)

    def wait_end(self):
        self.reader.join(TIMEOUT)
        return 0

    def kill(self):
        with suppress(OSError):  # the server has closed it
            self.connection.shutdown(socket.SHUT_RDWR)
        self.wait_end()
        self.out.close()
        self.connection.close()


class ThreadClient(SocketClient):
    """A client of a server in a thread of this process."""

    def __init__(self, open_engine, settings):
        ours, theirs = socket.socketpair()
        self.errors = []
        self.code = None
        self._server = create_server(partial(Scheduler, open_engine, device=SharedDevice()), settings)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(theirs)))
        self._thread.start()
        super().__init__(ours)

    async def _serve(self, connection):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.errors.append(context))
        self.code = await self._server.serve(socket_streams(connection))

    def wait_end(self):
        super().wait_end()
        self._thread.join(TIMEOUT)
        assert self.errors == []
        return self.code
