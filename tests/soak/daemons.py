"""The campaign of the shared daemon: editors that type while daemons and editors are killed, stopped and starved.

Each `Typist` is a client with a text of its own, as an editor is: it types, requests completions, accepts some, and
connects again when its connection ends. Each answer is compared with that of a fresh engine for the same text. Between
answers `Faults` are injected, every kind once a round, in an order and at moments of the seed.
`python -m soak.daemons --seconds 600`, in tests/ with the project on PYTHONPATH, runs only this campaign.
"""

import argparse
import itertools
import json
import os
import queue
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakSet

import numpy as np
import psutil
from gates import wait_until
from gguf.quants import dequantize
from language_client import Client
from shared_daemon import is_daemon

from dg_lsp.cli.loading import load_file, open_denoiser
from dg_lsp.context.document import Snapshot
from dg_lsp.daemon.client import ask, receive, send
from dg_lsp.daemon.endpoint import Endpoint
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.errors import DaemonError
from dg_lsp.gguf import TENSOR_TYPES
from dg_lsp.models.registry import BUNDLED
from dg_lsp.server.completion import NUM_INVOKED
from dg_lsp.settings import parse_settings
from soak.figures import FAILURES, figures_of
from soak.gguf import File

ROOT = Path(__file__).parents[2]
NUM_TYPISTS, NUM_MODELS = 4, 3
CONTEXT_LENGTH = 16_384
"""Makes each model so large that the limit holds two of them."""
MAX_BYTES = 1 << 30
"""Address space of a daemon."""
MAX_ANSWERS, LONGEST_TEXT = 25, 2000
"""Of a session."""
MAX_KNOWN, MAX_WAITING = 10_000, 200
"""Answers that are remembered, and that wait to be compared; then clients wait too."""
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
REFUSALS = ("of memory",)
KINDS = (
    "wrong",
    "compared",
    "compared_empty",
    "rounded",
    "cancelled",
    "refused",
    "sessions",
    "connections_ended",
    "own_models",
    "models_opened",
    "models_closed",
)
PEAKS = {"daemon": "", "own": "_of_own_models", "pipe": "_of_clients"}
SETTINGS = {
    "completion": {"deadline_ms": 600_000, "early_stop_ms": 0, "min_confidence": 0, "max_tokens": 24},
    "context": {"enabled": "never"},
    "model": {"threads": 1, "gpu_layers": 0, "context_length": CONTEXT_LENGTH},
}
"""An answer depends on text and model only: neither on the load of the machine nor on measured costs."""
PIECES = (0, 1, 4, 16)
"""Sums are rounded otherwise when a prompt is decoded in other pieces, and two tokens may be equally probable."""
DECODERS = ("diffusion", "autoregressive")
VERSIONED = """
import sys, dg_lsp
dg_lsp.__version__ = sys.argv[1]
from dg_lsp import cli
from dg_lsp.cli import servers
servers.DAEMON = (*sys.orig_argv[:5], "daemon", "run")
sys.exit(cli.run(sys.argv[2:]))
"""
"""dg-lsp with another version, as are the daemons that it starts."""
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


def write_models(folder):
    """dg-mini in float32 with other weights: files that complete code, each in its own way."""
    models = []
    for number in range(NUM_MODELS):
        file, rng, body = File.read(BUNDLED[0].path), np.random.default_rng(number), bytearray()
        for tensor in file.tensors:
            name, dimensions, kind, start = tensor
            size = TENSOR_TYPES[kind].num_bytes(dimensions[::-1])
            stored = np.frombuffer(file.body, np.uint8, size, start)
            weights = dequantize(stored.reshape(dimensions[-1], -1) if len(dimensions) > 1 else stored, kind)
            if name.endswith(b"norm.weight"):
                weights = weights * (1 + 0.2 * rng.standard_normal(weights.shape, np.float32))
            tensor[2] = 0
            body += weights.astype(np.float32).tobytes()
            body += bytes(-len(body) % 32)
        path, file.body = folder / f"model-{number}.gguf", body
        path.write_bytes(file.packed())
        models.append(str(path))
    return models


# answers


@dataclass(frozen=True)
class Question:
    """A completion that a session requested."""

    model: str
    decoder: str
    text: str
    offset: int
    num_candidates: int

    @property
    def sides(self):
        return self.text[: self.offset], self.text[self.offset :]

    def after(self, accepted):
        """The question that follows when a suggestion is accepted."""
        before, after = self.sides
        return replace(self, text=before + accepted + after, offset=self.offset + len(accepted))


