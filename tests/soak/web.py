"""Hostile HTTP clients against `dg-lsp serve` with the bundled model, beside clients whose answers are compared.

Clients that are huge, broken or gone, and damaged bodies, run beside ordinary clients, whose texts must be those
of a fresh engine. `tests/http/test_schema.py` sends requests of the server's own OpenAPI document;
`tests/http/test_requests.py` has clients that are idle, trickle or do not read.
"""

import json
import random
import re
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse

import psutil
from e2e.conftest import Launcher
from gates import wait_until
from http_server import Client, connect, metric, packed, trees

from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest
from dg_lsp.http.app import BODY_SECONDS, MAX_BODY_BYTES, MAX_HEAD_BYTES
from dg_lsp.settings import parse_settings
from soak.values import damaged

SETTINGS = {
    "completion": {
        "deadline_ms": 600_000,
        "early_stop_ms": 0,
        "min_confidence": 0,
        "speculate": False,
        "decoder": "autoregressive",  # on a busy machine, auto takes now one and now another one
    },
    "model": {"threads": 1, "gpu_layers": 0},
    "context": {"enabled": "always"},
}
"""Answers must not depend on the load of the machine."""
LIMIT = BODY_SECONDS + 120
"""Seconds after which a connection counts as hanging."""
NUM_HOSTILE = 3
SHARES = {"ordinary": 0.6, "hostile": 0.4}  # of a number of requests
PAUSE = 0.2  # seconds between the requests of an ordinary client: the others get their share of the machine
HEAD = "Host: localhost\r\n"
BODY = b'{"input_prefix":"a = "}'
WORDS = ("owner", "items", "price", "colour", "width", "height", "radius", "angle", "number", "total", "weight")


class Server:
    """`dg-lsp serve` in a process of its own."""

    def __init__(self, folder):
        lines = (
            f"{group}.{key} = {json.dumps(value)}\n" for group, keys in SETTINGS.items() for key, value in keys.items()
        )
        (folder / "dg-lsp.toml").write_text("".join(lines))
        command = [sys.executable, "-P", "-m", "dg_lsp", "serve", "--port", "0"]
        self._launched = Launcher(folder).launch(command, DG_LSP_CONFIG_DIR=str(folder))
        self._launched.wait_until(lambda: "ready after" in self._launched.stderr)
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)\n", self._launched.stderr)[1])
        self.process = psutil.Process(self._launched.process.pid)
        self.num_files = self.process.num_fds()

    @property
    def has_ended(self):
        return self._launched.process.poll() is not None

    def close(self):
        """Returns the exit code."""
        self._launched.process.terminate()
        code = self._launched.wait_end()
        self._launched.kill()
        return code


# ordinary clients


@dataclass(frozen=True)
class Gap:
    """A gap that the bundled model fills with a text that no other gap gets."""

    prefix: str
    suffix: str
    text: str


def gaps(number=8):
    """Gaps with the texts of an engine that has done nothing else, and of one that has other prompts in its cache."""
    gaps = {}
    used = open_engine(parse_settings(SETTINGS))
    rng = random.Random(0)
    while len(gaps) < number:
        first, second = rng.sample(WORDS, 2)
        prefix = f"class Thing:\n    def __init__(self, {first}, {second}):\n        self.{first} = {first}\n"
        prefix += f"        self.{second} = "
        suffix = f"\n\n    def show(self):\n        print(self.{first}, self.{second})\n"
        request = FillRequest(Snapshot("file:///thing.py", prefix + suffix, "python"), len(prefix))
        with closing(open_engine(parse_settings(SETTINGS))) as engine:
            text = engine.fill(request).text
        if text and text not in gaps and text == used.fill(request).text:
            gaps[text] = Gap(prefix, suffix, text)
    used.close()
    return tuple(gaps.values())


def dialects(gap):
    """Path and body of a request in each dialect."""
    openai = {"prompt": gap.prefix, "suffix": gap.suffix, "language": "python"}
    segments = {"prefix": gap.prefix, "suffix": gap.suffix, "filepath": "thing.py"}
    return (
        ("/infill", {"input_prefix": gap.prefix, "input_suffix": gap.suffix, "language": "python"}),
        ("/v1/completions", openai),
        ("/v1/completions", {**openai, "stream": True}),
        ("/v1/fim/completions", openai),
        ("/v1/completions", {"segments": segments}),
    )


def text_of(reply):
    """The text in an answer of any of these dialects."""
    [first, *_] = answers = trees(reply)
    return first["content"] if "content" in first else "".join(tree["choices"][0]["text"] for tree in answers)


def be_ordinary(server, figures, known, rng):
    """Sends one request after another, and compares the texts."""
    client = Client(server.port)
    while not figures.has_ended("ordinary", SHARES["ordinary"]) and not server.has_ended:
        gap = rng.choice(known)
        path, body = rng.choice(dialects(gap))
        figures.add("ordinary")
        try:
            reply = client.post(path, body)
        except (OSError, HTTPException) as error:
            figures.add("lost", f"ordinary: {error!r}")
            continue
        text = text_of(reply) if reply.status == 200 else None
        if text is None:
            figures.add("lost", f"{path}: {reply.status} {reply.body[:200]}")
        elif text != gap.text:
            kind = "crossed" if any(text == known_gap.text for known_gap in known) else "unexpected"
            figures.add(kind, f"{path}: {text!r} for {gap.text!r}")
        time.sleep(PAUSE)


