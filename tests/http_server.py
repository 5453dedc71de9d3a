"""An HTTP server in a thread of this process, and a client that shows raw responses."""

import http.client
import json
import socket
import threading
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from gates import TIMEOUT, wait_until

from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.http.app import HttpServer
from dg_lsp.http.auth import AccessRules
from dg_lsp.settings import parse_settings

GAP = {"input_prefix": "a = ", "input_suffix": "\n"}
OPERATOR = AccessRules({"operator": "key-of-the-operator"})
UNHURRIED = {"completion": {"early_stop_ms": 0, "deadline_ms": 1e6 * TIMEOUT}}


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def tree(self):
        return json.loads(self.body)

    @property
    def error(self):
        assert list(self.tree) == ["error"]
        return self.tree["error"]

    @property
    def events(self):
        """Data of the server-sent events, `[DONE]` included."""
        assert self.headers["content-type"].startswith("text/event-stream")
        parts = self.body.decode().split("\n\n")
        assert parts.pop() == ""
        assert all(part.startswith("data: ") for part in parts)
        return [part.removeprefix("data: ") for part in parts]


class Client:
    def __init__(self, port, key=""):
        self.port = port
        self.key = key

    def send(self, method, path, body=None, headers=None):
        headers = {"X-Api-Key": self.key, **(headers or {})} if self.key else headers
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)) as connection:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())

    def get(self, path, **headers):
        return self.send("GET", path, headers=headers)

    def post(self, path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, data, {"Content-Type": "application/json", **headers})

    def wait_ready(self):
        wait_until(lambda: self.get("/health").status == 200)
        return self


def engine_of(denoiser, may_open=None):
    """Opens the model, after an event of the test if one is given."""

    def open_engine(settings):
        assert may_open is None or may_open.wait(TIMEOUT)
        return LocalEngine(denoiser, denoiser.tokenizer, settings.completion)

    return open_engine


class Starter:
    """`start(denoiser)` or `start(open_engine=...)` returns a client; all servers stop with the test.

    With the rules `OPERATOR` the client sends the operator's key.
    """

    def __init__(self):
        self.started = []
        self._threads = []

    def __call__(self, denoiser=None, *, open_engine=None, rules=None, is_waited=True, num_sent_bytes=None, **tree):
        """`num_sent_bytes` is the size of the buffer of sent bytes of each connection."""
        open_scheduler = partial(Scheduler, open_engine or engine_of(denoiser))
        settings = parse_settings(tree, parse_settings(UNHURRIED))
        server = HttpServer(("127.0.0.1", 0), open_scheduler, settings, (rules := rules or AccessRules()))
        if num_sent_bytes is not None:  # connections inherit it
            server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, num_sent_bytes)
        self.started.append(server)
        self._threads.append(threading.Thread(target=server.run))
        self._threads[-1].start()
        client = Client(server.port, rules.keys.get("operator", ""))
        return client.wait_ready() if is_waited else client

    def close(self):
        for server in self.started:
            server.should_exit = True
        for thread in self._threads:
            thread.join(TIMEOUT)


def metric(client, row):
    """The value of a row of `/metrics`; 0 if there is no such row."""
    lines = client.get("/metrics").body.decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{row} ")), 0.0)


def wait_for_active(client, number):
    wait_until(lambda: metric(client, "dg_lsp_active_requests") == number)


def packed(path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode("latin-1") + data


def connect(client, sent=b"", *, num_received_bytes=None, timeout=TIMEOUT):
    """A connection that the test keeps, with this size of the buffer of received bytes, after a client sent bytes."""
    connection = socket.socket()
    if num_received_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, num_received_bytes)
    connection.settimeout(timeout)
    connection.connect(("127.0.0.1", client.port))
    connection.sendall(sent)
    return connection


def mercury(path, region, above="", below=""):
    """The file and the region to edit, as Mercury's template shows them in a message."""
    file = f"current_file_path: {path}\n{above}<|code_to_edit|>\n{region}\n<|/code_to_edit|>\n{below}"
    return f"<|current_file_content|>\n{file}<|/current_file_content|>\n"


def trees(reply):
    """The parsed answer, or the events of a stream, which ends with `[DONE]`."""
    if reply.headers["content-type"] == "application/json":
        return [reply.tree]
    *events, done = reply.events
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def choices(reply):
    """The first choice of an answer, or of each event of a stream."""
    return [tree["choices"][0] for tree in trees(reply)]


def message(choice):
    """The message of a choice, or the part of it in an event."""
    return choice.get("message") or choice["delta"]
