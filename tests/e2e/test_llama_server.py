"""A real llama-server behind the remote backend: asked in each way, left, loading, killed and started again."""

import itertools
import json
import sys
import time
from pathlib import Path

import pytest
from llama_server import PROGRAM, WHY_NOT, LlamaServer
from remote_models import remote_models

from dg_lsp.cli import run
from dg_lsp.context.asking import Asking, Task
from dg_lsp.context.window import Prompt
from dg_lsp.errors import RemoteError

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)
SAMPLES = Path(__file__).parents[2] / "samples"
PROMPT = Prompt("def area(w, h):\n    return ", "\n\n\ndef name():\n    pass\n", path="shapes.py", language="python")
ENDLESS = '{"ignore_eos": true}'
APIS = ("completions", "infill", "chat")
TURNS = (("user", "hello"),)


@pytest.fixture(scope="module")
def served():
    server = LlamaServer()
    server.start()
    yield server.wait()
    server.kill()


@pytest.fixture
def fresh():
    """`fresh(*arguments)` -> a server of the test's own, not started yet."""
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


def asking(num_tokens=16, **more):
    return Asking(Task.FILL, PROMPT, num_tokens, **more)


def ask(model, one, seconds=60.0):
    return list(model.ask(one, time.monotonic() + seconds))[-1]


@pytest.mark.parametrize("api", APIS)
def test_it_streams_and_counts(served, model_of, api):
    model = model_of(served.url, api=api, extra=ENDLESS)
    seen = [said.texts[0] for said in model.ask(asking(), time.monotonic() + 60) if said.texts]
    said = ask(model, asking())
    assert len(set(seen)) > (1 if api == "chat" else 4)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen if api != "chat" else []))
    assert said.prompt_tokens > said.cached_tokens > 0  # it was asked before
    assert said.output_tokens == (16 if api != "chat" else 16 + 64)
    assert not said.is_ended


@pytest.mark.parametrize("api", APIS)
def test_two_answers_are_kept_apart(served, model_of, api):
    said = ask(model_of(served.url, api=api), asking(num_answers=2))
    assert len(said.texts) == 2
    assert said.texts[0] != said.texts[1]


def test_a_conversation_is_answered(served, model_of):
    said = ask(model_of(served.url, api="chat", extra=ENDLESS), Asking(Task.CHAT, Prompt("", ""), 8, turns=TURNS))
    assert said.texts[0]
    assert said.output_tokens == 8


@pytest.mark.parametrize("api", APIS)
def test_who_leaves_stops_it(served, model_of, api):
    answers = model_of(served.url, api=api, extra=ENDLESS).ask(asking(1900), time.monotonic() + 60)
    while not served.is_busy:
        next(answers)
    answers.close()
    served.wait_idle(10)


def test_a_stale_answer_does_not_delay_the_newest(fresh, model_of):
    """One slot, so that whoever comes next has to wait for whoever is inside."""
    server = fresh("--parallel", "1")
    server.start()
    server.wait()
    model = model_of(server.url, extra=ENDLESS)
    began = time.monotonic()
    ask(model, asking(600))
    whole = time.monotonic() - began
    times = []
    for number in range(3):
        stale = model.ask(asking(600, session=f"{number}"), time.monotonic() + 60)
        while not server.is_busy:
            next(stale)
        stale.close()
        began = time.monotonic()
        ask(model, asking(1))
        times.append(time.monotonic() - began)
    assert min(times) < whole / 4


def test_a_prompt_that_is_too_long_is_told(served, model_of):
    long = Asking(Task.FILL, Prompt("x = 1\n" * 20_000, ""), 16)
    with pytest.raises(RemoteError, match=r"lower remote\.max_prompt_tokens"):
        ask(model_of(served.url), long)


def test_a_key_is_wanted(fresh, model_of, monkeypatch):
    server = fresh("--api-key", "sk-sesame-4711")
    server.start()
    server.wait()
    monkeypatch.delenv("DG_LSP_REMOTE_KEY", raising=False)
    with pytest.raises(RemoteError, match="wants a key"):
        ask(model_of(server.url), asking())
    monkeypatch.setenv("DG_LSP_REMOTE_KEY", "sk-sesame-4711")
    assert ask(model_of(server.url), asking()).texts


def test_while_it_starts_and_loads_that_is_told(fresh, model_of):
    server = fresh()
    model = model_of(server.url)
    complaints = set()
    server.start()
    deadline = time.monotonic() + 60
    while True:
        try:
            said = ask(model, asking())
        except RemoteError as error:
            complaints.add(str(error).partition(": ")[2])
            assert time.monotonic() < deadline
        else:
            break
    assert said.texts
    assert complaints <= {"nobody answers there; is the server running?", "it is not ready (status 503)"}
    assert complaints


@pytest.mark.parametrize("api", APIS)
def test_killed_in_the_middle_and_started_again(fresh, model_of, api):
    server = fresh()
    server.start()
    server.wait()
    model = model_of(server.url, api=api, extra=ENDLESS)
    answers = model.ask(asking(1900), time.monotonic() + 60)
    while not server.is_busy:
        next(answers)
    server.kill()
    with pytest.raises(RemoteError, match="the connection broke"):
        list(answers)
    with pytest.raises(RemoteError, match="nobody answers there"):
        ask(model, asking())
    server.start()
    server.wait()
    assert ask(model, asking()).output_tokens


def test_what_is_frozen_is_nothing_in_time(fresh, model_of):
    server = fresh()
    server.start()
    server.wait()
    model = model_of(server.url)
    server.stop()
    began = time.monotonic()
    assert ask(model, asking(), seconds=0.3).texts == ()
    assert time.monotonic() - began < 10


def test_the_command_line_fills(served, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dg-lsp.toml").write_text('[remote]\napi = "infill"\n')
    assert run(["fill", f"{SAMPLES / 'shapes.py'}:11", "--json", "--remote", served.url]) == 0
    assert "self.radius = radius" in json.loads(capsys.readouterr().out)["text"]


def test_an_editor_sees_it_die_and_come_back(launcher, fresh):
    server = fresh()
    server.start()
    server.wait()
    client = launcher.launch([sys.executable, "-m", "dg_lsp", "lsp", "--remote", server.url])
    fill = {"type_through": False, "speculate": False, "deadline_ms": 60_000}
    client.handshake(
        options={
            "editorInfo": {"name": "e", "version": "1"},
            "fill": fill,
            "remote": {"api": "infill", "retries": 0, "pause_ms": 100.0},
        }
    )
    client.open("import os\n\nnumbers = [1, 2, 3]\nfor number in \n    print(number)\n")
    assert client.items(client.complete(3, 14))
    server.stop()
    asked = client.complete(3, 14)
    time.sleep(0.2)  # on its way
    server.kill()
    assert client.items(asked) == []
    client.wait_until(lambda: client.told("didChangeStatus")[-1]["kind"] == "Error")
    server.start()
    server.wait()
    client.wait_until(lambda: client.items(client.complete(3, 14)))
    client.wait_until(lambda: client.told("didChangeStatus")[-1]["kind"] == "Normal")
    assert client.leave() == 0
    client.check()