# hostile clients


def exchange(server, data, method="POST", *, is_cut=False):
    """Sends bytes; returns the status, headers and body of the answer, or nothing if there is none."""
    with connect(server, timeout=LIMIT) as connection:  # which the server may close before all is sent
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
            if is_cut:
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError, HTTPException):
            answer = HTTPResponse(connection, method=method)
            answer.begin()
            return [(answer.status, answer.headers, answer.read())]
    return []


def huge(server, rng):
    """A head, many fields, a body or a body in chunks that is longer than allowed."""
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    return exchange(server, rng.choice((
        head + b"X-Long: " + b"x" * rng.choice((MAX_HEAD_BYTES, 1 << 20)) + b"\r\n\r\n",
        head + b"X: 1\r\n" * rng.choice((5_000, 50_000)),
        packed("/infill", b" " * (MAX_BODY_BYTES + rng.choice((1, 1000, MAX_BODY_BYTES)))),
        CHUNKED + 10 * chunk + b"0\r\n\r\n",
    )))  # fmt: skip


FRAGMENTS = (
    "a = 1\n", " ", "\t", "(", "{", '"',
    "\u0301", "\u0000", "-----BEGIN PRIVATE KEY-----!\n", "eyJ-", "//", "~", "%25", "./",
    "<|fim_prefix|>", "<|cursor|>", "<|code_to_edit|>", "# language: ", "\r", "\n", "```\n", "x" * 5000 + "\n",
)  # fmt: skip
"""Texts that take long in a search or a parser that is not linear."""


def huge_text(server, rng):
    """A body that is almost as long as allowed, and right."""
    text = rng.choice(FRAGMENTS)
    text *= MAX_BODY_BYTES // len(json.dumps(text).encode())
    name = text[: rng.choice((300, 5000, None))]
    gap = {"input_prefix": "a = ", "n_predict": 0}
    messages = [{"role": "user", "content": text}]
    return exchange(server, packed(*rng.choice((
        ("/infill", {"input_prefix": text, "n_predict": 0, "language": "python"}),
        ("/infill", {"input_suffix": text, "n_predict": 0, "language": "python"}),
        ("/infill", {**gap, "input_extra": [{"text": text, "filename": "a.py"}]}),
        ("/infill", {**gap, "input_extra": [{"text": "x = 1", "filename": name}]}),
        ("/v1/completions", {"prompt": text, "suffix": "\n", "max_tokens": 8, "stop": ["a"]}),
        ("/v1/completions", {"segments": {"prefix": "a = ", "filepath": name}}),
        ("/v1/completions", {"segments": {"prefix": "a = ", "suffix": text, "filepath": "a.py"}, "user": name[:300]}),
        ("/v1/edit/completions", {"messages": messages}),
        ("/v1/chat/completions", {"messages": messages}),
    ))))  # fmt: skip


def damaged_body(server, rng):
    """A body of a dialect with a field that is missing, huge, of another type or too much, or no JSON object."""
    path, body = rng.choice(dialects(Gap("a = ", "\n", "")))
    message = {"role": "user", "content": rng.choice(FRAGMENTS)}
    fields = rng.choice(({}, {"n_predict": 4, "stop": ["a"]}, {"max_tokens": 4, "seed": 1}, {"messages": [message]}))
    damage = json.dumps(damaged({**body, **fields}, rng), default=str).encode()
    depth = rng.choice((500, 5_000, 200_000))
    odd = rng.choice((
        b'{"a":' * depth, b"[" * depth + b"]" * depth, b'{"input_prefix":"' + b"\\ud800" * depth + b'"}',
        b'{"seed":' + b"9" * depth + b"}", b'{"stop":[' + b'"a",' * depth + b'"b"]}', b"\xff" * depth,
        json.dumps({"input_prefix": "x" * depth, "input_suffix": "(" * depth, "language": "python"}).encode(),
        json.dumps({"input_extra": [{"text": "x", "filename": "../" * 99}] * 4096, "n_predict": 0}).encode(),
    ))  # fmt: skip
    return exchange(server, packed(path, rng.choice((damage, damage, damage, odd))))


