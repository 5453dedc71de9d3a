"""An HTTP server in a thread of this process, asked over a real socket by a client that hides nothing."""

import http.client
import json
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial

from dg_lsp.engine.engine import Engine
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.http.gate import Rules
from dg_lsp.http.listening import Address, Listening
from dg_lsp.settings import parse_settings

TIMEOUT = 30
GAP = {"input_prefix": "a = ", "input_suffix": "\n"}
UNHURRIED = {"fill": {"early_stop_ms": 0, "deadline_ms": 1e6 * TIMEOUT}}


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
    def __init__(self, port):
        self.port = port

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)

    def send(self, method, path, body=None, headers=None):
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            named = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(reply.status, named, reply.read())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.send("GET", path, headers=headers)

    def post(self, path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, data, {"Content-Type": "application/json", **headers})

    def wait_ready(self):
        deadline = time.monotonic() + TIMEOUT
        while self.get("/health").status != 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self


def engine_of(denoiser):
    return lambda settings: Engine(denoiser, denoiser.tokenizer, settings.fill)


class Starter:
    """`start(denoiser)` or `start(open_engine=...)` -> Client; all servers end with the test."""

    def __init__(self):
        self.started = []

    def __call__(self, denoiser=None, *, open_engine=None, rules=None, is_waited=True, **tree):
        open_worker = partial(Scheduler.of, open_engine or engine_of(denoiser))
        listening = Listening(Address(port=0), open_worker, settings_of(tree), rules or Rules())
        thread = threading.Thread(target=listening.run)
        thread.start()
        self.started.append((listening, thread))
        client = Client(listening.port)
        return client.wait_ready() if is_waited else client

    def stop(self):
        for listening, thread in self.started:
            listening.stop()
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def settings_of(tree):
    return parse_settings(tree, parse_settings(UNHURRIED))


def wait_until(happened):
    deadline = time.monotonic() + TIMEOUT
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def metric(client, row):
    lines = client.get("/metrics").body.decode().splitlines()
    return next((line.rpartition(" ")[2] for line in lines if line.startswith(f"{row} ")), None)


def raw(client, body):
    """A request of bytes, whose connection the test keeps."""
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=TIMEOUT)
    head = b"POST /infill HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection.sendall(head + body)
    return connection