@dataclass(frozen=True)
class Answer:
    session: str
    question: Question
    earlier: tuple  # questions of the same session
    texts: list


def settings_of(model, decoder):
    """The options that a client sends."""
    completion, runtime = {**SETTINGS["completion"], "decoder": decoder}, {**SETTINGS["model"], "name": model}
    return {**SETTINGS, "completion": completion, "model": runtime}


class Reference:
    """Fresh engines: each question gets a slot that holds nothing."""

    def __init__(self):
        self._engines, self._known, self._clients = {}, {}, itertools.count()

    def candidates(self, question, piece=0):
        """The texts that are shown, and all, which are suggested again when their beginning was typed.

        The last characters of the prompt are decoded by themselves if `piece` is not 0.
        """
        if (question, piece) not in self._known:
            if len(self._known) > MAX_KNOWN:
                self._known.clear()
            client = next(self._clients)
            if piece:
                before, after = question.sides
                self._fill(replace(question, text=before[:-piece] + after, offset=len(before[:-piece])), client)
            self._known[question, piece] = self._fill(question, client)
        return self._known[question, piece]

    def is_right(self, answer, piece=0):
        """Whether the texts are a fresh engine's, or the rests of what it suggested before they were typed."""
        question = answer.question
        if answer.texts == self.candidates(question, piece)[0]:
            return True
        return any(answer.texts == rests for one in answer.earlier for rests in self._rests(one, question, piece))

    def _rests(self, earlier, question, piece):
        """The rests of the suggestions at an earlier question, and of those after the first of them was accepted."""
        states = [earlier, *(earlier.after(text) for text in self.candidates(earlier, piece)[0][:1])]
        now, now_after = question.sides
        for state in states:
            before, after = state.sides
            typed = now[len(before) :]
            if now.startswith(before) and after == now_after:
                rests = [one[len(typed) :] for one in self.candidates(state, piece)[1] if one.startswith(typed)]
                yield [one for one in rests if one.strip()][: question.num_candidates]

    def _fill(self, question, client):
        is_typed = question.num_candidates == 1
        snapshot = Snapshot("file:///fresh.py", client, question.text)
        priority = Priority.TYPED if is_typed else Priority.INVOKED
        request = FillRequest(snapshot, question.offset, question.num_candidates, priority=priority, client=client)
        if is_typed and request.cursor.is_deep_inside_word:
            return [], []
        result = self._engine(question).fill(request, deadline=time.monotonic() + PATIENCE)
        shown = [one.text for one in result.candidates]
        return shown, [*shown, *(one.text for one in result.hidden)]

    def _engine(self, question):
        key = question.model, question.decoder
        if key not in self._engines:
            settings = parse_settings(settings_of(*key))
            denoiser = open_denoiser(load_file(Path(question.model), settings))
            self._engines[key] = LocalEngine(denoiser, denoiser.tokenizer, settings.completion)
        return self._engines[key]

    def close(self):
        for engine in self._engines.values():
            engine.close()


# the folder, its processes and figures


