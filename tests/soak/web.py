"""Hostile HTTP clients against `dg-lsp serve` with the bundled model, beside clients whose answers are compared.

Three kinds of clients run at a time: schemathesis, which sends valid and invalid requests of the server's own OpenAPI
document; clients that are slow, huge, broken or gone; and ordinary ones, whose texts must be those of a fresh engine.
"""

import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path

import hypothesis
import psutil
import requests
import schemathesis
from http_server import Client, check_errors, check_events, metric
from hypothesis import HealthCheck, Phase
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from dg_lsp.cli.loading import open_engine
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest
from dg_lsp.http.app import BODY_SECONDS, MAX_BODY_BYTES, MAX_HEAD_BYTES
from dg_lsp.http.errors import STATUSES
from dg_lsp.http.request_schemas import SamplerBody
from dg_lsp.http.response_schemas import ErrorResponse
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings
from soak.figures import NUM_EXAMPLES, figures_of, growth

ROOT = Path(__file__).parents[2]
SETTINGS = Settings(
    completion=CompletionSettings(deadline_ms=600_000, early_stop_ms=0, min_confidence=0, speculate=False),
    model=ModelSettings(threads=1, gpu_layers=0),
)
"""Answers must not depend on the load of the machine."""
SETTINGS_FILE = """[completion]
deadline_ms = 600000
early_stop_ms = 0
min_confidence = 0
[model]
threads = 1
gpu_layers = 0
[context]
enabled = "always"
"""
LIMIT = BODY_SECONDS + 120
"""Seconds after which a connection counts as hanging."""
NUM_ORDINARY, NUM_HOSTILE = 2, 3
SHARES = {"ordinary": 0.4, "hostile": 0.2, "generated": 0.4}
"""Of a number of requests."""
PAUSE = 0.2
"""Seconds between the requests of an ordinary client: the others get their share of the machine."""
NUM_IDLE = 200
IDLE_SECONDS = 5.0
NUM_GENERATED = 10
"""Requests that schemathesis makes for an operation before it turns to the next one."""
HEAD = "Host: localhost\r\n"
CLOSE = "Connection: close\r\n"
BODY = b'{"input_prefix":"a = "}'
WORDS = (
    "owner",
    "items",
    "price",
    "colour",
    "width",
    "height",
    "radius",
    "angle",
    "number",
    "total",
    "weight",
    "length",
)
NOT_FOR_EVERY_BODY = {"/infill", "/v1/fim/completions"}
"""The other paths may refuse a valid body: it lacks what a template or this model needs."""


# the server


class Server:
    """`dg-lsp serve` in a process of its own."""

    def __init__(self, folder):
        (folder / "dg-lsp.toml").write_text(SETTINGS_FILE)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "DG_LSP_CONFIG_DIR": str(folder)}
        self.errors = (folder / "stderr").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dg_lsp", "serve", "--port", "0"],
            cwd=folder,
            env={**environment, "OMP_WAIT_POLICY": "passive"},
            stderr=self.errors,
        )
        self.memory = psutil.Process(self.process.pid)
        while "ready after" not in self.messages():
            if self.process.poll() is not None:
                raise RuntimeError(self.messages())
            time.sleep(0.05)
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)\n", self.messages())[1])

    def messages(self):
        """What it has written on standard error."""
        return Path(self.errors.name).read_text()

    @property
    def has_ended(self):
        return self.process.poll() is not None

    def close(self):
        """Returns the exit code."""
        self.process.terminate()
        code = self.process.wait()
        self.errors.close()
        return code


# figures


@dataclass
class Figures:
    """Counted by all threads."""

    most: float
    end: float
    counts: Counter = field(default_factory=Counter)
    statuses: Counter = field(default_factory=Counter)
    examples: list = field(default_factory=list)
    resident: list = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has_ended(self, kind):
        """Whether there are enough requests of a kind."""
        return self.counts[kind] >= SHARES[kind] * self.most or time.monotonic() > self.end

    def next(self, kind, number=1, *, is_required=False):
        """Counts requests that are about to be sent; False if there are enough and these are not required."""
        with self.lock:
            if self.has_ended(kind) and not is_required:
                return False
            self.counts[kind] += number
            return True

    def add(self, kind, example=""):
        with self.lock:
            self.counts[kind] += 1
            if example and len(self.examples) < NUM_EXAMPLES:
                self.examples.append(f"{kind}: {example}")


# ordinary clients


