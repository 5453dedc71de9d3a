"""Fuzzed messages and edits against an independent model of every document: in this process, and over pipes.

A server in this process gets one message after another, and its texts are compared after each edit. Then there are
connections with frames that are split, joined and broken; a server process whose completions are the text that its
model saw; and `dg-lsp lsp` with the bundled model, over pipes, and over TCP after strangers without its token.
"""

import asyncio
import json
import math
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from e2e.scripted_server import EchoEngine

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.server.app import _end_tasks, create_server, serve
from dg_lsp.settings import Settings
from soak.figures import FAILURES, MAX_GROWTH, NUM_CHARS, figures_of, growth
from soak.lsp_client import AT_END, COMPLETION, Client, Figures
from soak.lsp_process import PATIENCE, Process, TcpProcess

ROOT = Path(__file__).parents[2]
ECHO = [sys.executable, str(ROOT / "tests" / "e2e" / "scripted_server.py"), "echo"]
BUNDLED = [sys.executable, "-P", "-m", "dg_lsp", "lsp"]
TCP = [*BUNDLED, "--tcp", "127.0.0.1:0"]
SESSION = 2000
"""Messages of a session in this process."""
CONNECTION = 200
"""Messages of a connection that ends with a broken frame."""
WAITS = 0.1
"""Probability that all answers are waited for after a message."""
NUM_BROKEN, NUM_STRANGERS = 2, 20
"""Processes that get broken frames, and connections without the token to a server on TCP."""
COUNTED = ("answers", "compared", "compared_cells", "edits")
NUM_WARM = 20_000
"""Messages from which on the growth counts."""
BREAKS = (
    b"", b"Content-Length: 5", b"Content-Length: 10\r\n\r\n{}", b"GET / HTTP/1.1\r\n\r\n", b"\r\n\r\n",
    b"Content-Length: -1\r\n\r\n", b"Content-Length: 0x10\r\n\r\n", b"Content-Length: 999999999999\r\n\r\n{}",
    b"Content-Length: 1\r\n\r\n{}", b"Content-Length: 40\r\n\r\n{}", b"Content-Length: 1e3\r\n\r\n", b"\x00" * 70_000,
    b"Content-Length: 3\r\nContent-Length: 2\r\n\r\n{}", b"Content-Length: 2\r\n\r\n{}Content-Length: 2",
    b"X: 1\r\nContent-Length: 2\r\n\r\n{}", b"Content-Length: 2\n\n{}", b"Content-Type: x\r\n" * 50,
    b"Content-Length: " + b"9" * 70_000,
)  # fmt: skip


def run(seconds, seed, most=math.inf):
    """Sends messages for some seconds, or a number of them; returns the figures."""
    start, figures, parts = time.monotonic(), Figures(), {}
    methods = _methods()
    with tempfile.TemporaryDirectory() as name:
        shares = {"in_process": 0.7, "connections": 0.1, "echo": 0.14, "bundled": 0.04, "tcp": 0.02}
        for part, share in shares.items():
            rng, begun, before = random.Random(f"{seed} {part}"), time.monotonic(), figures.counts["messages"]
            limits = Limits(
                figures, begun + share * seconds, before + math.ceil(most * share) if most < math.inf else most
            )
            found = PARTS[part](rng, methods, figures, limits, Path(name))
            number, took = figures.counts["messages"] - before, time.monotonic() - begun
            parts[part] = {"messages": number, "per_second": round(number / max(took, 1e-3)), **found}
    counts = {key: figures.counts[key] for key in (*FAILURES, *COUNTED)}
    peak = max(part.get("peak_mib", 0) for part in parts.values())
    more = {"peak_mib": peak, "parts": parts, "examples": figures.examples}
    return figures_of(start, seed, figures.counts["messages"], **counts, **more)


def _methods():
    """The methods that the server registers, without those that begin and end a session."""
    manager = create_server(None, Settings()).protocol.fm
    known = {*manager.features, *manager.builtin_features, "$/cancelRequest"}
    # a second `initialized` only loads the model again
    return sorted(known - {*AT_END, "initialized"})


class Limits:
    """When a part ends."""

    def __init__(self, figures, end, most):
        self._figures, self._end, self._most = figures, end, most

    def are_reached(self):
        return self._figures.counts["messages"] >= self._most or time.monotonic() >= self._end


class Inbox:
    """The writer of a server in this process: its messages in the order of sending."""

    def __init__(self):
        self._bodies = []

    def write(self, data):
        self._bodies.append(data.partition(b"\r\n\r\n")[2])

    def close(self):
        pass

    def deliver(self, client, *, has_nameless=True):
        """Passes them to the client; without those answers that have no id if there are none that count."""
        bodies, self._bodies = self._bodies, []
        for message in map(json.loads, bodies):
            if has_nameless or "method" in message or message["id"] is not None:
                client.receive(message)


