"""The campaign of the shared daemon: editors that type while daemons and editors are killed, stopped and starved.

Each `Typist` is a client with a text of its own, as an editor is: it types, requests completions, accepts some, and
connects again when its connection ends. The scripted model suggests a checksum of two lines above the cursor, so that
each answer shows for which text it was computed. Between answers `Faults` are injected, every kind once a round, in an
order and at moments of the seed.
"""

import math
import os
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from weakref import WeakSet

import psutil
from e2e.conftest import Launcher
from e2e.scripted_server import checksum
from gates import wait_until
from language_client import PATIENT, Client
from shared_daemon import SCRIPTED, Shared

from dg_lsp.daemon.client import receive, send

NUM_TYPISTS, MODELS = 4, ("first", "second", "third")
MAX_BYTES = 1 << 30
"""Address space of a daemon."""
MAX_ANSWERS, LONGEST_TEXT = 25, 1500
"""Of a session."""
ANSWERS_PER_FAULT = (4, 12)
DISK_BYTES = 1 << 18
NOBODY = 65_534
PATIENCE = 300.0
"""Seconds until something counts as not happening."""
PAUSE, LONG_PAUSE, MOMENT = (0.2, 2.0), (5.5, 7.0), 0.1
"""Seconds; clients wait five seconds for a daemon."""
OTHER_VERSION = "0.0.1"
EDITOR = {"name": "soak", "version": "1"}
OWN_MODEL = "this editor gets a model of its own"
DECODERS = ("diffusion", "autoregressive")
INTRUDER = f"""
import os, socket, sys
from pathlib import Path
from dg_lsp.daemon.client import open_session
from dg_lsp.daemon.endpoint import Endpoint
from dg_lsp.errors import DaemonError
endpoint = Endpoint(Path(sys.argv[1]))
record = endpoint.read()
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
def connect():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(str(endpoint.socket_path))
attempts = {{
    "list": lambda: os.listdir(endpoint.folder),
    "connect": connect,
    "start": lambda: open_session(endpoint, {{}}, [sys.executable, "--version"]),
    **{{path.name: path.read_bytes for path in (endpoint.record_path, endpoint.lock, endpoint.log)}},
}}
print(endpoint.read() or "", end="")
for name, attempt in attempts.items():
    try:
        attempt()
    except (PermissionError, DaemonError):
        continue
    except OSError as error:
        name = f"{{name}}: {{error}}"
    print(name, end=" ")
"""
"""What another user tries; it prints what it gets."""


# the folder and its processes