@dataclass(frozen=True)
class Gap:
    """A gap that the bundled model fills with a text that no other gap gets."""

    prefix: str
    suffix: str
    text: str


def gaps(number=8):
    """Gaps with the texts of an engine that has done nothing else."""
    found, rng = {}, random.Random(0)
    while len(found) < number:
        one, two = rng.sample(WORDS, 2)
        prefix = (
            f"class Thing:\n    def __init__(self, {one}, {two}):\n        self.{one} = {one}\n        self.{two} = "
        )
        suffix = f"\n\n    def show(self):\n        print(self.{one}, self.{two})\n"
        request = FillRequest(Snapshot("file:///thing.py", 0, prefix + suffix, "python"), len(prefix))
        with closing(open_engine(SETTINGS)) as engine:
            text = engine.fill(request).text
        if text and text not in found:
            found[text] = Gap(prefix, suffix, text)
    return tuple(found.values())


def in_infill(gap):
    return "/infill", {"input_prefix": gap.prefix, "input_suffix": gap.suffix, "language": "python"}


def in_completions(gap):
    return "/v1/completions", {"prompt": gap.prefix, "suffix": gap.suffix, "language": "python"}


def in_stream(gap):
    path, body = in_completions(gap)
    return path, {**body, "stream": True}


def in_fim(gap):
    return "/v1/fim/completions", in_completions(gap)[1]


def in_tabby(gap):
    return "/v1/completions", {"segments": {"prefix": gap.prefix, "suffix": gap.suffix, "filepath": "thing.py"}}


DIALECTS = (in_infill, in_completions, in_stream, in_fim, in_tabby)


def text_of(body):
    """The text in an answer of any of these dialects."""
    if body.startswith(b"data: "):
        events = [json.loads(event[6:]) for event in body.decode().split("\n\n") if event not in ("", "data: [DONE]")]
        return "".join(choice["text"] for event in events for choice in event["choices"])
    tree = json.loads(body)
    return tree["content"] if "content" in tree else tree["choices"][0]["text"]


def packed(path, body, *more):
    """A request as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\n{HEAD}Content-Length: {len(data)}\r\n{''.join(more)}\r\n"
    return head.encode("latin-1") + data


def judge(figures, known, gap, status, body, what):
    """Compares one answer with the text of its gap, and another one with those of all gaps."""
    figures.statuses[status] += 1
    if status != 200:
        figures.add("lost", f"{what}: {status} {body[:200]}")
        return
    text = text_of(body)
    if text != gap.text:
        kind = "crossed" if any(text == one.text for one in known) else "unexpected"
        figures.add(kind, f"{what}: {text!r} for {gap.text!r}")


def be_ordinary(server, figures, known, rng):
    """Sends requests one after another, a few on each connection."""
    while not figures.has_ended("ordinary"):
        try:
            with connect(server) as connection:
                while figures.next("ordinary"):
                    gap, dialect = rng.choice(known), rng.choice(DIALECTS)
                    connection.sendall(packed(*dialect(gap)))
                    [(status, _, body)] = answers(connection, 1)
                    figures.add("compared")
                    judge(figures, known, gap, status, body, dialect.__name__)
                    time.sleep(PAUSE)
                    if rng.random() < 0.3:
                        break
        except (OSError, ValueError) as error:
            figures.add("lost", f"ordinary: {error!r}")


# hostile clients


def connect(server, limit=LIMIT):
    return socket.create_connection(("127.0.0.1", server.port), timeout=limit)


class Incoming:
    """What a connection receives, for one `HTTPResponse` after another: each would keep bytes of the next one."""

    def __init__(self, connection):
        self._file = connection.makefile("rb")

    def makefile(self, _mode):
        return self

    def __getattr__(self, name):
        return getattr(self._file, name)

    def close(self):
        pass


def answers(connection, number, method="POST"):
    """At most so many answers: status, headers and body; fewer if the server closes."""
    incoming, found = Incoming(connection), []
    with suppress(ConnectionError, HTTPException):
        for _ in range(number):
            answer = HTTPResponse(incoming, method=method)
            answer.begin()
            found.append((answer.status, answer.headers, answer.read()))
    return found


def reset(connection):
    """Closes with RST: what is on its way is thrown away."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def exchange(server, *pieces, number=1, pause=0.0, method="POST"):
    """Sends pieces with pauses between them and reads answers; a server may answer and close before all is sent."""
    with connect(server) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
        return answers(connection, number, method)


