"""Hostile HTTP clients against `dg-lsp serve` with the bundled model, beside clients whose answers are compared.

Clients that are slow, huge, broken or gone, and damaged bodies, run beside ordinary clients, whose texts must be those
of a fresh engine. `tests/http/test_schema.py` sends requests of the server's own OpenAPI document;
`tests/http/test_requests.py` has clients that are idle or do not read.
"""

import io
import json
import os
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
from pathlib import Path

import psutil
from gates import wait_until
from http_server import Client, metric

from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest
from dg_lsp.http.app import BODY_SECONDS, MAX_BODY_BYTES, MAX_HEAD_BYTES
from dg_lsp.settings import parse_settings
from soak.values import damaged

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "completion": {"deadline_ms": 600_000, "early_stop_ms": 0, "min_confidence": 0, "speculate": False},
    "model": {"threads": 1, "gpu_layers": 0},
    "context": {"enabled": "always"},
}
"""Answers must not depend on the load of the machine."""
LIMIT = BODY_SECONDS + 120
"""Seconds after which a connection counts as hanging."""
NUM_HOSTILE = 3
SHARES = {"ordinary": 0.6, "hostile": 0.4}
"""Of a number of requests."""
PAUSE = 0.2
"""Seconds between the requests of an ordinary client: the others get their share of the machine."""
HEAD = "Host: localhost\r\n"
CLOSE = "Connection: close\r\n"
BODY = b'{"input_prefix":"a = "}'
WORDS = ("owner", "items", "price", "colour", "width", "height", "radius", "angle", "number", "total", "weight")


class Server:
    """`dg-lsp serve` in a process of its own."""

    def __init__(self, folder):
        lines = (
            f"{group}.{key} = {json.dumps(value)}\n" for group, keys in SETTINGS.items() for key, value in keys.items()
        )
        (folder / "dg-lsp.toml").write_text("".join(lines))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "DG_LSP_CONFIG_DIR": str(folder)}
        self._errors = folder / "stderr"
        with self._errors.open("w") as errors:
            self.process = psutil.Popen(
                [sys.executable, "-P", "-m", "dg_lsp", "serve", "--port", "0"],
                cwd=folder,
                env={**environment, "OMP_WAIT_POLICY": "passive"},
                stderr=errors,
            )
        wait_until(lambda: self.has_ended or "ready after" in self._errors.read_text(), self._errors.read_text)
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)\n", self._errors.read_text())[1])
        self.num_files = self.process.num_fds()

    @property
    def has_ended(self):
        return self.process.poll() is not None

    def close(self):
        """Returns the exit code."""
        self.process.terminate()
        return self.process.wait()


# ordinary clients


@dataclass(frozen=True)
class Gap:
    """A gap that the bundled model fills with a text that no other gap gets."""

    prefix: str
    suffix: str
    text: str


def gaps(number=8):
    """Gaps with the texts of an engine that has done nothing else."""
    gaps = {}
    rng = random.Random(0)
    while len(gaps) < number:
        first, second = rng.sample(WORDS, 2)
        prefix = f"class Thing:\n    def __init__(self, {first}, {second}):\n        self.{first} = {first}\n"
        prefix += f"        self.{second} = "
        suffix = f"\n\n    def show(self):\n        print(self.{first}, self.{second})\n"
        request = FillRequest(Snapshot("file:///thing.py", 0, prefix + suffix, "python"), len(prefix))
        with closing(open_engine(parse_settings(SETTINGS))) as engine:
            text = engine.fill(request).text
        if text and text not in gaps:
            gaps[text] = Gap(prefix, suffix, text)
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


def text_of(body):
    """The text in an answer of any of these dialects."""
    if body.startswith(b"data: "):
        events = [json.loads(event[6:]) for event in body.decode().split("\n\n") if event not in ("", "data: [DONE]")]
        return "".join(choice["text"] for event in events for choice in event["choices"])
    tree = json.loads(body)
    return tree["content"] if "content" in tree else tree["choices"][0]["text"]