class Campaign:
    """What all clients and faults share. Any thread may count."""

    def __init__(self, folder, seed):
        folder.chmod(0o755)  # only the daemon's own folder keeps others out
        self.folder, self.seed, self.endpoint = folder, seed, Endpoint(folder / "state")
        self.models = write_models(folder)
        self.answers, self.is_over = queue.Queue(MAX_WAITING), threading.Event()
        self.counts, self.examples, self.peaks, self.disturbed = Counter(), [], Counter(), WeakSet()
        """`disturbed` are clients whose connection a fault may end."""
        self._lock, self._open_models = threading.Lock(), (0, set())
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DG_LSP_DAEMON_DIR": str(self.endpoint.folder),
            "DG_LSP_DATA_DIR": str(folder / "data"),
            "DG_LSP_CONFIG_DIR": os.devnull,
            "OMP_WAIT_POLICY": "passive",
            # on a machine of many cores the threads of numpy would fill the address space
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",
        }

    def count(self, kind):
        with self._lock:
            self.counts[kind] += 1

    def fail(self, kind, what):
        self.count(kind)
        self.examples.append(f"{kind}: {what}"[:500])

    def command(self, *arguments, version=""):
        """dg-lsp with the limit of memory."""
        python = [sys.executable, "-P", *(["-c", VERSIONED, version] if version else ["-m", "dg_lsp"])]
        return ["sh", "-c", f'ulimit -v {MAX_BYTES >> 10}; exec "$@"', "sh", *python, *arguments]

    def run(self, command):
        """The outcome of a command."""
        how = {"env": self.env, "cwd": self.folder, "timeout": PATIENCE}
        return subprocess.run(command, capture_output=True, text=True, check=False, **how)

    def processes(self):
        """Servers of the campaign: daemons, editors' processes, and their children."""
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                is_ours = one.environ().get("DG_LSP_DAEMON_DIR") == str(self.endpoint.folder)
                if is_ours and one.status() != psutil.STATUS_ZOMBIE:
                    yield one

    def daemons(self):
        found = []
        for one in self.processes():
            with suppress(psutil.Error):
                found += [one] * is_daemon(one.cmdline())
        return found

    def sample(self):
        """Records the resident memory of each kind of process, and which models daemons open and close."""
        for one in self.processes():
            with suppress(psutil.Error):
                is_pipe = any(part.endswith("pipe.py") for part in one.cmdline())
                kind = "daemon" if is_daemon(one.cmdline()) else "pipe" if is_pipe else "own"
                self.peaks[kind] = max(self.peaks[kind], one.memory_info().rss)
        with suppress(DaemonError):
            if (facts := ask(self.endpoint, "status")) is not None:
                models = {one["model"] for one in facts["models"] if one["state"] == "ready"}
                pid, before = self._open_models
                self.counts["models_opened"] += len(models - before if pid == facts["pid"] else models)
                self.counts["models_closed"] += len(before - models) if pid == facts["pid"] else 0
                self._open_models = facts["pid"], models


class Typist(threading.Thread):
    """One client after another, each with a text of its own, under the same name as those of the others."""

    def __init__(self, campaign, number):
        super().__init__(daemon=True)
        self.campaign, self.number = campaign, number
        self.rng = random.Random(f"{campaign.seed} {number}")
        self.client, self.num_sessions = None, 0
        self.version = ""
        """Of the next session."""

    def run(self):
        while not self.campaign.is_over.is_set():
            self.num_sessions += 1
            self.session = f"{self.number}_{self.num_sessions}"
            self.asked, has_left, problem = [], False, ""
            command = self.campaign.command("lsp", "--daemon", "start", version=self.version)
            self.client = Client(command, self.campaign.env, self.campaign.folder)
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
        self.model, self.decoder = rng.choice(self.campaign.models), rng.choice(DECODERS)
        client.handshake(options={**settings_of(self.model, self.decoder), "editorInfo": EDITOR})
        client.wait_status(lambda status: status["dgLsp"]["state"] in ("ready", "error"))
        self.text, self.version_of_text = f"# é😋 {self.session}\n", 1
        client.open(self.text)
        for _ in range(rng.randint(1, MAX_ANSWERS)):
            if not self.campaign.is_over.is_set():
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
            self._replace(len(self.text) - 1, len(self.text), "")

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
            self._insert(rng.choice("abc "))
        items = self.client.items(self._ask())
        self.campaign.count("answers")
        if items and rng.random() < 0.7:
            text = items[0]["insertText"]
            is_accepted = rng.random() < 0.5
            # the rest of a suggestion is suggested after its beginning was typed
            self._insert(text if is_accepted else text[: rng.randint(1, len(text))])
            if is_accepted:
                self.client.request("workspace/executeCommand", items[0]["command"])

    def _ask(self):
        # the second and third candidates of a canvas are drawn: they depend on the last bit of a probability
        kinds = (Client.AUTOMATIC,) if self.decoder == "diffusion" else (Client.AUTOMATIC, Client.INVOKED)
        kind = self.rng.choice(kinds)
        at = self._position(len(self.text))
        msg_id = self.client.complete(**at, kind=kind)
        num_candidates = NUM_INVOKED if kind == Client.INVOKED else 1
        self.asked.append((msg_id, Question(self.model, self.decoder, self.text, len(self.text), num_candidates)))
        return msg_id

    # the end of a session

    def _judge(self, has_left, has_ended, problem):
        """Counts the answers of a session that has ended, and what was not expected."""
        client, fail, name = self.client, self.campaign.fail, f"session {self.session}"
        may_end = client in self.campaign.disturbed
        self.campaign.count("sessions" if has_left else "connections_ended")
        if not has_left and not may_end:
            fail("unexpected", f"{name} ended: {problem} {client.stderr}")
        times = Counter(one.get("id") for one in client.messages if "method" not in one)
        for msg_id in set(client.requested) - set(times):
            if has_left or not (has_ended or may_end):
                fail("lost", f"{name}, {msg_id}: {problem}")
        for msg_id in times - Counter(client.requested):
            fail("unexpected", f"{name}: {times[msg_id]} answers to {msg_id}")
        for line in client.stderr.splitlines():
            self.campaign.count("own_models")
            if not line.endswith(OWN_MODEL):
                fail("unexpected", f"{name}: {line}")
        for number, (msg_id, question) in enumerate(self.asked):
            earlier = tuple(one for _, one in self.asked[:number])
            for message in client.answers(msg_id)[:1]:
                self._sort(question, earlier, message)

    def _sort(self, question, earlier, message):
        """One answer: an error, nothing because the model was refused, or texts to compare."""
        states = [one["dgLsp"]["state"] for one in self.client.received("didChangeStatus")]
        self.campaign.count("messages")
        if "error" in message:
            is_known = message["error"]["code"] in (Client.CANCELLED, Client.SUPERSEDED)
            self.campaign.count("cancelled")
            if not is_known:
                self.campaign.fail("unexpected", f"session {self.session}: {message['error']}")
        elif "error" in states:
            [reason] = [one["message"] for one in self.client.received("window/showMessage")]
            self.campaign.count("refused")
            if not any(part in reason for part in REFUSALS) or message["result"]["items"]:
                self.campaign.fail("unexpected", f"session {self.session}: {reason} {message}")
        else:
            texts = [item["insertText"] for item in message["result"]["items"]]
            self.campaign.answers.put(Answer(self.session, question, earlier, texts))


