"""Fuzzed messages and edits against an independent model of every document.

A server in a thread of this process receives frames that are split, joined and broken, and its texts are compared after
each batch of messages. Then server processes are tested: one whose completions are the text that its model saw, and
three sessions at a time of a daemon with this model.
"""

import json
import math
import os
import random
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import language_client
import psutil
from e2e.conftest import Launcher
from e2e.scripted_server import open_echo
from shared_daemon import SCRIPTED, Shared, wait_until

from dg_lsp.server.app import create_server
from dg_lsp.settings import Settings
from soak.lsp_client import AT_END, Client

ROOT = Path(__file__).parents[2]
ECHO = [sys.executable, str(ROOT / "tests" / "e2e" / "scripted_server.py"), "echo"]
SHARED = [*SCRIPTED, "echo", "lsp", "--daemon", "start"]
PATIENCE = 300
"""Seconds after which an answer is lost."""
LONGEST_CONNECTION = 200
"""Batches of messages of a session in this process."""
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
        "echo": (0.13, _echo),
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


class Server:
    """What the campaign does with the client of a server, in a thread or in a process."""

    def send(self, data):
        with suppress(ConnectionError):  # `deliver` notices the end
            self.send_bytes(data)

    def deliver(self, client, happened):
        """Passes on what arrives until something has happened; False if the server ended or takes too long."""
        end = time.monotonic() + PATIENCE
        while not happened():
            has_ended = self.has_ended
            if self.messages:
                client.receive(self.messages.pop(0))
            elif has_ended:
                return False
            elif time.monotonic() > end:
                self.abort()
                return False
            else:
                time.sleep(0.0002)
        return True

    def exchange(self, client, rng, figures, most):
        """Sends up to `most` messages, and checks the server once all of them were handled; False if it ended."""
        bodies = []
        touched = set()
        for _ in range(1 if client.state == "new" else rng.randint(1, most)):
            bodies.append(client.message())
            touched |= client.touched
        figures.add("messages", number=len(bodies))
        probe, body = client.probe()
        for piece in frames([*bodies, body], rng):
            self.send(piece)
        is_alive = self.deliver(client, lambda: probe not in client.pending)
        self.check(client, figures, touched)
        return is_alive


class Thread(Server, language_client.ThreadClient):
    """A server in a thread of this process."""

    def check(self, client, figures, touched):
        """Compares texts with the model's; closed documents are closed. A text that differs is counted once."""
        documents = self._server.documents
        for uri in touched:
            expected, document = client.documents.get(uri), documents.get(uri)
            figures.add("edits")
            expected = expected and (expected.text, expected.version, expected.language, expected.notebook)
            if expected != (document and (document.lines.text, document.version, document.language, document.notebook)):
                figures.add("lost", f"an edit of {uri}: {client.last}")
                client.documents.pop(uri, None)
                documents.close(uri)

    def abort(self):
        self.errors.append(f"no answer in {PATIENCE} s")

    def end_input(self):
        """Returns the exit code."""
        with suppress(OSError):  # the server has closed it
            self.connection.shutdown(socket.SHUT_WR)
        self.reader.join(PATIENCE)
        self._thread.join(PATIENCE)
        return self.code


class Process(Server, language_client.Client):
    """A server process."""

    def __init__(self, command, folder):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), "PYTHONFAULTHANDLER": "1"}
        environment |= {"DG_LSP_DATA_DIR": str(folder / "data"), "DG_LSP_DAEMON_DIR": str(folder / "daemon")}
        environment |= {"OMP_WAIT_POLICY": "passive"}
        super().__init__(command, environment, folder)
        self._name = folder.name
        self._memory = psutil.Process(self.process.pid)

    def check(self, _client, figures, _touched):
        """Records the memory."""
        with suppress(psutil.Error):
            figures.sample(self._memory.memory_info().rss, self._name)

    def abort(self):
        """Ends the process, which writes its stacks."""
        self.process.send_signal(signal.SIGABRT)

    def end_input(self):
        """Returns the exit code."""
        with suppress(OSError):  # the server has closed it
            self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        return code


# sessions


def _session(server, client, rng, figures, has_ended, *, most, num_batches=math.inf, ending=None):
    """Batches of up to `most` messages, and then those that end a session, or a broken frame in their place."""
    is_alive = True
    while is_alive and num_batches and (client.state == "new" or not has_ended()):
        num_batches -= 1
        is_alive = server.exchange(client, rng, figures, most)
        if rng.random() < 0.1:
            is_alive = is_alive and server.deliver(client, client.is_idle)
    is_alive = is_alive and server.deliver(client, client.is_idle)
    is_clean = ending is None and client.state == "running"
    server.send(b"".join(frames([*client.end()], rng)) if is_clean else ending or b"")
    if ending in REFUSED and not server.deliver(client, lambda: server.has_ended):
        figures.add("unexpected", f"the connection goes on after {ending[:60]}")
    code = server.end_input()
    if not is_alive or code != (0 if is_clean else 1) or "Traceback" in server.stderr:
        figures.add("crashes", f"ended early or with {code}; {client.last}, {ending}; {server.stderr[-300:]}")
    for message in server.messages:
        if is_clean or "method" in message or message["id"] is not None:  # a body of the wrong length may be answered
            client.receive(message)
    if not is_clean:
        client.nameless.clear()
    client.finish()


def _in_process(new_client, rng, figures, has_ended, _folder):
    """Sessions of servers in threads, one after another; the first ones have each of the endings."""
    endings = [None, *BREAKS]
    while endings or not has_ended():
        ending = endings.pop() if endings else rng.choice((None, broken(rng)))
        server = Thread(open_echo, Settings())
        num_batches = rng.randint(0, LONGEST_CONNECTION)
        client = new_client(rng)
        _session(server, client, rng, figures, has_ended, most=4, num_batches=num_batches, ending=ending)
        for error in server.errors:
            figures.add("unexpected", f"in the loop: {error}")
        server.errors.clear()
        server.kill()


def _process(command, new_client, rng, figures, has_ended, folder, ending=None):
    """A session of a server process; with an `ending` it receives nothing else."""
    process = Process(command, folder)
    num_batches = math.inf if ending is None else 0
    try:
        client = new_client(rng)
        _session(process, client, rng, figures, has_ended, most=60, num_batches=num_batches, ending=ending)
    finally:
        process.kill()


def _echo(new_client, rng, figures, has_ended, folder):
    """One session, then fresh processes that get broken frames."""
    _process(ECHO, new_client, rng, figures, has_ended, folder)
    for _ in range(NUM_BROKEN):
        figures.add("messages")
        _process(ECHO, new_client, rng, figures, has_ended, folder, ending=broken(rng))


def _daemon(new_client, rng, figures, has_ended, folder):
    """Sessions at the same time, with documents of the same names: an answer shows the text of its own session."""
    shared = Shared(Launcher(folder), folder / "daemon")
    sessions = [
        threading.Thread(
            target=_process,
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