def packed(path, body, *headers):
    """A request as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\n{HEAD}Content-Length: {len(data)}\r\n{''.join(headers)}\r\n"
    return head.encode("latin-1") + data


def be_ordinary(server, figures, known, rng, *, most):
    """Sends up to `most` requests at once on each connection: their answers come in order."""
    while not figures.has_ended("ordinary", SHARES["ordinary"]) and not server.has_ended:
        chosen = [(gap, *rng.choice(dialects(gap))) for gap in rng.choices(known, k=rng.randint(1, most))]
        figures.add("ordinary", number=len(chosen))
        received = []
        try:
            with connect(server) as connection:
                connection.sendall(b"".join(packed(path, body) for _, path, body in chosen))
                received = answers(connection, len(chosen))
        except OSError as error:
            figures.add("lost", f"ordinary: {error!r}")
        if len(received) < len(chosen):
            figures.add("lost", f"{len(received)} answers to {len(chosen)} requests")
        for (gap, path, _), (status, _, body) in zip(chosen, received, strict=False):
            figures.add("compared")
            text = text_of(body) if status == 200 else None
            if text is None:
                figures.add("lost", f"{path}: {status} {body[:200]}")
            elif text != gap.text:
                kind = "crossed" if any(text == known_gap.text for known_gap in known) else "unexpected"
                figures.add(kind, f"{path}: {text!r} for {gap.text!r}")
        time.sleep(len(chosen) * PAUSE)


# hostile clients


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)


class Incoming(io.BufferedReader):
    """What a connection receives, for one `HTTPResponse` after another: each would keep bytes of the next one."""

    def makefile(self, _mode):
        return self

    def close(self):
        pass


def answers(connection, number, method="POST"):
    """At most so many answers: status, headers and body; fewer if the server closes."""
    incoming = Incoming(connection.makefile("rb", buffering=0))
    received = []
    with suppress(ConnectionError, HTTPException):
        for _ in range(number):
            answer = HTTPResponse(incoming, method=method)
            answer.begin()
            received.append((answer.status, answer.headers, answer.read()))
    return received


def exchange(server, *pieces, number=1, pause=0.0, method="POST"):
    """Sends pieces with pauses between them and reads answers; a server may answer and close before all is sent."""
    with connect(server) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
        return answers(connection, number, method)


def slow(server, rng):
    """A head or a body that arrives byte by byte and never to its end."""
    data = packed("/infill", BODY + b" " * 100)
    start = rng.choice((0, data.index(b"{")))
    return exchange(server, data[:start], *(data[at : at + 1] for at in range(start, start + 35)), pause=1.0)


def huge_head(server, rng):
    line = f"X-Long: {'x' * rng.choice((MAX_HEAD_BYTES, 2 * MAX_HEAD_BYTES, 1 << 20))}\r\n".encode()
    if rng.random() < 0.5:
        line = b"".join(b"X-%d: 1\r\n" % number for number in range(rng.choice((5_000, 50_000))))
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    return exchange(server, *rng.choice(((line,), (head + line + b"\r\n",))), method="GET")


def huge_body(server, rng):
    data = b" " * (MAX_BODY_BYTES + rng.choice((1, 1000, MAX_BODY_BYTES)))
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    pieces = rng.choice(([packed("/infill", data)], [CHUNKED, *[chunk] * 10, b"0\r\n\r\n"]))
    return exchange(server, *pieces)


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
    """A body of a dialect with a field that is missing, huge, of another type or too much."""
    path, body = rng.choice(dialects(Gap("a = ", "\n", "")))
    message = {"role": "user", "content": rng.choice(FRAGMENTS)}
    fields = rng.choice(({}, {"n_predict": 4, "stop": ["a"]}, {"max_tokens": 4, "seed": 1}, {"messages": [message]}))
    return exchange(server, packed(path, json.dumps(damaged({**body, **fields}, rng), default=str).encode()))


CHUNKED = f"POST /infill HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
CHUNKS = (
    b"zz\r\n", b"-1\r\n\r\n", b"ffffffffffffffffffff\r\n", b"5;" + b"x" * 200_000, b"3\r\n{}}garbage\r\n0\r\n\r\n",
    b"1\n{\n0\n\n",
    b"0\r\nX: y\r\n" * 3, b"0\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", b"\r\n\r\n", b"0x1\r\n{\r\n0\r\n\r\n",
    b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b" 1\r\n{\r\n",
)  # fmt: skip
LENGTHS = (
    "-1", "+23", "0x17", "23, 23", "23, 24", "1e3", "9" * 30, "9" * 5000, "", " ", "٣",
    "23\r\nContent-Length: 24",
    "5\r\nTransfer-Encoding: chunked", "23 ", "0", "22", "2",
)  # fmt: skip


def lying_length(server, rng):
    """A length that is wrong, chunks that are broken, or less than was promised and nothing more."""
    head = f"POST /infill HTTP/1.1\r\n{HEAD}Content-Length: {rng.choice(LENGTHS)}\r\n\r\n"
    wrong = head.encode("utf-8") + BODY
    broken = CHUNKED + rng.choice(CHUNKS)
    return exchange(server, *rng.choice(((wrong, b"\r\n\r\n"), (broken, b"\r\nGET / HTTP/1.1\r\n\r\n"))), number=2)


def half_closed(server, rng):
    """Counts as gone: the server cannot know the difference to a client that has closed."""
    with connect(server) as connection:
        connection.sendall(packed("/infill", BODY)[: rng.choice((10, 60, None))])
        connection.shutdown(socket.SHUT_WR)
        return answers(connection, 1)


def aborted(server, rng):
    """A client that is gone before its request is whole, or while its answer is sent."""
    stream = {"prompt": "def f(a, b):\n    ", "suffix": "\n", "stream": True, "diffusing": True, "max_tokens": 64}
    body = packed("/infill", b" " * 100_000)
    connection = connect(server)
    connection.sendall(rng.choice((packed("/v1/completions", stream), body[: rng.randrange(len(body))])))
    if rng.random() < 0.4:
        connection.settimeout(1)
        with suppress(OSError):
            connection.recv(rng.choice((1, 100, 4000)))
    # with RST: what is on its way is thrown away
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    return ()


GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /\r\n\r\n",
    b"\r\n\r\n\r\n\r\n", b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"G" * 70_000 + b" / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", b"GET /health HTTP/1.0\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT localhost:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /%ff%00%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n", b"GET /health HTTP/1.1\r\nHost:\r\n\r\n",
    b"POST /infill HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /infill HTTP/1.1\r\nHost: localhost\r\nExpect: nonsense\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /infill HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST /infill HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: identity\r\n\r\n",
    b"\xef\xbb\xbfGET / HTTP/1.1\r\n\r\n", "GET /é HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
)  # fmt: skip


def garbage(server, rng):
    """Bytes that are not an HTTP request, or a method that no endpoint supports."""
    path = rng.choice(("/infill", "/health", "/v1/completions", "/metrics", "/openapi.json", "/nothing"))
    method = rng.choice(("OPTIONS", "TRACE", "PATCH", "PUT", "DELETE", "HEAD", "get", "X" * 100))
    odd = f"{method} {path} HTTP/1.1\r\n{HEAD}{CLOSE}\r\n".encode()
    data, method = rng.choice(((rng.choice((*GARBAGE, rng.randbytes(rng.randrange(1, 5000)))), "GET"), (odd, method)))
    with connect(server) as connection:
        connection.sendall(data)
        if rng.random() < 0.2:
            connection.shutdown(socket.SHUT_WR)
        return answers(connection, 1, method)


def odd_body(server, rng):
    depth = rng.choice((500, 5_000, 200_000))
    path = rng.choice(("/infill", "/v1/completions", "/v1/chat/completions"))
    bodies = (
        b'{"a":' * depth, b"[" * depth + b"]" * depth, b'{"input_prefix":"' + b"\\ud800" * depth + b'"}',
        b'{"seed":' + b"9" * depth + b"}", b'{"stop":[' + b'"a",' * depth + b'"b"]}', b"\x00" * depth,
        b'{"input_prefix":"' + b"\\u0000" * 1000 + b'"}', b'{"prompt":"a","prompt":"b"}', b"\xff" * depth,
        json.dumps({"input_prefix": "x" * depth, "input_suffix": "(" * depth, "language": "python"}).encode(),
        json.dumps({"input_extra": [{"text": "x", "filename": "../" * 99}] * 4096, "n_predict": 0}).encode(),
    )  # fmt: skip
    return exchange(server, packed(path, rng.choice(bodies)))


HOSTILE = {
    slow: 2, huge_head: 6, huge_body: 6, huge_text: 8, damaged_body: 60, lying_length: 40, half_closed: 20,
    aborted: 50, garbage: 60, odd_body: 20,
}  # fmt: skip
"""Clients and how often each comes."""
ALLOWED = {200, 400, 401, 403, 404, 405, 408, 413, 429, 431, 499, 501, 503, 504}  # of docs/http.md, without failures


def check_answer(figures, what, status, headers, body):
    """The status is documented, and an error is a JSON object of the documented form."""
    statuses = figures.facts["statuses"]
    statuses[status] = statuses.get(status, 0) + 1
    if status not in ALLOWED:
        figures.add("unexpected", f"{what}: {status} {body[:200]}")
    elif status >= 400 and body:
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
    figures.facts["statuses"] = {}
    clients = [partial(be_ordinary, server, figures, known, most=most) for most in (1, 8)]
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