def slow_head(server, rng):
    data = packed("/infill", BODY)
    return exchange(server, *(data[at : at + 1] for at in range(20)), pause=1.0)


def slow_body(server, rng):
    head, _, body = packed("/infill", BODY + b" " * 100).partition(b"\r\n\r\n")
    return exchange(server, head + b"\r\n\r\n", *(body[at : at + 1] for at in range(35)), pause=1.0)


def huge_head(server, rng):
    line = f"X-Long: {'x' * rng.choice((MAX_HEAD_BYTES, 2 * MAX_HEAD_BYTES, 1 << 20))}\r\n".encode()
    if rng.random() < 0.5:
        line = b"".join(b"X-%d: 1\r\n" % number for number in range(rng.choice((5_000, 50_000))))
    size = rng.choice((1000, 1 << 20))
    return exchange(server, *(line[at : at + size] for at in range(0, len(line), size))) or exchange(
        server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n", method="GET"
    )


def huge_body(server, rng):
    data = b" " * (MAX_BODY_BYTES + rng.choice((1, 1000, MAX_BODY_BYTES)))
    return exchange(server, packed("/infill", data))


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
    gap, name, message = (
        {"input_prefix": "a = ", "n_predict": 0},
        text[: rng.choice((300, 5000, None))],
        {"role": "user"},
    )
    return exchange(server, packed(*rng.choice((
        ("/infill", {"input_prefix": text, "n_predict": 0, "language": "python"}),
        ("/infill", {"input_suffix": text, "n_predict": 0, "language": "python"}),
        ("/infill", {**gap, "input_extra": [{"text": text, "filename": "a.py"}]}),
        ("/infill", {**gap, "input_extra": [{"text": "x = 1", "filename": name}]}),
        ("/v1/completions", {"prompt": text, "suffix": "\n", "max_tokens": 8, "stop": ["a"]}),
        ("/v1/completions", {"segments": {"prefix": "a = ", "filepath": name}}),
        ("/v1/completions", {"segments": {"prefix": "a = ", "suffix": text, "filepath": "a.py"}, "user": name[:300]}),
        ("/v1/edit/completions", {"messages": [{**message, "content": text}]}),
        ("/v1/chat/completions", {"messages": [{**message, "content": text}]}),
    ))))  # fmt: skip


def huge_chunks(server, rng):
    head = f"POST /infill HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    return exchange(server, head, *(chunk for _ in range(10)), b"0\r\n\r\n")


CHUNKS = (
    b"zz\r\n", b"-1\r\n\r\n", b"ffffffffffffffffffff\r\n", b"5;" + b"x" * 200_000, b"3\r\n{}}garbage\r\n0\r\n\r\n",
    b"1\n{\n0\n\n",
    b"0\r\nX: y\r\n" * 3, b"0\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", b"\r\n\r\n", b"0x1\r\n{\r\n0\r\n\r\n",
    b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b" 1\r\n{\r\n",
)  # fmt: skip


def broken_chunks(server, rng):
    head = f"POST /infill HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
    return exchange(server, head, rng.choice(CHUNKS), b"\r\nGET / HTTP/1.1\r\n\r\n")


LENGTHS = (
    "-1", "+23", "0x17", "23, 23", "23, 24", "1e3", "9" * 30, "9" * 5000, "", " ", "٣",
    "23\r\nContent-Length: 24",
    "5\r\nTransfer-Encoding: chunked", "23 ", "0", "22", "2",
)  # fmt: skip


def lying_length(server, rng):
    head = f"POST /infill HTTP/1.1\r\n{HEAD}Content-Length: {rng.choice(LENGTHS)}\r\n\r\n"
    return exchange(server, head.encode("utf-8") + BODY, b"\r\n\r\n", number=2)


def missing_body(server, rng):
    """Less than was promised, and nothing more."""
    return exchange(server, packed("/infill", BODY + b" " * 50)[:-50])


def half_closed(server, rng):
    """Counts as gone: the server cannot know the difference to a client that has closed."""
    with connect(server) as connection:
        connection.sendall(packed("/infill", BODY)[: rng.choice((10, 60, None))])
        connection.shutdown(socket.SHUT_WR)
        return answers(connection, 1)


def aborted_stream(server, rng):
    body = {"prompt": "def f(a, b):\n    ", "suffix": "\n", "stream": True, "diffusing": True, "max_tokens": 64}
    connection = connect(server)
    connection.sendall(packed("/v1/completions", body))
    if rng.random() < 0.7:
        connection.recv(rng.choice((1, 100, 4000)))
    reset(connection)
    return ()


