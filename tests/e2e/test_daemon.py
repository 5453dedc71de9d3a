"""Editors that share the model of a daemon: real processes, from the command line of the editor to the model."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from shared_daemon import is_gone, wait_until

from dg_lsp import __version__
from dg_lsp.daemon.client import ask

BOTH = pytest.mark.parametrize("shared", ["socket", "tcp"], indirect=True)
NAMED = {"editorInfo": {"name": "an editor", "version": "1"}}
OLD = "0.0.1"


def text_in(client):
    """The document as the engine of the echo scenario receives it."""
    [text] = client.texts(0, 0)
    return json.loads(text)["text"]


def wait_crashed(client):
    """The editor's process has ended because its daemon did."""
    assert client.wait_end() == 1
    assert client.stderr == ""


@BOTH
def test_two_editors_share_one_model_and_do_not_cancel_each_other(shared, steps):
    one, other = (shared.edit("slow").begin("s") for _ in range(2))
    pending = one.complete(0, 1)
    wait_until(steps)
    later = other.complete(0, 1)
    assert [len(client.items(request)) for client, request in ((one, pending), (other, later))] == [1, 1]
    status = shared.status()
    assert status["sessions"] == 2
    assert [(model["state"], model["sessions"]) for model in status["models"]] == [("ready", 2)]
    for client in (one, other):
        client.check()
    wait_until(lambda: shared.status()["sessions"] == 0)


def test_an_editor_with_a_model_for_rewrites_shares_both_models(shared):
    clients = [shared.edit("fill").begin("a\n", rewrite={"model": "reviser"}) for _ in range(2)]
    for client in clients:
        client.wait_log("reviser for rewrites ready")
    models = [(Path(one["model"]).name, one["state"], one["sessions"]) for one in shared.status()["models"]]
    assert models == [("auto", "ready", 2), ("reviser", "ready", 2)]
    assert "reviser: ready, 2 sessions" in shared.dg_lsp("daemon", "status").stdout


def gpu_of(client):
    [text] = client.texts(0, 0)
    return json.loads(text)["gpu"]


def test_each_gpu_has_a_daemon_and_an_editor_stays_with_the_one_that_had_the_fewest(shared, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nfor _ in 0 1 2 3 4 5 6; do echo RTX, 24000; done\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    shared.env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    shared.env["CUDA_VISIBLE_DEVICES"] = "4,5,6"
    assert shared.dg_lsp("daemon", "start", "--gpus", "0,2", scenario="echo").returncode == 0
    try:
        clients = []
        for gpu in ("4", "6", "4"):
            clients.append(shared.edit("echo", use="auto").begin())
            assert gpu_of(clients[-1]) == gpu
        assert [gpu_of(client) for client in clients] == ["4", "6", "4"]
        clients[0].check()
        clients[2].check()
        found = json.loads(shared.dg_lsp("daemon", "status", "--json").stdout)
        assert [(one["gpu"], one["running"]) for one in found["gpus"]] == [(0, True), (2, True)]
        wait_until(lambda: [ask(one.read(), "status")["sessions"] for one in shared.endpoint.of_gpus()] == [0, 1])
        assert gpu_of(shared.edit("echo", use="auto").begin()) == "4"
        # a daemon that crashed is started again, for its GPU
        first = shared.endpoint.of_gpu(0)
        pid = first.read().pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_gone(pid))
        assert gpu_of(shared.edit("echo", use="auto").begin()) == "4"
        assert "GPU 2:" in shared.dg_lsp("daemon", "status").stdout
        assert "run dg-lsp daemon stop" in shared.dg_lsp("daemon", "start").stderr
    finally:
        assert shared.dg_lsp("daemon", "stop").returncode == 0
    assert shared.endpoint.of_gpus() == []
    assert shared.dg_lsp("daemon", "status").returncode == 1


def test_each_editor_has_its_own_settings(shared):
    clients = [shared.edit("echo").begin(completion={"deadline_ms": 5000 + 1000 * number}) for number in range(2)]
    for _ in range(2):
        assert [json.loads(client.texts(0, 0)[0])["settings"] for client in clients] == [5000, 6000]