class Installation(Shared):
    """The folder of the daemons, their processes, and what all clients and faults share."""

    def __init__(self, figures, folder, seed):
        folder.chmod(0o755)  # only the daemon's own folder keeps others out
        super().__init__(Launcher(folder), folder / "state")
        self.figures, self.folder, self.seed = figures, folder, seed
        self.is_over = threading.Event()
        self.suggested = set()
        """Suggestions for the texts of all sessions."""
        self.disturbed = WeakSet()
        """Clients whose connection a fault may end."""
        self.env = {
            **os.environ,
            **self.env,
            "DG_LSP_DATA_DIR": str(folder / "data"),
            "DG_LSP_CONFIG_DIR": os.devnull,
            "OMP_WAIT_POLICY": "passive",
            # on a machine of many cores the threads of numpy would fill the address space
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",
        }

    def command(self, *arguments):
        """dg-lsp with the scripted model and the limit of memory."""
        return ["sh", "-c", f'ulimit -v {MAX_BYTES >> 10}; exec "$@"', "sh", *SCRIPTED, "checksum", *arguments]

    def processes(self):
        """Servers of the campaign: daemons, editors' processes, and their children."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_ours = process.environ().get("DG_LSP_DAEMON_DIR") == str(self.endpoint.folder)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def for_daemons(self, act):
        """Does something with the process of each daemon."""
        for pid in self.daemons():
            with suppress(psutil.Error, ProcessLookupError):
                act(psutil.Process(pid))


# clients


@dataclass(frozen=True)
class Question:
    """A completion that a session requested at the end of its text."""

    model: str
    text: str

    @property
    def suggestion(self):
        return checksum(self.model, self.text)

    def rests(self, text):
        """The rest of the suggestion if its beginning was typed, and of the next one if it was accepted."""
        after = Question(self.model, self.text + self.suggestion)
        for question in (self, after):
            typed = text[len(question.text) :]
            if text.startswith(question.text) and question.suggestion.startswith(typed):
                yield question.suggestion[len(typed) :]


class Typist(threading.Thread):
    """One client after another, each with a text of its own, under the same name as those of the others."""

    def __init__(self, installation, number):
        super().__init__(daemon=True)
        self.installation, self.figures, self.number = installation, installation.figures, number
        self.rng = random.Random(f"{installation.seed} {number}")
        self.client = None
        self.num_sessions = 0
        self.version = ""
        """Of the next session."""

    def run(self):
        while not self.installation.is_over.is_set():
            self.num_sessions += 1
            self.session = f"{self.number}_{self.num_sessions}"
            self.asked, has_left, problem = {}, False, ""
            environment = {**self.installation.env, "DG_TEST_VERSION": self.version}
            command = self.installation.command("lsp", "--daemon", "start")
            self.client = Client(command, environment, self.installation.folder)
            try:
                self._type_and_ask()
                has_left = self.client.leave() == 0
            except Exception as error:  # noqa: BLE001  (what a client does not expect is a figure)
                problem = repr(error)
            has_ended = self.client.has_ended
            self.client.kill()
            self._judge(has_left, has_ended, problem)

    # typing

    def _type_and_ask(self):
        client, rng = self.client, self.rng
        self.model, decoder = rng.choice(MODELS), rng.choice(DECODERS)
        completion = {**PATIENT["completion"], "decoder": decoder, "min_confidence": 0}
        options = {"completion": completion, "context": {"enabled": "never"}, "model": {"name": self.model}}
        client.handshake(options={**options, "editorInfo": EDITOR})
        client.wait_status(lambda status: status["dgLsp"]["state"] in ("ready", "error"))
        self.text = f"# é😋 {self.session}\n"
        self.version_of_text = 1
        client.open(self.text)
        for _ in range(rng.randint(1, MAX_ANSWERS)):
            if not self.installation.is_over.is_set():
                self._type()
                self._complete()

    def _type(self):
        """A part of a program, with names that no other session has."""
        rng, name = self.rng, self.session
        if len(self.text) > LONGEST_TEXT:
            self._replace(0, self.text.find("\n", LONGEST_TEXT // 2) + 1, "")
        if self.text[-1] != "\n" and rng.random() < 0.7:
            self._insert("\n")
        parts = (
            f"def area_{name}(width_{name}, height_{name}):\n    return ",
            f"class Shelf_{name}:\n    def __init__(self, size_{name}):\n        self.size_{name} =",
            f"total_{name} = price_{name} + ",
            f"for word_{name} in words_{name}:\n    ",
            f"é😋_{name} = sum(",
        )
        for piece in rng.choice(parts).splitlines(keepends=True):
            self._insert(piece)
        if rng.random() < 0.2:
            self._replace(len(self.text) - 1, len(self.text), "(")

    def _insert(self, text):
        self._replace(len(self.text), len(self.text), text)

    def _replace(self, start, end, text):
        self.version_of_text += 1
        change = {"range": {"start": self._position(start), "end": self._position(end)}, "text": text}
        self.client.change(self.version_of_text, change)
        self.text = self.text[:start] + text + self.text[end:]

    def _position(self, offset):
        before = self.text[:offset]
        return {"line": before.count("\n"), "character": self.client.units(before[before.rfind("\n") + 1 :])}

    # requests

    def _complete(self):
        """Requests that are cancelled or replaced by the next one, and one whose answer is used."""
        rng = self.rng
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            msg_id = self._ask()
            if rng.random() < 0.5:
                self.client.cancel(msg_id)
            self._insert(rng.choice(" ("))
        items = self.client.items(self._ask())
        self.figures.add("answers")
        if items and rng.random() < 0.7:
            text = items[0]["insertText"]
            is_accepted = rng.random() < 0.5
            # the rest of a suggestion is suggested after its beginning was typed
            self._insert(text if is_accepted else text[: rng.randint(1, len(text))])
            if is_accepted:
                self.client.request("workspace/executeCommand", items[0]["command"])

    def _ask(self):
        kind = self.rng.choice((Client.AUTOMATIC, Client.INVOKED))
        msg_id = self.client.complete(**self._position(len(self.text)), kind=kind)
        self.asked[msg_id] = question = Question(self.model, self.text)
        self.installation.suggested.add(question.suggestion)
        return msg_id

    # the end of a session

    def _judge(self, has_left, has_ended, problem):
        """Counts the answers of a session that has ended, and what was not expected."""
        client, add, name = self.client, self.figures.add, f"session {self.session}"
        may_end = client in self.installation.disturbed
        add("sessions" if has_left else "connections_ended")
        if not has_left and not may_end:
            add("unexpected", f"{name} ended: {problem} {client.stderr}")
        times = Counter(message.get("id") for message in client.messages if "method" not in message)
        for msg_id in set(client.requested) - set(times):
            if has_left or not (has_ended or may_end):
                add("lost", f"{name}, {msg_id}: {problem}")
        for msg_id in times - Counter(client.requested):
            add("unexpected", f"{name}: {times[msg_id]} answers to {msg_id}")
        for line in client.stderr.splitlines():
            add("own_models")
            if not line.endswith(OWN_MODEL):
                add("unexpected", f"{name}: {line}")
        questions = [*self.asked.values()]
        for number, (msg_id, question) in enumerate(self.asked.items()):
            for message in client.answers(msg_id)[:1]:
                self._compare(question, questions[:number], message)

    def _compare(self, question, earlier, message):
        """One answer: an error, or the suggestion for its text, or the rest of an earlier one of the session."""
        add = self.figures.add
        add("messages")
        if "error" in message:
            add("cancelled")
            if message["error"]["code"] not in (Client.CANCELLED, Client.SUPERSEDED):
                add("unexpected", f"session {self.session}: {message['error']}")
            return
        texts = [item["insertText"] for item in message["result"]["items"]]
        add("compared" if texts else "compared_empty")
        right = {question.suggestion, *(rest for one in earlier for rest in one.rests(question.text))}
        for text in set(texts) - right:
            kind = "crossed" if text in self.installation.suggested else "unexpected"
            add(kind, f"session {self.session}: {text} in place of {right} after {question.text[-80:]!r}")


# faults


class Faults:
    """What happens to daemons and clients, every kind once a round."""

    def __init__(self, installation, typists):
        self.installation, self.figures, self.typists = installation, installation.figures, typists
        self.rng = random.Random(f"{installation.seed} faults")
        self.kinds = (
            self.kill_daemon, self.stop_daemon, self.kill_client, self.stop_client,
            self.fill_disk, self.change_version, self.intrude,
        )  # fmt: skip
        self.done = Counter()
        self._round = []
        self._next_at = 0
        self.is_mounted = os.geteuid() == 0 and self._mount()

    def inject(self):
        """The next one, once there were enough answers since the last."""
        if self.figures.counts["answers"] < self._next_at:
            return
        self._round = self._round or self.rng.sample(self.kinds, len(self.kinds))
        fault = self._round.pop()
        fault()
        self.done[fault.__name__] += 1
        self._next_at = self.figures.counts["answers"] + self.rng.randint(*ANSWERS_PER_FAULT)

    def kill_daemon(self):
        self._disturb_all()
        self.installation.for_daemons(psutil.Process.kill)
        self._disturb_all()  # clients that connected meanwhile

    def stop_daemon(self):
        self.installation.for_daemons(psutil.Process.suspend)
        self._wait(*(LONG_PAUSE if self.rng.random() < 0.3 else PAUSE))
        self.installation.for_daemons(psutil.Process.resume)

    def kill_client(self):
        client = self.rng.choice(self.typists).client
        self.installation.disturbed.add(client)
        client.process.kill()

    def stop_client(self):
        """The others go on."""
        with suppress(psutil.Error):
            client = psutil.Process(self.rng.choice(self.typists).client.process.pid)
            client.suspend()
            self._wait(*PAUSE)
            client.resume()

    def fill_disk(self):
        """For the daemon's folder; without a file system of its own, for the daemons that run."""
        with self._full_folder() if self.is_mounted else self._full_daemons():
            if self.rng.random() < 0.5:
                self.kill_daemon()
            self._wait(*PAUSE)

    def change_version(self):
        """One client is updated, or gets the old version back."""
        one = self.rng.choice(self.typists)
        one.version = "" if one.version else OTHER_VERSION

    def intrude(self):
        """Another user, and a program of the same user that does not know the token."""
        if os.geteuid() == 0:
            command = [sys.executable, "-P", "-c", INTRUDER, str(self.installation.endpoint.folder)]
            options = {"env": self.installation.env, "cwd": self.installation.folder, "timeout": PATIENCE}
            done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
            if done.stdout or done.returncode:
                self.figures.add("unexpected", f"another user got {done.stdout} {done.stderr[-300:]}")
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.installation.endpoint.socket_path))
            send(connection, {"token": "x" * 43})
            if (answer := receive(connection)) != {"refused": "the token is wrong"}:
                self.figures.add("unexpected", f"the daemon accepts a wrong token: {answer}")

    def _disturb_all(self):
        self.installation.disturbed.update(one.client for one in self.typists)

    def end(self):
        if self.is_mounted:
            subprocess.run(["umount", self.installation.endpoint.folder], check=True)

    def _wait(self, low, high):
        time.sleep(self.rng.uniform(low, high))

    def _mount(self):
        self.installation.endpoint.prepare()
        options, folder = f"size={DISK_BYTES},mode=700", self.installation.endpoint.folder
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    @contextmanager
    def _full_folder(self):
        path = self.installation.endpoint.folder / "full"
        with path.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(512)):
                pass
        yield
        path.unlink()

    @contextmanager
    def _full_daemons(self):
        _limit_files(self.installation, 0)
        yield
        _limit_files(self.installation, resource.RLIM_INFINITY)


