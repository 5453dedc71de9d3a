"""Fuzzed messages and edits against an independent model of every document.

A server in this process receives frames that are split, joined and broken, and its texts are compared after each edit.
Then server processes are tested: one whose completions are the text that its model saw, and three sessions at a time of
a daemon with this model.
"""

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import language_client
import psutil
from e2e.conftest import Launcher
from e2e.scripted_server import open_echo
from shared_daemon import SCRIPTED, Shared, wait_until

from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.server.app import create_server
from dg_lsp.settings import Settings
from soak.lsp_client import AT_END, Client

ROOT = Path(__file__).parents[2]
ECHO = [sys.executable, str(ROOT / "tests" / "e2e" / "scripted_server.py"), "echo"]
SHARED = [*SCRIPTED, "echo", "lsp", "--daemon", "start"]
PATIENCE = 300
"""Seconds after which an answer is lost."""
LONGEST_CONNECTION = 200
"""Batches of messages of a connection in this process."""
NUM_BROKEN, NUM_SESSIONS = 2, 3
"""Processes that receive broken frames, and sessions of a daemon."""
REFUSED = (
    b"GET / HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"Content-Length: -1\r\n\r\n", b"Content-Length: 0x10\r\n\r\n",
    b"Content-Length: 999999999999\r\n\r\n{}", b"Content-Length: 300000000\r\n\r\n", b"Content-Length: 1e3\r\n\r\n",
    b"\x00" * 70_000, b"Content-Length: 3\r\nContent-Length: 2\r\n\r\n{}", b"X: 1\r\nContent-Length: 2\r\n\r\n{}",
    b"Content-Length: 2\n\n{}", b"Content-Type: x\r\n" * 50, b"Content-Length: " + b"9" * 70_000,
    b"Content-Length: 0\r\n\r\n{}\r\nContent-Length: 2\r\n\r\n{}",
)  # fmt: skip
"""What no header of LSP is: the server ends the connection."""
BREAKS = (
    *REFUSED, b"", b"Content-Length: 5", b"Content-Length: 10\r\n\r\n{}", b"Content-Length: 1\r\n\r\n{}",
    b"Content-Length: 40\r\n\r\n{}", b"Content-Length: 2\r\n\r\n{}Content-Length: 2",
)  # fmt: skip
"""The others are less than was promised, and wait for the end of the input."""


def campaign(figures, folder, seed):
    """Sends messages to each kind of server, one after another."""
    manager = create_server(None, Settings()).protocol.fm
    known = {*manager.features, *manager.builtin_features, "$/cancelRequest"}
    # a second `initialized` only loads the model again
    methods = sorted(known - {*AT_END, "initialized"})
    parts = {
        "in this process": (0.8, _in_process),
        "echo": (0.13, partial(_process, ECHO)),
        "daemon": (0.07, _daemon),
    }
    for part, (share, send) in parts.items():
        rng = random.Random(f"{seed} {part}")
        place = folder / part
        place.mkdir()
        new_client = partial(Client, methods=methods, figures=figures, folder=place.as_uri())
        send(new_client, rng, figures, figures.limit(share), place)


def frames(bodies, rng):
    """The bodies as frames, in pieces of any length."""
    data = b""
    for body in bodies:
        head = b"Content-Length: %d\r\n" % len(body)
        kind = b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n"
        data += rng.choice((head, head, kind + head, head.lower() + kind)) + b"\r\n" + body
    lengths = rng.choice(((len(data),), (1, 3, 20, 100, 4096, len(data))))
    while data:
        length = rng.choice(lengths)
        yield data[:length]
        data = data[length:]


def broken(rng):
    """What ends a connection: a broken frame, or a length that is not the body's."""
    if rng.random() < 0.6:
        return rng.choice(BREAKS)
    message = json.dumps({"jsonrpc": "2.0", "method": "$/lie", "params": {"a": "b" * rng.randint(0, 50)}}).encode()
    length = len(message) + rng.choice((-len(message) + 1, -1, 1, 2, 30, 5000))
    return b"Content-Length: %d\r\n\r\n" % length + 3 * message