@BOTH
def test_the_next_editor_starts_a_daemon_after_one_was_killed(shared, steps):
    """The editor's process ends in the middle of a request, and nothing is left behind in the end."""
    shared.env["DG_TEST_IDLE"] = "3"
    client = shared.edit("slow").begin("s")
    client.complete(0, 1)
    wait_until(steps)
    first = shared.pid
    shared.kill()
    wait_crashed(client)
    client = shared.edit("slow", use="auto").begin("s")
    assert len(client.items(client.complete(0, 1))) == 1
    second = shared.pid
    assert second != first
    client.check()
    wait_until(lambda: is_gone(second))
    assert sorted(path.name for path in shared.endpoint.folder.iterdir()) == [
        f"daemon.{name}" for name in ("crashes", "lock", "log")
    ]
    assert shared.endpoint.log.read_text() == ""


def test_the_process_of_an_editor_is_small(shared):
    client = shared.edit().begin()
    process = psutil.Process(client.process.pid)
    assert process.cmdline()[3].endswith("pipe.py")
    assert process.cwd() == psutil.Process(shared.pid).cwd() == "/"
    assert process.memory_info().rss < 15 << 20
    assert process.children() == []


def test_an_editor_that_dies_stops_its_request(shared, steps):
    client = shared.edit("slow").begin("s")
    client.complete(0, 1)
    wait_until(steps)
    client.process.kill()
    wait_until(lambda: shared.status()["sessions"] == 0)
    num_steps = len(steps())
    time.sleep(0.2)
    assert len(steps()) <= num_steps + 1  # one that had begun
    assert num_steps < 30


def test_an_editor_that_closes_its_pipe_ends_the_process_with_code_1(shared):
    client = shared.edit().begin()
    client.out.close()
    assert client.wait_end() == 1


def test_a_daemon_that_does_not_answer_is_killed_by_stop(shared):
    pid = shared.start()
    shared.env["DG_TEST_SECONDS"] = "1"
    os.kill(pid, signal.SIGSTOP)
    client = shared.edit().begin()  # gets a model of its own
    assert f"the daemon {pid} does not answer: run dg-lsp daemon stop" in client.stderr
    assert shared.dg_lsp("daemon", "stop").stderr == f"the daemon does not answer: ending process {pid}\nstopped\n"
    wait_until(lambda: is_gone(pid))
    assert shared.endpoint.read() is None


def test_of_several_daemons_started_at_once_one_stays(shared):
    clients = [shared.edit() for _ in range(3)]
    for client in clients:
        client.begin()
        assert client.stderr == ""
    wait_until(lambda: shared.daemons() == [shared.pid])
    assert shared.status()["sessions"] == 3


def test_a_daemon_of_another_version_serves_its_sessions_and_leaves(shared):
    before = shared.edit("echo", DG_TEST_VERSION=OLD).begin("typed\n")
    assert text_in(before) == "typed\n"
    old = shared.pid
    assert shared.status()["version"] == OLD
    after = shared.edit("echo", use="auto").begin()
    assert text_in(after) == "\n"
    assert shared.status()["version"] == __version__
    assert sorted(shared.daemons()) == sorted([old, shared.pid])
    assert text_in(before) == "typed\n"
    assert before.leave() == 0
    wait_until(lambda: is_gone(old))
    assert text_in(after) == "\n"
    assert after.leave() == 0
    assert shared.status()["crashes"] == []


@pytest.mark.parametrize("moment", ["open", "request"])
def test_a_model_that_crashes_three_daemons_is_refused_by_name(shared, moment):
    flag = Path(shared.env["DG_TEST_CRASH"])
    flag.write_text(moment)
    sound = ("--model", "sound")
    for _ in range(3):
        other = shared.edit("fill", *sound).begin()
        other.wait_log("ready after")
        client = shared.edit().begin("s = \n")
        if moment == "request":
            client.complete(0, 4)
        wait_crashed(client)
        wait_crashed(other)
    client = shared.edit().begin(**NAMED)
    client.wait_log("auto crashed the daemon 3 times and is refused for ")
    client.wait_until(lambda: client.received("didChangeStatus")[-1]["dgLsp"]["state"] == "error")
    assert client.texts(0, 0) == []
    flag.write_text("open")
    other = shared.edit("fill", *sound).begin()
    assert other.texts(0, 0)
    assert [one["models"] for one in shared.status()["crashes"]] == [["auto"]] * 3
    log = shared.endpoint.log.read_text()
    assert "s = " not in log
    assert log.count("Fatal Python error: Aborted") == 3
    # the user wants to try again
    flag.unlink()
    assert shared.dg_lsp("daemon", "stop").returncode == 0
    client = shared.edit().begin()
    assert client.texts(0, 0)