def _limit_files(installation, size):
    limits = size, resource.RLIM_INFINITY
    installation.for_daemons(lambda process: process.rlimit(resource.RLIMIT_FSIZE, limits))


# the campaign


def campaign(figures, folder, seed):
    """Types until there are enough answers and every kind of fault."""
    installation = Installation(figures, folder, seed)
    typists = [Typist(installation, number) for number in range(NUM_TYPISTS)]
    faults = Faults(installation, typists)
    try:
        for typist in typists:
            typist.start()
        wait_until(lambda: all(typist.client for typist in typists))
        while not figures.has_ended("answers") or (figures.most < math.inf and len(faults.done) < len(faults.kinds)):
            faults.inject()
            installation.for_daemons(lambda process: figures.sample(process.memory_info().rss))
            time.sleep(MOMENT)
        installation.is_over.set()
        end = time.monotonic() + PATIENCE
        for typist in typists:
            typist.join(max(0.0, end - time.monotonic()))
            if typist.is_alive():
                figures.add("lost", f"session {typist.session} does not end")
        _check_remains(installation)
    finally:
        installation.is_over.set()
        for process in installation.processes():
            with suppress(psutil.Error):
                process.kill()
        faults.end()
    figures.facts["faults"] = dict(faults.done)


def _check_remains(installation):
    """After the last client and `dg-lsp daemon stop` there is no process, no socket and no lock."""
    add = installation.figures.add
    installation.dg_lsp("daemon", "stop")
    with suppress(AssertionError):
        wait_until(lambda: not [*installation.processes()], seconds=PATIENCE, pause=MOMENT)
    for process in installation.processes():
        add("unexpected", f"a process remains: {process.cmdline()}")
    for path in sorted(installation.endpoint.folder.iterdir()):
        if path.suffix not in (".lock", ".log"):
            add("unexpected", f"the daemon's folder still has {path.name}")
    installation.endpoint.acquire_lock().release()
    for line in installation.endpoint.log.read_text(errors="replace").splitlines():
        add("crashes" if "Fatal Python error" in line else "unexpected", f"log: {line}")
