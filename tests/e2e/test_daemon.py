"""Editors that share the model of a daemon: real processes, from the command line of the editor to the model."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from shared_daemon import is_gone, kill, wait_until

from dg_lsp import __version__
from dg_lsp.daemon.endpoint import Endpoint

BOTH = pytest.mark.parametrize("shared", ["socket", "tcp"], indirect=True)
OLD = "0.0.1"


def text_in(client):
    """The document as the engine of the echo scenario receives it."""
    [text] = client.texts(0, 0)
    return json.loads(text)["text"]


@BOTH
def test_two_editors_share_one_model_and_do_not_cancel_each_other(shared, steps):
    first, second = (shared.edit("slow").begin("f") for _ in range(2))
    pending = first.complete(0, 1)
    wait_until(steps)
    later = second.complete(0, 1)
    assert [len(client.items(request)) for client, request in ((first, pending), (second, later))] == [1, 1]
    status = shared.status()
    assert status["sessions"] == 2
    assert [(model["state"], model["sessions"]) for model in status["models"]] == [("ready", 2)]
    for client in (first, second):
        client.check()
    wait_until(lambda: shared.status()["sessions"] == 0)


def test_an_editor_with_a_model_for_rewrites_shares_both_models(shared):
    clients = [shared.edit("fill").begin("a\n", rewrite={"model": "reviser"}) for _ in range(2)]
    for client in clients:
        client.wait_log("reviser for rewrites ready")
    models = [(Path(model["model"]).name, model["state"], model["sessions"]) for model in shared.status()["models"]]
    assert models == [("auto", "ready", 2), ("reviser", "ready", 2)]
    assert "model: reviser, state: ready, sessions: 2" in shared.dg_lsp("daemon", "status").stdout


def test_each_editor_has_its_own_settings(shared):
    clients = [shared.edit("echo").begin(completion={"deadline_ms": 5000 + 1000 * number}) for number in range(2)]
    for _ in range(2):
        assert [json.loads(client.texts(0, 0)[0])["settings"] for client in clients] == [5000, 6000]


def test_the_process_of_an_editor_is_small_and_no_command_line_has_its_settings(shared):
    client = shared.edit("fill", "--model", "reviser").begin()
    process, daemon = psutil.Process(client.process.pid), psutil.Process(shared.pid)
    _, *options, program, descriptor = process.cmdline()
    assert (options, Path(program).name, descriptor.isdigit()) == (["-I", "-S"], "pipe.py", True)
    assert "reviser" not in daemon.cmdline()
    assert process.cwd() == daemon.cwd() == "/"
    assert process.memory_info().rss < 15 << 20
    assert process.children() == []


def test_an_editor_that_dies_stops_its_request(shared, steps):
    client = shared.edit("slow").begin("s")
    client.complete(0, 1)
    wait_until(steps)
    client.process.kill()
    wait_until(lambda: shared.status()["sessions"] == 0)
    num_steps = steps().count("s")
    assert shared.edit("slow").begin("f").texts(0, 1) == ["ast"]
    assert steps().count("s") <= num_steps + 1 < 64  # one that had begun


def test_a_killed_daemon_ends_its_editors_and_the_next_editor_starts_another_one(shared):
    client = shared.edit("echo").begin("typed\n")
    assert text_in(client) == "typed\n"
    kill(shared.endpoint)
    assert client.wait_end() == 1
    assert text_in(shared.edit("echo").begin("typed again\n")) == "typed again\n"


def test_a_daemon_that_does_not_answer_is_killed_by_stop(shared):
    pid = shared.start()
    shared.env["DG_TEST_SECONDS"] = "1"
    os.kill(pid, signal.SIGSTOP)
    client = shared.edit().begin()  # gets a model of its own
    assert f"the daemon {pid} does not answer: run dg-lsp daemon stop" in client.stderr
    assert shared.dg_lsp("daemon", "stop").stderr == f"the daemon does not answer: ending process {pid}\nstopped\n"
    wait_until(lambda: is_gone(pid))
    assert shared.endpoint.read() is None


def test_daemons_of_two_versions_serve_their_editors_side_by_side(shared):
    shared.env["DG_TEST_IDLE"] = "3"
    old = Endpoint(shared.endpoint.folder, OLD)
    before = shared.edit("echo", DG_TEST_VERSION=OLD).begin("typed\n")
    assert text_in(before) == "typed\n"
    after = shared.edit("echo", use="auto").begin()
    assert text_in(after) == "\n"
    pids = [endpoint.read().pid for endpoint in (old, shared.endpoint)]
    assert [endpoint.query("status")["version"] for endpoint in (old, shared.endpoint)] == [OLD, __version__]
    assert sorted(shared.daemons()) == sorted(pids)
    assert text_in(before) == "typed\n"
    assert f"other versions running  {OLD}" in shared.dg_lsp("daemon", "status").stdout
    assert before.leave() == 0
    wait_until(lambda: is_gone(pids[0]))
    assert text_in(after) == "\n"


def test_stop_ends_the_daemons_of_all_versions(shared):
    for version in (OLD, __version__):
        shared.env["DG_TEST_VERSION"] = version
        assert shared.dg_lsp("daemon", "start").returncode == 0
    assert len(shared.daemons()) == 2
    assert shared.dg_lsp("daemon", "stop").stderr == "stopped\n"
    wait_until(lambda: shared.daemons() == [])
    assert shared.endpoint.all_versions() == []


def test_editors_that_share_a_daemon_count_useful_edits_together(shared):
    first, second = (shared.edit().begin("s = \n") for _ in range(2))
    [item] = first.items(first.complete(0, 4))
    first.type(2, 0, 4, item["insertText"])
    assert first.leave() == 0
    assert second.stats()["today"]["usefulEdits"] == 1
