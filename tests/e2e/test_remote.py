"""The command line and the language server, asking `dg-lsp serve` with the bundled model over a real socket."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from http_server import Client, Starter
from lying_server import LyingServer, endless, events, reply, silent

from dg_lsp.cli import loading, run
from dg_lsp.engine.audit import AuditRecord

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture(scope="module")
def served():
    """Where a server with the bundled model is."""
    starter = Starter()
    client = starter(open_engine=loading.open_engine)
    yield f"http://127.0.0.1:{client.port}"
    starter.stop()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with a settings file: `home(api="infill")`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def call(**remote):
        lines = ["[remote]", *(f"{key} = {json.dumps(value)}" for key, value in remote.items())]
        (tmp_path / "dg-lsp.toml").write_text("\n".join(lines))

    return call


def printed(capsys, *arguments):
    code = run([*map(str, arguments)])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("api", ["completions", "infill"])
def test_a_fill_is_what_the_server_would_say(served, home, capsys, api):
    home(api=api)
    place = f"{SAMPLES / 'shapes.py'}:11"
    code, here = printed(capsys, "fill", place, "--json")
    assert code == 0
    code, there = printed(capsys, "fill", place, "--json", "--remote", served)
    assert (code, there["model"]) == (0, "dg-mini")
    assert there["text"] == here["text"]
    assert there["prompt_tokens"] > 0


def test_a_rewrite_is_written(served, home, capsys, tmp_path):
    source = tmp_path / "shapes.py"
    source.write_text((SAMPLES / "shapes.py").read_text())
    code = run(["rewrite", f"{source}:13-13", "--remote", served, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code == (1 if said["rejected"] else 0)
    assert said["model"] == "dg-mini"


def test_a_chat_that_the_server_cannot_have_is_one_line(served, home, capsys):
    home(api="chat")
    assert run(["fill", f"{SAMPLES / 'shapes.py'}:11", "--remote", served]) == 3
    [line] = capsys.readouterr().err.splitlines()
    assert "status 501" in line


def test_a_server_that_is_gone_is_one_line(home, capsys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert run(["fill", f"{SAMPLES / 'shapes.py'}:11", "--remote", f"http://127.0.0.1:{port}"]) == 3
    [line] = capsys.readouterr().err.splitlines()
    assert f"127.0.0.1:{port}: nobody answers there" in line


def test_the_doctor_asks_the_server(served, home, capsys):
    code, said = printed(capsys, "doctor", "--remote", served, "--json")
    assert (code, said["problems"], said["runtime"]) == (0, [], None)
    assert (said["model"]["url"], said["model"]["api"]) == (served, "completions")
    assert said["fill"]["text"]
    server = LyingServer(reply("<html>", kind="text/html"))
    code, said = printed(capsys, "doctor", "--remote", server.url, "--json")
    server.close()
    assert code == 3
    assert "a page of text/html" in said["problems"][0]


def test_a_folder_may_not_say_where_its_code_goes(served, home, capsys, tmp_path, monkeypatch):
    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path / "repository")
    for table in (f'backend = "remote"\n[remote]\nurl = "{served}"\n', '[audit]\npath = "x"\n'):
        (tmp_path / "repository" / "dg-lsp.toml").write_text(table)
        assert run(["fill", f"{SAMPLES / 'shapes.py'}:11"]) == 2
        assert "must not say" in capsys.readouterr().err


@pytest.fixture
def start():
    starter = Starter()
    yield starter
    starter.stop()


def remote_to(url, **remote):
    return {"backend": "remote", "remote": {"url": url, "retries": 0, **remote}}


def test_a_server_may_stand_before_a_server(served, start):
    client = start(open_engine=loading.open_engine, **remote_to(served, api="infill"))
    text = (SAMPLES / "inventory.py").read_text()
    cut = text.index("\n", 300)
    body = {"input_prefix": text[:cut], "input_suffix": text[cut:], "n_predict": 32}
    direct = Client(int(served.rpartition(":")[2]))
    assert client.post("/infill", body).tree["content"] == direct.post("/infill", body).tree["content"]
    assert client.get("/v1/models").tree["data"][0]["id"].startswith("127.0.0.1")
    assert client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}).status == 501


def test_warm_ups_are_nobodys_failures(start):
    """Plugins send one each second or so; nothing can be decoded ahead on a server that is asked by completions."""
    server = LyingServer(reply(choice("total")))
    client = start(open_engine=loading.open_engine, **remote_to(server.url, pause_ms=60_000.0))
    body = {"input_prefix": "", "input_suffix": "", "input_extra": [{"text": "x = 1\n", "filename": "a.py"}]}
    for _ in range(4):
        assert client.post("/infill", {**body, "prompt": "", "n_predict": 0}).status == 200
    assert server.requests == []
    assert client.post("/infill", {**body, "prompt": "y = ", "n_predict": 8}).tree["content"] == "total"
    server.close()


def test_a_chat_goes_through_word_by_word(start):
    def said(text, reason=None):
        return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]})

    server = LyingServer(events(said("Good "), said("morning"), said("", "stop"), "[DONE]"))
    client = start(open_engine=loading.open_engine, **remote_to(server.url, api="chat"))
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert client.post("/v1/chat/completions", body).tree["choices"][0]["message"]["content"] == "Good morning"
    *chunks, done = client.post("/v1/chat/completions", {**body, "stream": True}).events
    assert done == "[DONE]"
    deltas = [choice["delta"].get("content", "") for chunk in chunks for choice in json.loads(chunk)["choices"]]
    assert "".join(deltas) == "Good morning"
    server.close()


def test_half_a_character_is_made_one_that_can_be_sent(start):
    said = {"choices": [{"index": 0, "delta": {"content": "a\ud800b"}, "finish_reason": "stop"}]}
    server = LyingServer(events(json.dumps(said), "[DONE]"))
    client = start(open_engine=loading.open_engine, **remote_to(server.url, api="chat"))
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert client.post("/v1/chat/completions", body).tree["choices"][0]["message"]["content"] == "a?b"
    assert client.post("/v1/chat/completions", {**body, "stream": True}).events[-1] == "[DONE]"
    server.close()


def test_a_server_behind_a_server_that_is_gone_is_503(start):
    server = LyingServer(b"")
    client = start(open_engine=loading.open_engine, **remote_to(server.url))
    reply = client.post("/v1/completions", {"prompt": "x = "})
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert "the connection broke" in reply.error["message"]
    server.close()


def test_the_runtime_is_not_loaded_for_a_remote_model(served, tmp_path):
    code = (
        "import sys; from dg_lsp.cli import run;"
        f" code = run(['fill', {str(SAMPLES / 'shapes.py')!r} + ':11', '--json', '--remote', {served!r}]);"
        " sys.exit(code or ('llama_cpp' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        cwd=SAMPLES.parent,
        env={**os.environ, "HOME": str(tmp_path)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def choice(text):
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]})


EAGER = {"type_through": False, "speculate": False, "deadline_ms": 60_000}
LIES = [
    pytest.param(reply("<html>", kind="text/html"), "a page of text/html", id="a page"),
    pytest.param(reply("}"), "no JSON", id="no JSON"),
    pytest.param(endless(b"data: x"), "does not end", id="endless"),
    pytest.param(b"", "the connection broke", id="gone"),
    pytest.param(reply("", "401 Unauthorized"), "wants a key", id="no key"),
    pytest.param(reply("", "429 Slow Down", Retry_After="1"), "too much to do", id="busy"),
    pytest.param(reply("", "308 Gone", Location="http://127.0.0.1:1/"), "sends us elsewhere", id="elsewhere"),
]


@pytest.mark.parametrize(("lie", "said"), LIES)
def test_trouble_is_shown_and_said_once_and_completions_resume(launcher, lie, said):
    server = LyingServer(reply(choice("total")), lie, lie, lie, reply(choice("total")))
    client = launcher.launch([sys.executable, "-m", "dg_lsp", "lsp", "--remote", server.url])
    remote = {"retries": 0, "pause_ms": 1500.0}
    client.handshake(options={"editorInfo": {"name": "e", "version": "1"}, "fill": EAGER, "remote": remote})
    client.open("secret_text = ")
    assert [item["insertText"] for item in client.items(client.complete(0, 14))] == ["total"]
    for _ in range(3):
        assert client.items(client.complete(0, 14)) == []
    # left alone now: answered at once, and by nobody
    assert client.items(client.complete(0, 14)) == []
    client.wait_until(lambda: client.told("didChangeStatus")[-1]["kind"] == "Error")
    assert said in client.told("didChangeStatus")[-1]["message"]
    client.wait_until(lambda: client.items(client.complete(0, 14)))
    client.wait_log("the server answers again")
    client.wait_until(lambda: client.told("didChangeStatus")[-1]["kind"] == "Normal")
    failures = [one for one in client.told("window/logMessage") if "fill failed" in one["message"]]
    assert len(failures) == 1
    assert said in failures[0]["message"]
    assert "secret_text" not in client.stderr + json.dumps(client.told("window/logMessage"))
    assert client.leave() == 0
    client.check()
    server.close()


def test_what_an_editor_asks_is_written_down_without_a_word_of_it(launcher, tmp_path):
    server = LyingServer(reply(choice("total")))
    client = launcher.launch([sys.executable, "-m", "dg_lsp", "lsp", "--remote", server.url])
    path = tmp_path / "audit.jsonl"
    client.handshake(options={"fill": EAGER, "audit": {"path": str(path)}})
    client.open("secret_text = ")
    assert client.items(client.complete(0, 14))
    client.wait_until(lambda: path.exists() and path.read_bytes().endswith(b"\n"))
    [line] = path.read_text().splitlines()
    record = AuditRecord.parse(line)
    assert (record.endpoint, record.outcome) == ("textDocument/inlineCompletion", "shown")
    assert "secret" not in line
    assert client.leave() == 0
    server.close()


def test_a_server_that_is_slow_never_delays_the_newest(launcher):
    server = LyingServer(*[silent, reply(choice("total"))] * 8)
    client = launcher.launch([sys.executable, "-m", "dg_lsp", "lsp", "--remote", server.url])
    client.handshake(options={"fill": {**EAGER, "deadline_ms": 3_600_000}})
    client.open("x = ")
    for version in range(2, 10):
        stale = client.complete(0, 4)
        client.wait_until(lambda num=2 * version - 3: len(server.requests) == num)
        # nobody says that the stale one is: the next key does
        client.change(version, {"text": f"x{version} = "})
        assert [item["insertText"] for item in client.items(client.complete(0, 5))] == ["total"]
        client.answer(stale)
    assert server.left.wait(30)
    assert client.leave() == 0
    client.check()
    server.close()


def test_a_stale_request_hangs_up(launcher):
    server = LyingServer(silent, reply(choice("total")))
    client = launcher.launch([sys.executable, "-m", "dg_lsp", "lsp", "--remote", server.url])
    client.handshake(options={"fill": EAGER})
    client.open("x = ")
    stale = client.complete(0, 4)
    client.wait_until(lambda: server.requests)
    client.cancel(stale)
    assert server.left.wait(30)
    assert client.leave() == 0
    server.close()
