"""Editors that share a daemon: relays in front, and what they do when it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from shared_daemon import PATIENT, TIMEOUT, begin, is_gone, wait_until

LEFT = ("deaths", "lock", "log", "starting")
"""What a daemon that died may leave: nothing that leads anybody to it."""
WAYS = pytest.mark.parametrize("shared", ["socket", "tcp"], indirect=True)


def seen_by(client, line=0, character=0):
    """What the engine of the echo scenario thinks of the document."""
    [item] = client.items(client.complete(line, character))
    return json.loads(item["insertText"])


@WAYS
def test_two_editors_have_one_model_and_do_not_cancel_each_other(shared, steps):
    shared.start("slow")
    one, other = begin(shared.edit(), "s"), begin(shared.edit(), "s")
    pending = one.complete(0, 1)
    wait_until(steps)
    later = other.complete(0, 1)
    assert [len(client.items(asked)) for client, asked in ((one, pending), (other, later))] == [1, 1]
    status = shared.status()
    assert status["sessions"] == 2
    assert [(model["state"], model["sessions"]) for model in status["models"]] == [("ready", 2)]
    for client in (one, other):
        assert client.leave() == 0
        client.check()
        assert client.stderr == ""
    wait_until(lambda: shared.status()["sessions"] == 0)


def test_each_editor_has_settings_of_its_own(shared):
    shared.start("echo")
    clients = [shared.edit(settings={"fill": {"deadline_ms": 5000}}), shared.edit(over={"fill": {"deadline_ms": 7000}})]
    clients[0].handshake()
    clients[1].handshake(options=PATIENT)
    for client in clients:
        client.open("x")
    for _ in range(2):
        assert [seen_by(client)["settings"] for client in clients] == [5000, 7000]


@WAYS
def test_a_daemon_killed_in_the_middle_of_a_request_is_started_again(shared, steps):
    """The request is answered with nothing, the next one is filled, and nothing is left behind in the end."""
    shared.env["DG_TEST_IDLE"] = "5"  # a relay has to get there before
    client = begin(shared.edit("slow", starts=True), "s")
    pending = client.complete(0, 1)
    wait_until(steps)
    first = shared.pid
    shared.kill()
    assert client.items(pending) == []
    client.wait_log("a server has taken over")
    assert len(client.items(client.complete(0, 1))) == 1
    second = shared.pid
    assert second != first
    assert client.leave() == 0
    client.check()
    assert client.stderr == ""
    wait_until(lambda: is_gone(second))
    assert sorted(path.name for path in shared.place.folder.iterdir()) == [f"daemon.{one}" for one in LEFT]
    assert shared.place.log.read_text() == ""


def test_an_engine_that_aborts_takes_no_editor_along(shared):
    flag = Path(shared.env["DG_TEST_ABORT"])
    client = begin(shared.edit(starts=True))
    assert client.items(client.complete(0, 4))
    flag.touch()
    client.change(2, {"text": "other = \n"})
    assert client.items(client.complete(0, 8)) == []
    client.wait_log("a server has taken over")
    assert not flag.exists()
    assert client.items(client.complete(0, 8))


@WAYS
def test_another_server_takes_over_where_a_session_was(shared):
    """All that was opened, closed and changed, in the units that were agreed on."""
    shared.start("echo")
    client = begin(shared.edit("echo"), "é😋 = 1\nlast\n")
    client.open("gone", uri="file:///gone.py")
    client.notify("textDocument/didClose", {"textDocument": {"uri": "file:///gone.py"}})
    start, end = {"line": 0, "character": 3}, {"line": 0, "character": 7}
    client.change(2, {"range": {"start": start, "end": end}, "text": "(😋)"})
    client.change(3, {"range": {"start": start, "end": start}, "text": "!"})
    before = seen_by(client, 1, 4)
    assert before["text"] == "é😋!(😋)\nlast\n"
    shared.kill()
    client.wait_log("a server of its own")
    client.wait_log("a server has taken over")
    assert seen_by(client, 1, 4) == before
    client.change(4, {"range": {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 4}}, "text": "x"})
    assert seen_by(client, 1, 1)["text"] == "é😋!(😋)\nx\n"
    assert client.leave() == 0
    client.check()


def test_a_rewrite_that_is_cut_off_says_so(shared, steps):
    shared.start("slow")
    client = shared.edit("slow")
    begin(client, "s = 1\n", editorInfo={"name": "an editor", "version": "1"})
    client.wait_log("ready")
    place = {"uri": client.URI, "range": {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 5}}}
    asked = client.request("workspace/executeCommand", {"command": "dg-lsp.rewrite", "arguments": [place]})
    wait_until(steps)
    shared.kill()
    result = client.result(asked)
    assert result["applied"] is False
    assert "started again" in result["reason"]
    # said behind the answer
    client.wait_until(lambda: any("started again" in one["message"] for one in client.told("window/showMessage")))
    client.wait_until(lambda: any(one["kind"] == "Warning" for one in client.told("didChangeStatus")))
    client.wait_until(lambda: client.told("didChangeStatus")[-1]["dgLsp"]["state"] == "ready")


def test_an_editor_that_dies_stops_its_request(shared, steps):
    shared.start("slow")
    client = begin(shared.edit(), "s")
    client.complete(0, 1)
    wait_until(steps)
    client.process.kill()
    wait_until(lambda: shared.status()["sessions"] == 0)
    num_steps = len(steps())
    time.sleep(0.2)
    assert len(steps()) <= num_steps + 1  # one that had begun
    assert num_steps < 30


def test_what_a_killed_daemon_leaves_is_taken_away_by_the_next(shared):
    first = shared.start()
    shared.kill()
    assert shared.place.socket.exists()
    assert shared.start() != first
    assert shared.status()["pid"] == shared.pid
    assert begin(shared.edit()).result


def test_one_that_is_stuck_is_ended_and_leaves_nothing(shared):
    pid = shared.start()
    os.kill(pid, signal.SIGSTOP)
    command = [sys.executable, "-m", "dg_lsp", "daemon", "stop"]
    done = subprocess.run(command, env=shared.inherited, capture_output=True, text=True, check=True, timeout=TIMEOUT)
    assert done.stderr == f"the daemon does not answer: ending process {pid}\nstopped\n"
    wait_until(lambda: is_gone(pid))
    assert sorted(path.name for path in shared.place.folder.iterdir()) == ["daemon.lock", "daemon.log"]


def test_of_two_daemons_started_at_once_one_stays(shared):
    commands = [shared.command("scripted_daemon.py", "fill", "apart")] * 3
    started = [subprocess.Popen(one, env=shared.inherited) for one in commands]
    assert [one.wait(TIMEOUT) for one in started] == [0, 0, 0]
    assert shared.status()["pid"] == shared.pid
    wait_until(lambda: shared.daemons() == [shared.pid])  # the others said what they had to, and are about to end


def test_a_daemon_that_cannot_be_started_leaves_the_editor_with_a_server_of_its_own(shared):
    shared.place.folder.write_text("in the way")
    client = begin(shared.edit(starts=True))
    client.wait_log("a server of its own")
    assert client.items(client.complete(0, 4))
    assert client.leave() == 0
    client.check()


def test_a_server_of_its_own_that_dies_is_started_again(shared):
    client = begin(shared.edit())
    assert client.items(client.complete(0, 4))
    [child] = psutil.Process(client.process.pid).children()
    child.kill()
    client.wait_log("a server has taken over")
    assert client.items(client.complete(0, 4))


def test_leaving_without_goodbye_is_code_1_and_ends_all(shared):
    client = begin(shared.edit())
    [child] = psutil.Process(client.process.pid).children()
    client.out.close()
    assert client.wait_end() == 1
    wait_until(lambda: is_gone(child.pid))


def test_another_version_is_said_and_not_used(shared, launcher):
    shared.start()
    record = json.loads((shared.place.folder / "daemon.json").read_text())
    (shared.place.folder / "daemon.json").write_text(json.dumps({**record, "version": "0.0.1"}))
    client = launcher.launch([sys.executable, "-m", "dg_lsp", "lsp"], **shared.env)
    client.handshake()
    client.wait_log("ready")
    assert client.leave() == 0
    assert client.stderr.count("\n") == 1
    assert "the daemon is dg-lsp 0.0.1" in client.stderr


@pytest.mark.parametrize("use", ["auto", "start"])
def test_the_command_line_with_the_bundled_model(shared, launcher, use):
    command = [sys.executable, "-m", "dg_lsp", "daemon"]
    if use == "auto":
        subprocess.run([*command, "start"], env=shared.inherited, check=True, capture_output=True, timeout=TIMEOUT)
    Path(launcher.directory / "dg-lsp.toml").write_text("[daemon]\nidle_seconds = 5\n[fill]\ndeadline_ms = 60000\n")
    client = launcher.launch([sys.executable, "-m", "dg_lsp", "lsp", "--daemon", use], **shared.env)
    client.handshake()
    client.open("class A:\n    def __init__(self, owner):\n        self.owner = \n")
    assert client.items(client.complete(2, 21))
    assert [model["model"] for model in shared.status()["models"]] == ["dg-mini"]
    assert "dg_lsp.daemon.relay" in psutil.Process(client.process.pid).cmdline()
    pid = shared.pid
    assert client.leave() == 0
    assert client.stderr == ""
    if use == "auto":
        subprocess.run([*command, "stop"], env=shared.inherited, check=True, capture_output=True, timeout=TIMEOUT)
    wait_until(lambda: is_gone(pid))