def open_engine(settings):
    """A model whose completions are the text that it sees."""
    denoiser = ScriptedDenoiser("")
    return EchoEngine(denoiser, denoiser.tokenizer, settings.completion)


def _server():
    return create_server(partial(Scheduler.of, open_engine), Settings())


async def _wait(inbox, client):
    """Waits until all answers have arrived; one that takes too long is counted."""
    end = time.monotonic() + PATIENCE
    inbox.deliver(client)
    while not client.is_idle() and time.monotonic() < end:
        await asyncio.sleep(0.0005)
        inbox.deliver(client)
    if not client.is_idle():
        client.figures.add("unexpected", f"no answer in {PATIENCE} s: {[*client.pending.values()][:3]}")


def _compare(server, client, figures, uri):
    """The server's text is the model's, and closed documents are closed. A text that differs is counted once."""
    one, other = client.documents.get(uri), server.documents.get(uri)
    figures.counts["edits"] += 1
    expected = one and (one.text, one.version, one.language, one.notebook)
    if expected != (other and (other.lines.text, other.version, other.language, other.notebook)):
        figures.add("lost", f"an edit of {uri}: {client.last}")
        client.documents.pop(uri, None)
        server.documents.close(uri)


def _in_process(rng, methods, figures, limits, folder):
    """Sessions of a server in this process, message by message."""
    while not limits.are_reached():
        client = Client(rng, methods, figures, folder=folder.as_uri())
        asyncio.run(_session(client, rng, figures, limits))
    return {}


async def _session(client, rng, figures, limits):
    report = partial(figures.add, "unexpected")
    asyncio.get_running_loop().set_exception_handler(lambda _, found: report(f"in the loop: {found}"))
    server, inbox = _server(), Inbox()
    server.protocol.set_writer(inbox)

    async def send(body):
        figures.counts["messages"] += 1
        try:
            server.protocol.receive(body)
        except Exception as error:  # noqa: BLE001  (it ends the process)
            figures.add("crashes", f"{error!r} after {body[:300]}")
        await asyncio.sleep(0)
        inbox.deliver(client)

    for _ in range(SESSION):
        if limits.are_reached():
            break
        await send(client.message())
        for uri in client.touched:
            _compare(server, client, figures, uri)
        if rng.random() < WAITS:
            await _wait(inbox, client)
    await _wait(inbox, client)
    if client.state == "running":
        for body in client.end():
            await send(body)
        if server.exit_code != 0:
            report(f"exit code {server.exit_code}")
    server.close()
    await _end_tasks()
    inbox.deliver(client)
    client.finish()


def frames(bodies, rng):
    """The bodies as frames, in pieces of any length."""
    data = b""
    for body in bodies:
        head = b"Content-Length: %d\r\n" % len(body)
        kind = b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n"
        data += rng.choice((head, head, kind + head, head.lower() + kind)) + b"\r\n" + body
    while data:
        length = rng.choice((1, 3, 20, 100, 4096, len(data)))
        yield data[:length]
        data = data[length:]


def broken(rng):
    """What ends a connection: a broken frame, or a length that is not the body's."""
    if rng.random() < 0.6:
        return rng.choice(BREAKS)
    message = json.dumps({"jsonrpc": "2.0", "method": "$/lie", "params": {"a": "b" * rng.randint(0, 50)}}).encode()
    length = len(message) + rng.choice((-len(message) + 1, -1, 1, 2, 30, 5000))
    return b"Content-Length: %d\r\n\r\n" % length + 3 * message


def _connections(rng, methods, figures, limits, folder):
    """Connections whose frames are split and joined; each ends with one that is broken."""
    number = 0
    while not limits.are_reached():
        client = Client(rng, methods, figures, folder=folder.as_uri())
        asyncio.run(_connection(client, rng, figures))
        number += 1
    return {"connections": number}


async def _connection(client, rng, figures):
    server, inbox, reader = _server(), Inbox(), asyncio.StreamReader()
    feeding = asyncio.ensure_future(_feed(server, inbox, reader, client, rng, figures))
    try:
        code = await serve(server, reader, inbox)
    except Exception as error:  # noqa: BLE001  (it ends the process)
        figures.add("crashes", f"a broken frame: {error!r}")
        return
    if not feeding.done() or feeding.cancelled() or code != 1:
        figures.add("crashes", f"the connection ended early, or with {code}; {client.last}")
    client.nameless.clear()  # a body of the wrong length may have been answered
    inbox.deliver(client, has_nameless=False)
    client.finish()