# faults


class Faults:
    """What happens to daemons and clients, every kind once a round."""

    def __init__(self, campaign, typists):
        self.campaign, self.typists = campaign, typists
        self.rng = random.Random(f"{campaign.seed} faults")
        self.kinds = (
            self.kill_daemon, self.stop_daemon, self.kill_client, self.stop_client,
            self.fill_disk, self.change_version, self.intrude,
        )  # fmt: skip
        self.done, self._round, self.next_at = Counter(), [], 0
        self.is_mounted = os.geteuid() == 0 and self._mount()

    def inject(self):
        """The next one, once there were enough answers since the last."""
        if self.campaign.counts["answers"] < self.next_at:
            return
        self._round = self._round or self.rng.sample(self.kinds, len(self.kinds))
        fault = self._round.pop()
        fault()
        self.done[fault.__name__] += 1
        self.next_at = self.campaign.counts["answers"] + self.rng.randint(*ANSWERS_PER_FAULT)

    def kill_daemon(self):
        self._disturb_all()
        for one in self.campaign.daemons():
            with suppress(psutil.Error):
                one.kill()
        self._disturb_all()  # clients that connected meanwhile

    def stop_daemon(self):
        stopped = self.campaign.daemons()
        for one in stopped:
            with suppress(psutil.Error):
                one.suspend()
        self._wait(*LONG_PAUSE) if self.rng.random() < 0.3 else self._wait(*PAUSE)
        for one in stopped:
            with suppress(psutil.Error):
                one.resume()

    def kill_client(self):
        client = self.rng.choice(self.typists).client
        self.campaign.disturbed.add(client)
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
            done = self.campaign.run([sys.executable, "-P", "-c", INTRUDER, str(self.campaign.endpoint.folder)])
            if done.stdout or done.returncode:
                self.campaign.fail("unexpected", f"another user got {done.stdout} {done.stderr[-300:]}")
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.campaign.endpoint.socket_path))
            send(connection, {"token": "x" * 43})
            if (answer := receive(connection)) != {"refused": "the token is wrong"}:
                self.campaign.fail("unexpected", f"the daemon accepts a wrong token: {answer}")

    def _disturb_all(self):
        self.campaign.disturbed.update(one.client for one in self.typists)

    def end(self):
        if self.is_mounted:
            subprocess.run(["umount", self.campaign.endpoint.folder], check=True)

    def _wait(self, low, high):
        time.sleep(self.rng.uniform(low, high))

    def _mount(self):
        self.campaign.endpoint.prepare()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", self.campaign.endpoint.folder]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    @contextmanager
    def _full_folder(self):
        path = self.campaign.endpoint.folder / "full"
        with path.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(512)):
                pass
        yield
        path.unlink()

    @contextmanager
    def _full_daemons(self):
        limited = [one.pid for one in self.campaign.daemons()]
        _limit_files(limited, 0)
        yield
        _limit_files(limited, resource.RLIM_INFINITY)