def _batch(client, rng, figures, most):
    """The bodies of the next messages."""
    bodies = [client.message() for _ in range(1 if client.state == "new" else rng.randint(1, most))]
    figures.add("messages", number=len(bodies))
    return bodies


# a server in this process


class Inbox:
    """The writer of a server in this process: its messages in the order of sending."""

    def __init__(self):
        self._bodies = []
        self.transport = Mock()
        self.drain = AsyncMock()

    def write(self, data):
        self._bodies.append(data.partition(b"\r\n\r\n")[2])

    def deliver(self, client, *, has_nameless=True):
        """Passes them to the client; without those answers that have no id if there are none that count."""
        bodies, self._bodies = self._bodies, []
        for message in map(json.loads, bodies):
            if has_nameless or "method" in message or message["id"] is not None:
                client.receive(message)


def _in_process(new_client, rng, figures, has_ended, _folder):
    endings = [None, *BREAKS]
    while endings or not has_ended():
        ending = endings.pop() if endings else rng.choice((None, broken(rng)))
        asyncio.run(_connection(new_client(rng), ending, rng, figures, has_ended))


async def _connection(client, ending, rng, figures, has_ended):
    """One connection, which ends with a broken frame, or without one as clients end it."""
    report = partial(figures.add, "unexpected")
    asyncio.get_running_loop().set_exception_handler(lambda _, context: report(f"in the loop: {context}"))
    server = create_server(partial(Scheduler, open_echo), Settings())
    inbox = Inbox()
    reader = asyncio.StreamReader()
    feeding = asyncio.ensure_future(_feed(server, inbox, reader, client, ending, rng, figures, has_ended))
    try:
        code = await server.serve(nullcontext((reader, inbox, b"")))
    except Exception as error:  # noqa: BLE001  (it ends the process)
        figures.add("crashes", f"{error!r} after {client.last}")
        return
    if not feeding.cancelled():
        feeding.result()  # raises an error of this campaign
    is_broken = client.state == "broken"
    if code != is_broken or client.state not in ("broken", "ending"):
        figures.add("crashes", f"the connection ended early, or with {code}; {client.last}")
    if is_broken:  # a body of the wrong length may have been answered
        client.nameless.clear()
    inbox.deliver(client, has_nameless=not is_broken)
    client.finish()


async def _feed(server, inbox, reader, client, ending, rng, figures, has_ended):
    feed = partial(_feed_all, inbox, reader, client, rng, figures)
    for _ in range(rng.randint(1, LONGEST_CONNECTION)):
        if has_ended() and client.state != "new":
            break
        touched = set()
        for body in _batch(client, rng, figures, rng.choice((1, 1, 1, 8))):
            touched |= client.touched
            await feed([body])
        for uri in touched:
            _compare(server, client, figures, uri)
        if rng.random() < 0.1:
            await _wait(client.is_idle, inbox, client, figures)
    await _wait(client.is_idle, inbox, client, figures)
    if ending is None and client.state == "running":
        await feed([*client.end()])
        return
    client.state = "broken"
    reader.feed_data(ending or b"")
    if ending in REFUSED:
        await asyncio.sleep(PATIENCE)  # the server ends meanwhile, and cancels this
        figures.add("unexpected", f"the connection goes on after {ending[:60]}")
    reader.feed_eof()


async def _feed_all(inbox, reader, client, rng, figures, bodies):
    """Feeds messages until all of them were read."""
    for piece in frames(bodies, rng):
        reader.feed_data(piece)
        await asyncio.sleep(0)
    # no answer shows that the last message, which may be a notification, was read
    await _wait(lambda: not reader._buffer, inbox, client, figures)
    await asyncio.sleep(0)
    inbox.deliver(client)


async def _wait(happened, inbox, client, figures):
    """Delivers answers until something has happened; counts an answer that takes too long."""
    end = time.monotonic() + PATIENCE
    while not happened() and time.monotonic() < end:
        await asyncio.sleep(0.0002)
        inbox.deliver(client)
    if not happened():
        figures.add("lost", f"no answer in {PATIENCE} s: {[*client.pending.values()][:3]}")