CHUNKED = f"POST /infill HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
BROKEN = (
    *(CHUNKED + chunks for chunks in (
        b"zz\r\n", b"-1\r\n\r\n", b"ffffffffffffffffffff\r\n", b"5;" + b"x" * 200_000, b"3\r\n{}}garbage\r\n0\r\n\r\n",
        b"0\r\nX: y\r\n" * 3, b"0\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
    )),
    *(f"POST /infill HTTP/1.1\r\n{HEAD}Content-Length: {length}\r\n\r\n".encode() + BODY for length in (
        "-1", "+23", "0x17", "23, 24", "9" * 5000, "", "٣", "23\r\nContent-Length: 24", "0", "22",
        "5\r\nTransfer-Encoding: chunked",
    )),
    *(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n" for line in (
        b"Host: evil", b"X: a\r\n b", b"Upgrade: websocket\r\nConnection: Upgrade", b"X : a", b"X: \xff\xfe",
        b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings", b"Expect: nonsense\r\nContent-Length: 2",
        b"Transfer-Encoding: gzip, chunked",
    )),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n\r\n\r\n\r\n",
    b"G" * 70_000 + b" / HTTP/1.1\r\n\r\n", b"CONNECT localhost:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\xef\xbb\xbfGET / HTTP/1.1\r\n\r\n", "GET /é HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
)  # fmt: skip
"""Chunks, lengths and heads that are broken, or less than was promised and nothing more."""


def broken(server, rng):
    """Bytes that are not HTTP, a part of a request, or a method that no endpoint supports."""
    path = rng.choice(("/infill", "/health", "/v1/completions", "/metrics", "/openapi.json", "/nothing"))
    method = rng.choice(("OPTIONS", "TRACE", "PATCH", "PUT", "DELETE", "HEAD", "get", "X" * 100))
    odd = f"{method} {path} HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n".encode()
    part = packed("/infill", BODY)[: rng.choice((10, 60, None))]
    data = rng.choice((rng.choice(BROKEN), rng.choice(BROKEN), rng.randbytes(rng.randrange(1, 5000)), part, odd))
    is_cut = data is part or rng.random() < 0.2
    return exchange(server, data, method=method if data is odd else "POST", is_cut=is_cut)


def aborted(server, rng):
    """A client that is gone before its request is whole, or while its answer is sent."""
    stream = {"prompt": "def f(a, b):\n    ", "suffix": "\n", "stream": True, "diffusing": True, "max_tokens": 64}
    body = packed("/infill", b" " * 100_000)
    sent = rng.choice((packed("/v1/completions", stream), body[: rng.randrange(len(body))]))
    connection = connect(server, sent, timeout=LIMIT)
    if rng.random() < 0.4:
        connection.settimeout(1)
        with suppress(OSError):
            connection.recv(rng.choice((1, 100, 4000)))
    # with RST: what is on its way is thrown away
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    return ()


HOSTILE = {huge: 12, huge_text: 8, damaged_body: 80, aborted: 50, broken: 60}
"""Clients and how often each comes."""
ALLOWED = {200, 400, 401, 403, 404, 405, 408, 413, 429, 499, 501, 503, 504}  # of docs/http.md, without failures


def check_answer(figures, what, status, headers, body):
    """The status is documented, and an error is a JSON object of the documented form."""
    if status not in ALLOWED:
        figures.add("unexpected", f"{what}: {status} {body[:200]}")
    elif status >= 400 and body not in (b"", b"Invalid HTTP request received."):
        try:
            assert headers["content-type"] == "application/json", headers["content-type"]
            fields = json.loads(body)["error"]
            assert (fields["code"], type(fields["message"]), type(fields["type"])) == (status, str, str)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            figures.add("unexpected", f"{what}: {status} {error} {body[:200]}")


def be_hostile(server, figures, rng, clients):
    """One broken client after another: first each of `clients`."""
    while clients or not figures.has_ended("hostile", SHARES["hostile"]):
        client = clients.pop(0) if clients else rng.choices(list(HOSTILE), list(HOSTILE.values()))[0]
        figures.add("hostile")
        try:
            for answer in client(server, rng):
                check_answer(figures, client.__name__, *answer)
        except TimeoutError:
            figures.add("unexpected", f"{client.__name__} hangs")
        except OSError:
            figures.add("resets")
        if server.has_ended:
            return


# the campaign


def campaign(figures, folder, seed):
    """Sends requests of all clients at a time."""
    known = gaps()
    server = Server(folder)
    clients = [partial(be_ordinary, server, figures, known)] * 2
    clients += [
        partial(be_hostile, server, figures, clients=list(HOSTILE)[number::NUM_HOSTILE])
        for number in range(NUM_HOSTILE)
    ]
    threads = [
        threading.Thread(target=client, kwargs={"rng": random.Random(f"{seed} {number}")}, daemon=True)
        for number, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not server.has_ended:
        figures.sample(server.process.memory_info().rss, "server")
        time.sleep(0.25)
    if not server.has_ended:
        _check_remains(server, figures)
    if (code := server.close()) != -signal.SIGTERM:
        figures.add("crashes", f"the server ended with {code}")
    figures.counts["messages"] = figures.counts["ordinary"] + figures.counts["hostile"]


def _check_remains(server, figures):
    """Once connections and requests had time to end, none of them is left."""
    client = Client(server.port)

    def remains():
        return server.process.num_fds() - server.num_files, metric(client, "dg_lsp_active_requests")

    try:
        wait_until(lambda: max(remains()) <= 0, seconds=LIMIT, pause=0.2)
    except AssertionError:
        num_files, num_active = remains()
        figures.add("unexpected", f"{num_files} files are left open, {num_active} requests active")