def _limit_files(pids, size):
    for pid in pids:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


# the campaign


class Judge:
    """Compares answers with those of fresh engines."""

    def __init__(self, campaign):
        self._campaign, self._reference = campaign, Reference()
        self._right = set()
        """Texts that were right elsewhere, with their models."""

    def compare(self, *, is_last=False):
        """The answers so far, for a moment; the last time all of them."""
        end = time.monotonic() + MOMENT
        with suppress(queue.Empty):
            while is_last or time.monotonic() < end:
                self._compare(self._campaign.answers.get_nowait())

    def _compare(self, answer):
        key = (answer.question.model, *answer.texts)
        piece = next((piece for piece in PIECES if self._reference.is_right(answer, piece)), None)
        if piece is not None:
            self._campaign.count("rounded" if piece else "compared" if answer.texts else "compared_empty")
            self._right.add(key)
            return
        question, (known, _) = answer.question, self._reference.candidates(answer.question)
        kind = "crossed" if answer.texts and key in self._right else "wrong"
        what = f"{answer.texts} in place of {known} at {question.sides[0][-80:]!r}, {question.decoder}"
        self._campaign.fail(kind, f"session {answer.session}: {what}")

    def close(self):
        self._reference.close()


def run(seconds, seed, most=float("inf")):
    """Types for some seconds, or until there are so many answers and every kind of fault; returns the figures."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dg-soak-") as name:
        campaign = Campaign(Path(name), seed)
        typists = [Typist(campaign, number) for number in range(NUM_TYPISTS)]
        faults, judge = Faults(campaign, typists), Judge(campaign)
        try:
            for one in typists:
                one.start()
            wait_until(lambda: all(one.client for one in typists))
            while time.monotonic() - start < seconds:
                if campaign.counts["answers"] >= most and len(faults.done) == len(faults.kinds):
                    break
                faults.inject()
                campaign.sample()
                judge.compare()
                time.sleep(MOMENT)
            campaign.is_over.set()
            end = time.monotonic() + PATIENCE
            while any(one.is_alive() for one in typists) and time.monotonic() < end:
                judge.compare()
                time.sleep(MOMENT)
            for one in typists:
                if one.is_alive():
                    campaign.fail("lost", f"session {one.session} does not end")
            judge.compare(is_last=True)
            _check_remains(campaign)
        finally:
            campaign.is_over.set()
            judge.close()
            for one in campaign.processes():
                with suppress(psutil.Error):
                    one.kill()
            faults.end()
    counts = {kind: campaign.counts[kind] for kind in (*FAILURES, *KINDS)}
    counts["unexpected"] += counts["wrong"]
    peaks = {f"peak_mib{suffix}": round(campaign.peaks[kind] / (1 << 20), 1) for kind, suffix in PEAKS.items()}
    more = {"faults": dict(faults.done), **peaks, "examples": campaign.examples}
    return figures_of(start, seed, campaign.counts["messages"], **counts, **more)


def _check_remains(campaign):
    """After the last client and `dg-lsp daemon stop` there is no process, no socket and no lock."""
    campaign.run(campaign.command("daemon", "stop"))
    with suppress(AssertionError):
        wait_until(lambda: not [*campaign.processes()], seconds=PATIENCE, pause=MOMENT)
    for one in campaign.processes():
        campaign.fail("unexpected", f"a process remains: {one.cmdline()}")
    folder = campaign.endpoint.folder
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".lock", ".log"):
            campaign.fail("unexpected", f"the daemon's folder still has {path.name}")
    campaign.endpoint.acquire_lock().release()
    log = campaign.endpoint.log.read_text(errors="replace")
    campaign.counts["crashes"] += log.count("Fatal Python error")
    for line in log.splitlines():
        campaign.fail("unexpected", f"log: {line}")


def main():
    parser = argparse.ArgumentParser(description="Types through a shared daemon that fails; prints figures as JSON.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=float, default=float("inf"), help="answers after which it ends")
    given = parser.parse_args()
    figures = run(given.seconds, given.seed, given.most)
    print(json.dumps(figures, indent=2, ensure_ascii=False))
    return 1 if any(figures[kind] for kind in FAILURES) else 0


if __name__ == "__main__":
    sys.exit(main())
