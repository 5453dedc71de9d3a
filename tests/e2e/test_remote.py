"""The command line, the HTTP server and the language server over `dg-lsp serve` with the bundled model."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from gates import free_port
from http_server import Client, Starter
from language_client import ThreadClient
from lying_server import LyingServer, reply

from dg_lsp.cli import loading, run
from dg_lsp.settings import parse_settings

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture(scope="module")
def served():
    """The address of a server with the bundled model."""
    with closing(Starter()) as starter:
        yield f"http://127.0.0.1:{starter(open_engine=loading.open_engine).port}"


@pytest.fixture
def home(tmp_path, monkeypatch, user_settings):
    """`home(api="infill")` writes the user's settings file."""
    monkeypatch.chdir(tmp_path)

    def call(**remote):
        lines = ["[remote]", *(f"{key} = {json.dumps(value)}" for key, value in remote.items())]
        user_settings("\n".join(lines))

    return call


def printed(capsys, *arguments):
    code = run([*map(str, arguments)])
    return code, json.loads(capsys.readouterr().out)


def test_a_failing_server_is_an_error_of_one_line(served, home, capsys):
    home(api="chat")
    stopped = f"http://127.0.0.1:{free_port()}"
    for url, message in ((served, "status 501"), (stopped, f"{stopped[7:]} does not accept connections")):
        assert run(["fill", f"{SAMPLES / 'shapes.py'}:11", "--remote", url]) == 3
        [line] = capsys.readouterr().err.splitlines()
        assert message in line


@pytest.mark.parametrize("api", ["completions", "infill"])
def test_a_remote_fill_equals_the_local_one(served, home, capsys, api):
    home(api=api)
    position = f"{SAMPLES / 'words.py'}:23:12"
    code, local = printed(capsys, "fill", position, "--json")
    assert code == 0
    code, remote = printed(capsys, "fill", position, "--json", "--remote", served)
    assert (code, remote["model"]) == (0, "dg-mini")
    assert remote["text"] == local["text"]
    assert remote["prompt_tokens"] > 0


def test_a_remote_fill_does_not_import_llama_cpp(served, home):
    arguments = ["fill", f"{SAMPLES / 'words.py'}:23:12", "--remote", served]
    code = f"import sys; from dg_lsp.cli import run; sys.exit(run({arguments}) or 'llama_cpp' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(SAMPLES.parent)}
    assert subprocess.run([sys.executable, "-P", "-c", code], env=env, check=False).returncode == 0


def test_the_doctor_fills_through_the_server(served, home, capsys):
    code, report = printed(capsys, "doctor", "--remote", served, "--json")
    assert (code, report["problems"], report["runtime"]) == (0, [], None)
    assert (report["model"]["url"], report["model"]["api"]) == (served, "completions")
    assert report["fill"]["text"]
    server = LyingServer(reply("<html>", kind="text/html"))
    code, report = printed(capsys, "doctor", "--remote", server.url, "--json")
    server.close()
    assert code == 3
    assert "content of type text/html" in report["problems"][0]


def test_an_http_server_forwards_to_another_one(served):
    text = (SAMPLES / "inventory.py").read_text()
    cut = text.index("\n", 300)
    body = {"input_prefix": text[:cut], "input_suffix": text[cut:], "n_predict": 32}
    direct = Client(int(served.rpartition(":")[2]))
    with closing(Starter()) as start:
        client = start(open_engine=loading.open_engine, remote={"url": served, "api": "infill"})
        assert client.post("/infill", body).tree["content"] == direct.post("/infill", body).tree["content"]
        assert client.get("/v1/models").tree["data"][0]["id"].startswith("127.0.0.1")
        assert client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}).status == 501


def choice(text):
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]})


EAGER = {"speculate": False, "deadline_ms": 60_000}


@pytest.fixture
def edit():
    """`edit(server, text, **options)` -> a session of an editor whose completions come from the server."""
    opened = []

    def call(server, text="secret_text = ", **options):
        client = ThreadClient(loading.open_engine, parse_settings({"remote": {"url": server.url}}))
        opened.append((client.begin(text, **{"completion": EAGER, **options}), server))
        return client

    yield call
    for client, server in opened:
        client.check()
        client.kill()
        server.close()


@pytest.mark.parametrize(
    ("response", "message"),
    [
        pytest.param(reply("<html>", kind="text/html"), "content of type text/html", id="invalid response"),
        pytest.param(b"", "broke the connection", id="lost connection"),
    ],
)
def test_an_editor_sees_a_failing_server_once_and_its_recovery(edit, response, message):
    server = LyingServer(reply(choice("total")), *[response] * 3, reply(choice("total")))
    client = edit(server, editorInfo={"name": "e", "version": "1"})
    assert client.texts(0, 14) == ["total"]
    client.change(2, {"text": "secret_text_2 = "})  # the suggestion is kept for the first text
    # before the fourth request the circuit breaker opens: nothing is sent
    assert [client.texts(0, 16) for _ in range(4)] == [[]] * 4
    assert len(server.requests) == 1 + 3
    assert message in client.wait_status(lambda status: status["kind"] == "Error")["message"]
    client.wait_until(lambda: client.texts(0, 16))
    client.wait_log("the server answers again")
    client.wait_status(lambda status: status["kind"] == "Normal")
    [failure] = client.logged("fill failed")
    assert message in failure
    assert client.logged("secret_text") == []


def test_the_status_names_the_languages_of_a_server_before_its_first_answer(edit):
    server = LyingServer(reply(choice("total")), models=reply("{}", dg_lsp_languages="python"))
    client = edit(server, editorInfo={"name": "e", "version": "1"})
    client.wait_log("ready after")
    client.open("x := ", "file:///x.go", "go")
    assert client.texts(0, 5, uri="file:///x.go") == []
    assert "knows Python only" in client.wait_status(lambda status: status["kind"] == "Inactive")["message"]
    assert server.requests == []
