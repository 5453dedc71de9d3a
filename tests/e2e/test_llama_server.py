"""The remote backend over a real llama-server that is busy, loading, frozen, killed and started again."""

import itertools
import json
import sys
import time
from pathlib import Path

import pytest
from llama_server import PROGRAM, WHY_NOT, LlamaServer
from remote_models import last_answer, remote_models

from dg_lsp.backends.remote.dialects import RemoteQuery, RemoteTask
from dg_lsp.cli import run
from dg_lsp.context.window import Prompt
from dg_lsp.errors import RemoteError

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)
SAMPLES = Path(__file__).parents[2] / "samples"
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
    """`fresh(*arguments)` -> a server for one test, not started yet."""
    servers = []

    def call(*arguments):
        servers.append(LlamaServer(*arguments))
        return servers[-1]

    yield call
    for server in servers:
        server.kill()


@pytest.fixture
def model_of():
    with remote_models() as call:
        yield call


def query(max_tokens=16, **options):
    return RemoteQuery(RemoteTask.FILL, PROMPT, max_tokens, **options)


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
def test_two_answers_are_kept_apart(served, model_of, api):
    answer = last_answer(model_of(served.url, api=api), query(num_answers=2))
    assert len(answer.texts) == 2
    assert answer.texts[0] != answer.texts[1]


def test_a_chat_is_answered(served, model_of):
    chat = RemoteQuery(RemoteTask.CHAT, Prompt("", ""), 8, messages=(("user", "hello"),))
    answer = last_answer(model_of(served.url, api="chat", extra=ENDLESS), chat)
    assert answer.texts[0]
    assert answer.output_tokens == 8


@pytest.mark.parametrize("api", APIS)
def test_closing_a_stream_stops_the_server(served, model_of, api):
    answers = model_of(served.url, api=api, extra=ENDLESS).stream(query(1900), time.monotonic() + 60)
    while not served.is_busy:
        next(answers)
    answers.close()
    served.wait_idle(10)


def test_a_prompt_that_is_too_long_is_an_error(served, model_of):
    long = RemoteQuery(RemoteTask.FILL, Prompt("x = 1\n" * 20_000, ""), 16)
    with pytest.raises(RemoteError, match=r"lower remote\.max_prompt_tokens"):
        last_answer(model_of(served.url), long)


def test_the_server_requires_its_key(fresh, model_of, monkeypatch):
    server = fresh("--api-key", "sk-sesame-4711")
    server.start()
    server.wait()
    monkeypatch.delenv("DG_LSP_REMOTE_KEY", raising=False)
    with pytest.raises(RemoteError, match="requires a key"):
        last_answer(model_of(server.url), query())
    monkeypatch.setenv("DG_LSP_REMOTE_KEY", "sk-sesame-4711")
    assert last_answer(model_of(server.url), query()).texts


def test_errors_name_the_state_of_a_server_that_starts(fresh, model_of):
    server = fresh()
    model = model_of(server.url)
    messages = set()
    server.start()
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = last_answer(model, query())
        except RemoteError as error:
            messages.add(str(error).partition(" ")[2])
            assert time.monotonic() < deadline
        else:
            break
    assert answer.texts
    assert messages
    assert messages <= {"does not accept connections; is the server running?", "is not ready (status 503)"}


@pytest.mark.parametrize("api", APIS)
def test_a_killed_server_is_an_error_until_it_runs_again(fresh, model_of, api):
    server = fresh()
    server.start()
    server.wait()
    model = model_of(server.url, api=api, extra=ENDLESS)
    answers = model.stream(query(1900), time.monotonic() + 60)
    while not server.is_busy:
        next(answers)
    server.kill()
    with pytest.raises(RemoteError, match="broke the connection"):
        list(answers)
    with pytest.raises(RemoteError, match="does not accept connections"):
        last_answer(model, query())
    server.start()
    server.wait()
    assert last_answer(model, query()).output_tokens


def test_a_frozen_server_gives_no_answer_by_the_deadline(fresh, model_of):
    server = fresh()
    server.start()
    server.wait()
    model = model_of(server.url)
    server.stop()
    assert last_answer(model, query(), seconds=0.3).texts == ()


def test_the_command_line_fills(served, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dg-lsp.toml").write_text('[remote]\napi = "infill"\n')
    assert run(["fill", f"{SAMPLES / 'shapes.py'}:11", "--json", "--remote", served.url]) == 0
    assert "self.radius = radius" in json.loads(capsys.readouterr().out)["text"]


def test_an_editor_sees_a_killed_server_and_its_return(launcher, fresh):
    server = fresh()
    server.start()
    server.wait()
    client = launcher.launch([sys.executable, "-m", "dg_lsp", "lsp", "--remote", server.url])
    fill = {"type_through": False, "speculate": False, "deadline_ms": 60_000}
    client.handshake(
        options={"editorInfo": {"name": "e", "version": "1"}, "completion": fill, "remote": {"api": "infill"}}
    )
    client.open("import os\n\nnumbers = [1, 2, 3]\nfor number in \n    print(number)\n")
    assert client.items(client.complete(3, 14))
    server.stop()
    pending = client.complete(3, 14)
    time.sleep(0.2)  # the request is on its way
    server.kill()
    assert client.items(pending) == []
    client.wait_until(lambda: client.told("didChangeStatus")[-1]["kind"] == "Error")
    server.start()
    server.wait()
    client.wait_until(lambda: client.items(client.complete(3, 14)))
    client.wait_until(lambda: client.told("didChangeStatus")[-1]["kind"] == "Normal")
    assert client.leave() == 0
    client.check()
