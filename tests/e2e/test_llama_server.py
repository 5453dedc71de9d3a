"""The remote backend over a real llama-server that is busy, loading, frozen, killed and started again."""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import httpx2
import pytest
from gates import wait_until
from remote_models import last_answer, remote_models

from dg_lsp.backends.remote.dialects import RemoteQuery, RemoteTask
from dg_lsp.context.window import Prompt
from dg_lsp.models.registry import locate

VARIABLE = "DG_LSP_LLAMA_SERVER"
PROGRAM = os.environ.get(VARIABLE) or shutil.which("llama-server")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"no llama-server on PATH or in {VARIABLE}")
TIMEOUT = 60
PROMPT = Prompt("def area(w, h):\n    return ", "\n\n\ndef name():\n    pass\n", path="shapes.py", language="python")
ENDLESS = '{"ignore_eos": true}'
APIS = ("completions", "infill", "chat")


class LlamaServer:
    """A real llama-server with the bundled model; a restart keeps the port."""

    def __init__(self, *arguments):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        # the prompt of the bundled model starts with the suffix; builds by GCC crash with weights packed for AMX
        plain = ["--threads", "1", "--ctx-size", "4096", "--parallel", "2", "--spm-infill", "--no-repack"]
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--model", str(locate("dg-mini"))]
        self._command = [PROGRAM, *where, *plain, *arguments]
        self._process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        """Returns before the model is loaded."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait(self):
        wait_until(self._is_ready, "llama-server is not ready", seconds=TIMEOUT)
        return self

    def _is_ready(self):
        assert self._process.poll() is None, "llama-server has ended"
        return self._get("/health") is not None

    @property
    def is_busy(self):
        return any(slot["is_processing"] for slot in self._get("/slots"))

    def stop(self):
        """Freezes the process; its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self):
        """Kills the process. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT)

    def _get(self, path):
        try:
            reply = httpx2.get(self.url + path, timeout=TIMEOUT, trust_env=False)
        except httpx2.TransportError:
            return None
        return reply.json() if reply.status_code == 200 else None


@pytest.fixture(scope="module")
def served():
    server = LlamaServer()
    server.start()
    yield server.wait()
    server.kill()


@pytest.fixture
def fresh():
    """A server for one test, not started yet."""
    server = LlamaServer()
    yield server
    server.kill()


@pytest.fixture
def model_of():
    with remote_models() as call:
        yield call


def query(max_tokens=16):
    return RemoteQuery(RemoteTask.FILL, PROMPT, max_tokens)


@pytest.mark.parametrize("api", APIS)
def test_an_answer_is_streamed_and_has_counts(served, model_of, api):
    model = model_of(served.url, api=api, extra=ENDLESS)
    texts = [answer.texts[0] for answer in model.stream(query(), time.monotonic() + 60) if answer.texts]
    answer = last_answer(model, query())
    assert len(set(texts)) > (1 if api == "chat" else 4)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts if api != "chat" else []))
    assert answer.prompt_tokens > answer.cached_tokens > 0  # the same prompt again
    assert answer.output_tokens == (16 if api != "chat" else 16 + 64)
    assert not answer.is_finished


@pytest.mark.parametrize("api", APIS)
def test_closing_a_stream_stops_the_server(served, model_of, api):
    answers = model_of(served.url, api=api, extra=ENDLESS).stream(query(1900), time.monotonic() + 60)
    while not served.is_busy:
        next(answers)
    answers.close()
    wait_until(lambda: not served.is_busy, "a slot still computes", seconds=10)


def test_an_editor_sees_a_killed_server_and_its_return(launcher, fresh):
    server = fresh
    server.start()
    server.wait()
    client = launcher.launch([sys.executable, "-m", "dg_lsp", "lsp", "--remote", server.url])
    options = {"editorInfo": {"name": "e", "version": "1"}, "remote": {"api": "infill"}}
    text = "import os\n\nnumbers = [1, 2, 3]\nfor number in \n    print(number)\n"
    client.begin(text, completion={"speculate": False, "deadline_ms": 60_000}, **options)
    assert client.items(client.complete(3, 14))
    server.stop()
    pending = client.complete(3, 14)
    time.sleep(0.2)  # the request is on its way
    server.kill()
    assert client.items(pending) == []
    client.wait_status(lambda status: status["kind"] == "Error")
    server.start()
    server.wait()
    client.wait_until(lambda: client.texts(3, 14))
    client.wait_status(lambda status: status["kind"] == "Normal")
    client.check()
