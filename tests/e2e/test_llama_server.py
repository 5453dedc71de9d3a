"""The remote backend over a real llama-server that is busy, loading, frozen, killed and started again."""

import itertools
import sys
import time

import pytest
from llama_server import PROGRAM, WHY_NOT, LlamaServer
from remote_models import last_answer, remote_models

from dg_lsp.backends.remote.dialects import RemoteQuery, RemoteTask
from dg_lsp.context.window import Prompt

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)
PROMPT = Prompt("def area(w, h):\n    return ", "\n\n\ndef name():\n    pass\n", path="shapes.py", language="python")
ENDLESS = '{"ignore_eos": true}'
APIS = ("completions", "infill", "chat")


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
    served.wait_idle(10)


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