async def _feed(server, inbox, reader, client, rng, figures):
    for _ in range(rng.randint(0, CONNECTION // 10)):
        bodies = [client.message() for _ in range(1 if client.state == "new" else rng.randint(1, 20))]
        figures.counts["messages"] += len(bodies)
        for piece in frames(bodies, rng):
            reader.feed_data(piece)
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        # no answer shows that the last message, which may be a notification, was read
        end = time.monotonic() + PATIENCE
        while reader._buffer and time.monotonic() < end:
            await asyncio.sleep(0)
        await _wait(inbox, client)
    await asyncio.sleep(0.001)
    for uri in [*client.documents]:
        _compare(server, client, figures, uri)
    reader.feed_data(broken(rng))
    reader.feed_eof()


def _pipe(start, command, rng, methods, figures, limits, folder, **options):
    """One session of a server process, then fresh ones that get broken frames."""
    folder = folder / start.__name__ / Path(command[-1]).name
    folder.mkdir(parents=True)
    before, process = figures.counts["messages"], _started(start, command, rng, figures, folder)
    client = Client(rng, methods, figures, folder=folder.as_uri(), token=process.token, **options)
    is_alive = True
    while is_alive and (client.state == "new" or not limits.are_reached()):
        bodies = [client.message() for _ in range(1 if client.state == "new" else rng.randint(1, 60))]
        figures.counts["messages"] += len(bodies)
        with process.limited():
            for piece in frames(bodies, rng):
                process.send(piece)
            is_alive = process.deliver(client)
        process.sample()
    if is_alive and client.state == "running":
        for body in client.end():
            process.send(b"".join(frames([body], rng)))
        client.is_silent = False
    code = process.close()
    while (message := process.messages.get(timeout=PATIENCE)) is not None:
        client.receive(message)
    if not is_alive or code != 0:
        figures.add("crashes", f"{command[-1]} ended with {code}: {process.errors[-NUM_CHARS:]}")
    client.finish()
    grown = growth(process.sizes)
    if grown > MAX_GROWTH and figures.counts["messages"] - before > NUM_WARM:
        figures.add("unexpected", f"{command[-1]}: memory grew by {grown:.1%} in the second half")
    found = {"peak_mib": round(max(process.sizes, default=0) / 2**20, 1), "growth_percent": round(100 * grown, 1)}
    return {**found, "broken_connections": _broken_pipes(start, command, rng, figures, folder)}


def _started(start, command, rng, figures, folder):
    """A server process with its client's connection; strangers have tried before."""
    process = start(command, folder)
    for _ in range(NUM_STRANGERS if process.token else 0):
        figures.counts["messages"] += 1
        data = _stranger(rng, process.token)
        found = process.approach(data)
        if found is None:
            figures.add("unexpected", f"a connection without the token stays open after {data[:200]}")
        elif b'"result"' in found or process.token.encode() in found:
            figures.add("crossed", f"without the token: {found[:200]} after {data[:200]}")
    process.connect()
    return process


def _stranger(rng, token):
    """The first bytes of a client that does not have the token."""
    if rng.random() < 0.5:
        return broken(rng)
    wrong = (None, "", token[:-1], f"{token}x", token.swapcase(), [token], {"token": token}, 0, "é" * len(token))
    options = rng.choice(({"token": rng.choice(wrong)}, {}, None, [token], token, 7))
    params = rng.choice(({"capabilities": {}, "initializationOptions": options}, options, [options]))
    method = rng.choice(("initialize", "initialize", "shutdown", "exit", COMPLETION, 5))
    message = {"jsonrpc": "2.0", "id": rng.choice((1, "a", None, [])), "method": method, "params": params}
    return b"".join(frames([json.dumps(message).encode()], rng))


def _broken_pipes(start, command, rng, figures, folder):
    """Fresh processes that get broken frames: each ends with code 1, and with no traceback."""
    for _ in range(NUM_BROKEN):
        process, data = start(command, folder), broken(rng)
        process.connect()
        figures.counts["messages"] += 1
        process.send(process.hello + data)
        code = process.close()
        if code != 1 or "Traceback" in process.errors:
            figures.add("crashes", f"{command[-1]} ended with {code} after {data[:60]}: {process.errors[-300:]}")
    return NUM_BROKEN


PARTS = {
    "in_process": _in_process,
    "connections": _connections,
    "echo": partial(_pipe, Process, ECHO),
    "bundled": partial(_pipe, Process, BUNDLED, share_of_completions=0.02, sees_texts=False),
    "tcp": partial(_pipe, TcpProcess, TCP, share_of_completions=0.02, sees_texts=False),
}