def aborted_body(server, rng):
    connection = connect(server)
    data = packed("/infill", b" " * 100_000)
    connection.sendall(data[: rng.randrange(len(data))])
    reset(connection)
    return ()


def deaf(server, rng):
    """Sends and never reads."""
    connection = connect(server, limit=2)
    with suppress(OSError):
        for _ in range(300):
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
    reset(connection)
    return ()


def idle(server, rng):
    """Connections without a request: the server may close the oldest of them, and answers the requests of others."""
    with ExitStack() as stack:
        for _ in range(NUM_IDLE):
            stack.enter_context(connect(server))
        time.sleep(IDLE_SECONDS)
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
    data = rng.choice((*GARBAGE, rng.randbytes(rng.randrange(1, 5000))))
    with connect(server) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR) if rng.random() < 0.2 else None
        return answers(connection, 1, "GET")


def odd_method(server, rng):
    path = rng.choice(("/infill", "/health", "/v1/completions", "/metrics", "/openapi.json", "/nothing"))
    method = rng.choice(("OPTIONS", "TRACE", "PATCH", "PUT", "DELETE", "HEAD", "get", "X" * 100))
    return exchange(server, f"{method} {path} HTTP/1.1\r\n{HEAD}{CLOSE}\r\n".encode(), method=method)


def odd_body(server, rng):
    depth, path = rng.choice((500, 5_000, 200_000)), rng.choice(("/infill", "/v1/completions", "/v1/chat/completions"))
    bodies = (
        b'{"a":' * depth, b"[" * depth + b"]" * depth, b'{"input_prefix":"' + b"\\ud800" * depth + b'"}',
        b'{"seed":' + b"9" * depth + b"}", b'{"stop":[' + b'"a",' * depth + b'"b"]}', b"\x00" * depth,
        b'{"input_prefix":"' + b"\\u0000" * 1000 + b'"}', b'{"prompt":"a","prompt":"b"}', b"\xff" * depth,
        json.dumps({"input_prefix": "x" * depth, "input_suffix": "(" * depth, "language": "python"}).encode(),
        json.dumps({"input_extra": [{"text": "x", "filename": "../" * 99}] * 4096, "n_predict": 0}).encode(),
    )  # fmt: skip
    return exchange(server, packed(path, rng.choice(bodies)))


HOSTILE = {
    slow_head: 1, slow_body: 1, huge_head: 6, huge_body: 3, huge_text: 8, huge_chunks: 3, broken_chunks: 20,
    lying_length: 20, missing_body: 1, half_closed: 20, aborted_stream: 30, aborted_body: 20, deaf: 3, idle: 1,
    garbage: 40, odd_method: 20, odd_body: 20,
}  # fmt: skip
"""Clients and how often each comes."""
ALLOWED = {200, *STATUSES} - {500}


def check_answer(figures, what, status, headers, body):
    """The status is documented, and an error is a JSON object of the documented form."""
    figures.statuses[status] += 1
    if status not in ALLOWED:
        figures.add("unexpected", f"{what}: {status} {body[:200]}")
    elif status >= 400 and body:
        try:
            assert headers["content-type"] == "application/json", headers["content-type"]
            assert ErrorResponse.model_validate_json(body).error.code == status
        except (AssertionError, ValueError) as error:
            figures.add("unexpected", f"{what}: {status} {error} {body[:200]}")


def be_hostile(server, figures, rng, clients):
    """One broken client after another: first each of `clients`."""
    while figures.next("hostile", is_required=bool(clients)):
        client = clients.pop(0) if clients else rng.choices(list(HOSTILE), list(HOSTILE.values()))[0]
        start = time.monotonic()
        try:
            for answer in client(server, rng):
                check_answer(figures, client.__name__, *answer)
        except TimeoutError:
            figures.add("hung", f"{client.__name__} after {time.monotonic() - start:.0f} s")
        except OSError:
            figures.add("reset")


