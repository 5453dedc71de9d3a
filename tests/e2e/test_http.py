"""`python -m dg_lsp serve` in a process of its own, with the bundled model."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from http_server import Client

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0
PATIENT = b"[completion]\ndeadline_ms = 60000\nearly_stop_ms = 0\n"
"""Completions must not depend on the load of the machine."""
GAP = {
    "input_prefix": "class Basket:\n    def __init__(self, owner, items):\n        self.owner = owner\n",
    "prompt": "        self.items = ",
    "input_suffix": "\n\n    def total(self):\n        return sum(self.items)\n",
}


class Process:
    """A server process on a free port, and its standard error."""

    def __init__(self, folder):
        (folder / "dg-lsp.toml").write_bytes(PATIENT)
        self.stderr_path = folder / "stderr.txt"
        with self.stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dg_lsp", "serve", "--port", "0"],
                stderr=stderr,
                stdout=subprocess.PIPE,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive"},
            )

    @property
    def stderr(self):
        return self.stderr_path.read_text()

    def client(self, *, is_waited=True):
        deadline = time.monotonic() + PATIENCE
        wanted = r"ready after" if is_waited else r"listening on http://127\.0\.0\.1:\d+\n"
        while not re.search(wanted, self.stderr):
            assert self.process.poll() is None, self.stderr
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return Client(int(re.search(r":(\d+)\n", self.stderr)[1]))

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path):
    processes = []

    def call():
        processes.append(Process(tmp_path))
        return processes[-1]

    yield call
    for process in processes:
        process.kill()


def test_the_bundled_model_completes_and_is_cached(start):
    process = start()
    client = process.client()
    first, again = (client.post("/infill", GAP).tree for _ in range(2))
    assert first["content"] == again["content"] != ""
    assert first["model"] == "dg-mini"
    assert again["timings"]["cache_n"] > again["timings"]["prompt_n"]
    body = {"prompt": GAP["input_prefix"] + GAP["prompt"], "suffix": GAP["input_suffix"]}
    [choice] = client.post("/v1/completions", body).tree["choices"]
    assert choice["text"] == first["content"]
    assert client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}).status == 501
    assert process.end() == -signal.SIGTERM
    assert re.fullmatch(r"dg-lsp: listening on \S+\ndg-lsp: dg-mini ready after \S+ s\n", process.stderr)
    assert process.process.stdout.read() == b""


def test_concurrent_clients_get_their_own_completions(start):
    """Each completion needs a name that only the buffer of its client has."""
    client = start().client()
    names = [f"{word}_{number}" for word in ("apple", "river", "copper", "window") for number in range(2)]

    def complete(name):
        lines = "".join(f"    print({name}, {number})\n" for number in range(3))
        body = {"input_prefix": f"def f({name}):\n{lines}", "prompt": "    print(", "input_suffix": "\n"}
        return name, client.post("/infill", body)

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(complete, names * 3))
    assert all(reply.status == 200 for _, reply in replies)
    for name, reply in replies:
        others = {other for other in names if other != name}
        assert not [other for other in others if other in reply.tree["content"]]
    assert sum(name in reply.tree["content"] for name, reply in replies) >= len(replies) // 2


def test_ctrl_c_ends_the_server_before_and_after_the_model_loads(start):
    for is_waited in (False, True):
        process = start()
        process.client(is_waited=is_waited)
        assert process.end(signal.SIGINT) in (130, -signal.SIGINT)
        assert "Traceback" not in process.stderr
