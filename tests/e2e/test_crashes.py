"""Models that end their process: real signals, in the middle of what a model does, once or each time."""

import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest
from http_server import Client
from shared_daemon import TIMEOUT, begin, wait_until

from dg_lsp.daemon.deaths import MAX_DEATHS

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
NAMED = {"editorInfo": {"name": "an editor", "version": "1"}}


@pytest.fixture
def flag(shared):
    """Says how the next process ends."""
    return Path(shared.env["DG_TEST_ABORT"])


def rewrite(client):
    place = {"uri": client.URI, "range": {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 4}}}
    return client.request("workspace/executeCommand", {"command": "dg-lsp.rewrite", "arguments": [place]})


def test_a_signal_takes_no_editor_along(shared, flag):
    """In a fill, then in a rewrite; what was asked is answered, what is asked next is filled."""
    client = begin(shared.edit(starts=True))
    assert client.items(client.complete(0, 4))
    flag.write_text(str(int(signal.SIGABRT)))
    client.change(2, {"text": "other = \n"})
    assert client.items(client.complete(0, 8)) == []
    client.wait_log("a server has taken over")
    assert client.items(client.complete(0, 8))
    flag.write_text(str(int(signal.SIGSEGV)))
    said = client.result(rewrite(client))
    assert not said["applied"]
    assert "started again" in said["reason"]
    client.wait_until(lambda: num_successors(client) == 2)
    assert client.items(client.complete(0, 8))
    assert not flag.exists()
    assert shared.daemons() == [shared.pid]
    found = shared.status()["deaths"]
    assert [(one["how"], one["models"]) for one in found] == [
        ("Aborted", ["dg-mini"]),
        ("Segmentation fault", ["dg-mini"]),
    ]
    log = shared.place.log.read_text()
    assert log.count("Fatal Python error") == 2
    assert "in predict" in log
    assert "other" not in log
    flag.write_text("always")  # once more, and it is enough
    assert client.items(client.complete(0, 8)) == []
    client.wait_log(f"dg-mini ended the daemon {MAX_DEATHS} times (Aborted)")
    assert client.items(client.complete(0, 8)) == []
    assert flag.exists()
    assert shared.daemons() == [shared.pid]
    assert client.leave() == 0
    client.check()


def test_a_chat_over_http_is_cut_off_and_asked_again(shared, flag):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    shared.env["DG_TEST_HTTP"] = str(port)
    editor = begin(shared.edit("chat", starts=True))
    editor.wait_log("ready after")
    client = Client(port).wait_ready()
    flag.touch()
    with pytest.raises((ConnectionError, HTTPException)):
        client.post("/v1/chat/completions", CHAT)
    editor.wait_log("a server has taken over")
    [choice] = client.wait_ready().post("/v1/chat/completions", CHAT).tree["choices"]
    assert choice["message"]["content"] == "an answer"
    assert shared.status()["deaths"][0]["models"] == ["dg-mini"]
    wait_until(lambda: [one["sessions"] for one in shared.status()["models"]] == [2])
    assert editor.leave() == 0


def num_successors(client):
    return sum("taken over" in one["message"] for one in client.told("window/logMessage"))


def is_in_error(client):
    return [one for one in client.told("didChangeStatus") if one["kind"] == "Error"]


def test_a_model_that_ends_its_process_each_time_is_left_alone(shared, flag):
    """Two editors with it are told so, and the daemon goes on; a third one, with another model, is not to blame."""
    flag.write_text("always open")
    sound = begin(shared.edit(starts=True, settings={"model": "sound"}), **NAMED)
    clients = [begin(shared.edit(starts=True), **NAMED) for _ in range(2)]
    for client in clients:
        client.wait_until(lambda client=client: is_in_error(client))
        said = client.told("didChangeStatus")[-1]
        assert said["dgLsp"]["state"] == "error"
        assert f"dg-mini ended the daemon {MAX_DEATHS} times (Aborted)" in said["message"]
        assert client.items(client.complete(0, 4)) == []
    pid = shared.pid
    assert len(shared.status()["deaths"]) == MAX_DEATHS
    assert shared.daemons() == [pid]
    assert {tuple(one["models"]) for one in shared.status()["deaths"]} == {("dg-mini",)}
    sound.wait_until(lambda: sound.told("didChangeStatus")[-1]["dgLsp"]["state"] == "ready")
    assert sound.items(sound.complete(0, 4))
    flag.unlink()
    assert shared.pid == pid
    # a person has it tried again
    command = [sys.executable, "-m", "dg_lsp", "daemon", "stop"]
    subprocess.run(command, env=shared.inherited, check=True, capture_output=True, timeout=TIMEOUT)
    for client in [*clients, sound]:
        client.wait_until(lambda client=client: client.told("didChangeStatus")[-1]["dgLsp"]["state"] == "ready")
        assert client.items(client.complete(0, 4))
    assert shared.status()["deaths"] == []
    for client in [*clients, sound]:
        assert client.leave() == 0
        client.check()


def test_what_ends_a_server_of_ones_own_is_not_started_for_ever(shared, flag):
    """The daemon died, nobody starts another, and the editor's own server ends in the same way."""
    shared.start()
    client = begin(shared.edit(), **NAMED)
    assert client.items(client.complete(0, 4))
    flag.write_text("always open")
    shared.kill()
    told = client.wait_until(lambda: client.told("window/showMessage"))
    assert [one["message"].partition(";")[0] for one in told] == [
        f"dg-lsp: the model's process ended {MAX_DEATHS} times in 10 min"
    ]
    client.wait_until(lambda: is_in_error(client))  # it is shown after it was said
    last = client.told("didChangeStatus")[-1]
    assert (last["kind"], last["busy"], last["dgLsp"]["state"]) == ("Error", False, "error")
    assert client.items(client.complete(0, 4)) == []
    assert not client.result(rewrite(client))["applied"]
    wait_until(lambda: not psutil.Process(client.process.pid).children())
    time.sleep(1.5)
    assert not psutil.Process(client.process.pid).children()
    flag.unlink()
    client.notify("workspace/didChangeConfiguration", {"settings": {}})
    client.wait_until(lambda: client.told("didChangeStatus")[-1]["dgLsp"]["state"] == "ready")
    assert client.items(client.complete(0, 4))
    assert client.leave() == 0
    client.check()