def be_pipelined(server, figures, known, rng):
    """Several requests at once on one connection: their answers come in order."""
    while True:
        chosen = [(rng.choice(known), rng.choice(DIALECTS)) for _ in range(rng.randint(2, 8))]
        if not figures.next("ordinary", len(chosen)):
            return
        try:
            with connect(server) as connection:
                connection.sendall(b"".join(packed(*dialect(gap)) for gap, dialect in chosen))
                found = answers(connection, len(chosen))
        except OSError as error:
            figures.add("lost", f"pipelined: {error!r}")
            continue
        if len(found) < len(chosen):
            figures.add("lost", f"pipelined: {len(found)} of {len(chosen)}")
        for (gap, dialect), (status, _, body) in zip(chosen, found, strict=False):
            figures.add("compared")
            judge(figures, known, gap, status, body, f"pipelined {dialect.__name__}")
        time.sleep(len(chosen) * PAUSE)


# schemathesis


def be_schemathesis(server, figures, rng):
    """Valid and invalid requests for every operation of the server's own document, in turn."""
    document = Client(server.port).get("/openapi.json").tree
    operations = [one.ok() for one in schemathesis.openapi.from_dict(document).get_all_operations()]
    strategies = [one.as_strategy(generation_mode=mode) for one in operations for mode in GenerationMode]
    how = hypothesis.settings(
        max_examples=NUM_GENERATED,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    session = requests.Session()
    session.trust_env = False  # a proxy cannot reach this server
    url = f"http://127.0.0.1:{server.port}"

    def send(case):
        if not figures.next("generated"):
            return
        excluded = [checks.not_a_server_error]  # 501, 503 and 504 are documented
        options = {*SamplerBody.model_fields} & set(case.body if isinstance(case.body, dict) else ())
        if case.path not in NOT_FOR_EVERY_BODY or options:  # the model may lack an option
            excluded.append(checks.positive_data_acceptance)
        try:
            more = {"additional_checks": [check_errors, check_events], "excluded_checks": excluded}
            reply = case.call_and_validate(base_url=url, session=session, timeout=LIMIT, **more)
            figures.statuses[reply.status_code] += 1
        except Exception as error:  # noqa: BLE001  (every failure is a figure)
            figures.add("unexpected", f"{case.method} {case.path}: {' '.join(str(error).split())[:600]}")

    while not figures.has_ended("generated"):
        for strategy in strategies:
            with suppress(Unsatisfiable):  # nothing can be wrong in a request without fields
                hypothesis.seed(rng.randrange(1 << 32))(how(hypothesis.given(strategy)(send)))()
    session.close()


# the campaign


def run(seconds, seed, most=float("inf")):
    """Sends requests for some seconds, or a number of them; returns the figures."""
    start, known = time.monotonic(), gaps()
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name))
        figures, num_files = Figures(most, time.monotonic() + seconds), server.memory.num_fds()
        clients = [partial(be_ordinary, server, figures, known) for _ in range(NUM_ORDINARY)]
        clients += [
            partial(be_hostile, server, figures, clients=list(HOSTILE)[at::NUM_HOSTILE]) for at in range(NUM_HOSTILE)
        ]
        clients += [partial(be_pipelined, server, figures, known), partial(be_schemathesis, server, figures)]
        threads = [
            threading.Thread(target=client, kwargs={"rng": random.Random(f"{seed} {number}")}, daemon=True)
            for number, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        is_running = True
        while is_running and not server.has_ended:
            figures.resident.append(server.memory.memory_info().rss)
            time.sleep(0.25)
            is_running = any(thread.is_alive() for thread in threads)
        code, still_open, still_active = _end(server, num_files)
    figures.examples += [] if code == -signal.SIGTERM else [f"the server ended with {code}"]
    counts = figures.counts
    return figures_of(
        start,
        seed,
        sum(counts[kind] for kind in SHARES),
        crashes=int(code != -signal.SIGTERM),
        unexpected=counts["unexpected"] + counts["hung"],
        **{kind: counts[kind] for kind in ("lost", "crossed", *SHARES, "compared", "hung")},
        resets=counts["reset"],
        statuses=dict(sorted(figures.statuses.items())),
        files_left_open=still_open,
        requests_left_active=still_active,
        peak_mib=round(max(figures.resident) / 2**20, 1),
        growth_percent=round(100 * growth(figures.resident), 2),
        examples=figures.examples,
    )


def _end(server, num_files):
    """Ends the server; its exit code, and what is left of connections and requests once they had time to end."""
    still_open = still_active = 0
    if not server.has_ended:
        client, until = Client(server.port), time.monotonic() + LIMIT
        while time.monotonic() < until:
            still_active = metric(client, "dg_lsp_active_requests")
            still_open = max(0, server.memory.num_fds() - num_files)
            if not still_active and not still_open:
                break
            time.sleep(0.2)
    return server.close(), still_open, still_active