def _compare(server, client, figures, uri):
    """The server's text is the model's, and closed documents are closed. A text that differs is counted once."""
    expected, document = client.documents.get(uri), server.documents.get(uri)
    figures.add("edits")
    expected = expected and (expected.text, expected.version, expected.language, expected.notebook)
    if expected != (document and (document.lines.text, document.version, document.language, document.notebook)):
        figures.add("lost", f"an edit of {uri}: {client.last}")
        client.documents.pop(uri, None)
        server.documents.close(uri)


# server processes


class Process(language_client.Client):
    """A server process."""

    def __init__(self, command, folder):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), "PYTHONFAULTHANDLER": "1"}
        environment |= {"DG_LSP_DATA_DIR": str(folder / "data"), "DG_LSP_DAEMON_DIR": str(folder / "daemon")}
        environment |= {"OMP_WAIT_POLICY": "passive"}
        super().__init__(command, environment, folder)
        self._memory = psutil.Process(self.process.pid)

    def send(self, data):
        with suppress(ConnectionError):  # `deliver` notices the end
            self.send_bytes(data)

    @contextmanager
    def limited(self):
        """Aborts the process, which writes its stacks, if what is done inside takes longer than `PATIENCE`."""
        timer = threading.Timer(PATIENCE, self.process.send_signal, [signal.SIGABRT])
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def deliver(self, client):
        """Waits until all answers have arrived; False if the process ended."""
        while not client.is_idle():
            has_ended = self.has_ended
            if self.messages:
                client.receive(self.messages.pop(0))
            elif has_ended:
                return False
            else:
                time.sleep(0.0002)
        return True

    def sample(self, figures, name):
        with suppress(psutil.Error):
            figures.sample(self._memory.memory_info().rss, name)

    def end_input(self):
        """Returns the exit code."""
        with suppress(OSError):  # the server has closed it
            self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        return code


@contextmanager
def started(command, folder):
    process = Process(command, folder)
    try:
        yield process
    finally:
        process.kill()


def _process(command, new_client, rng, figures, has_ended, folder):
    """One session of a server process, then fresh ones that get broken frames."""
    _session(command, new_client, rng, figures, has_ended, folder)
    for _ in range(NUM_BROKEN):
        with started(command, folder) as process:
            data = broken(rng)
            figures.add("messages")
            process.send(data)
            code = process.end_input()
            if code != 1 or "Traceback" in process.stderr:
                figures.add("crashes", f"{folder.name} ended with {code} after {data[:60]}: {process.stderr[-300:]}")


def _session(command, new_client, rng, figures, has_ended, folder):
    with started(command, folder) as process:
        client = new_client(rng)
        is_alive = True
        while is_alive and (client.state == "new" or not has_ended()):
            with process.limited():
                for piece in frames(_batch(client, rng, figures, 60), rng):
                    process.send(piece)
                is_alive = process.deliver(client)
            process.sample(figures, folder.name)
        if is_alive and client.state == "running":
            process.send(b"".join(frames([*client.end()], rng)))
            client.is_silent = False
        code = process.end_input()
        for message in process.messages:
            client.receive(message)
        if not is_alive or code != 0:
            figures.add("crashes", f"{folder.name} ended with {code}: {process.stderr}")
        client.finish()


def _daemon(new_client, rng, figures, has_ended, folder):
    """Sessions at the same time, with documents of the same names: an answer shows the text of its own session."""
    shared = Shared(Launcher(folder), folder / "daemon")
    sessions = [
        threading.Thread(
            target=_session,
            args=(SHARED, new_client, random.Random(rng.getrandbits(64)), figures, has_ended, folder),
            daemon=True,
        )
        for _ in range(NUM_SESSIONS)
    ]
    for session in sessions:
        session.start()
    for session in sessions:
        session.join()
    shared.dg_lsp("daemon", "stop")
    try:
        wait_until(lambda: not shared.daemons(), pause=0.05)  # the process ends after its lock is free
    except AssertionError:
        figures.add("unexpected", "the daemon does not end")
        shared.end()
    if log := shared.endpoint.log.read_text(errors="replace"):
        figures.add("unexpected", f"the daemon logged: {log}")
