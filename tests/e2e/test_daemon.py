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

OLD = "0.0.1"


def text_in(client):
    """The document as the engine of the echo scenario receives it."""
    [text] = client.texts(0, 0)
    return json.loads(text)["text"]


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


@pytest.mark.parametrize("shared", ["tcp"], indirect=True)
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
    shown = shared.dg_lsp("daemon", "status").stdout
    assert f"other versions running  {OLD}" in shown
    assert "model: auto, state: ready, sessions: 1" in shown
    assert before.leave() == 0
    wait_until(lambda: is_gone(pids[0]))
    assert text_in(after) == "\n"
    shared.env["DG_TEST_VERSION"] = OLD
    shared.start("echo")
    del shared.env["DG_TEST_VERSION"]
    assert shared.dg_lsp("daemon", "stop").stderr == "stopped\n"  # of all versions
    wait_until(lambda: shared.daemons() == [])
    assert shared.endpoint.records() == {}
