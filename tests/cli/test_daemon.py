"""`dg-lsp daemon` and what `dg-lsp lsp` makes of a daemon. Real processes: tests/e2e/test_daemon.py."""

import json
import os
import sys
import threading

import pytest

from dg_lsp import __version__
from dg_lsp.cli import handing
from dg_lsp.cli.handing import relay_command
from dg_lsp.daemon.listening import Daemon
from dg_lsp.daemon.place import Place, Record
from dg_lsp.reading import parse_settings
from dg_lsp.server import app as server

TIMEOUT = 30


@pytest.fixture
def running(script, monkeypatch):
    """A daemon in this process."""
    from dg_lsp.cli import loading

    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    ready = threading.Event()
    daemon = Daemon(Place.of_user(), loading.open_engine, idle_seconds=60)
    thread = threading.Thread(target=daemon.run, args=(ready.set,))
    thread.start()
    assert ready.wait(TIMEOUT)
    yield daemon
    daemon.stop()
    thread.join(TIMEOUT)


class Replaced(Exception):  # noqa: N818  (it is no error)
    """The process would be another program now."""


@pytest.fixture
def replaced(monkeypatch):
    """What `exec` was called with."""

    def exec_program(program, arguments):
        raise Replaced(program, arguments)

    monkeypatch.setattr(handing.os, "execv", exec_program)
    monkeypatch.setattr(server, "serve_stdio", lambda *_: 0)


def test_without_a_daemon(dg_lsp):
    assert dg_lsp("daemon", "status").code == 1
    assert dg_lsp("daemon", "status", "--json").json == {"running": False}
    outcome = dg_lsp("daemon", "stop")
    assert (outcome.code, outcome.err) == (1, "no daemon runs\n")


def test_status_and_stop(dg_lsp, running):
    facts = dg_lsp("daemon", "status", "--json").json
    assert facts["running"]
    assert (facts["version"], facts["pid"], facts["sessions"]) == (__version__, os.getpid(), 0)
    outcome = dg_lsp("daemon", "status")
    assert outcome.code == 0
    assert f"process {os.getpid()}" in outcome.out
    assert "0 editors" in outcome.out
    again = dg_lsp("daemon", "start")
    assert (again.code, again.out) == (0, "")
    assert "runs already" in again.err
    outcome = dg_lsp("daemon", "stop")
    assert (outcome.code, outcome.err) == (0, "stopped\n")
    assert dg_lsp("daemon", "status").code == 1


def test_stop_takes_away_what_a_killed_one_left(dg_lsp):
    place = Place.of_user()
    place.make()
    place.lock.touch()
    place.write(Record(__version__, 1, "old", path=str(place.folder / "nothing")))
    assert dg_lsp("daemon", "stop").code == 1
    assert place.read() is None


def test_lsp_becomes_a_relay_where_a_daemon_runs(dg_lsp, running, replaced):
    with pytest.raises(Replaced) as caught:
        dg_lsp("lsp")
    program, arguments = caught.value.args
    assert program == sys.executable
    assert arguments[1:3] == ["-m", "dg_lsp.daemon.relay"]
    assert json.loads(arguments[3])["starter"] == []


def test_lsp_has_a_model_of_its_own_where_none_runs_or_none_is_wanted(dg_lsp, replaced):
    assert dg_lsp("lsp").code == 0
    assert dg_lsp("lsp", "--daemon", "never").code == 0


def test_never_is_never(dg_lsp, running, replaced):
    assert dg_lsp("lsp", "--daemon", "never").code == 0


def test_a_remote_server_needs_no_daemon(dg_lsp, running, replaced):
    assert dg_lsp("lsp", "--remote", "http://127.0.0.1:9").code == 0


def test_start_is_a_relay_in_any_case(dg_lsp, replaced):
    with pytest.raises(Replaced) as caught:
        dg_lsp("lsp", "--daemon", "start")
    ways = json.loads(caught.value.args[1][3])
    assert ways["starter"][3:6] == ["daemon", "start", "--linger"]


def test_a_daemon_of_another_version_is_said_and_left_alone(dg_lsp, replaced):
    place = Place.of_user()
    place.make()
    place.write(Record("0.0.1", 1, "t", path="nowhere"))
    outcome = dg_lsp("lsp")
    assert outcome.code == 0
    assert outcome.err.count("\n") == 1
    assert "0.0.1" in outcome.err
    assert "dg-lsp daemon stop" in outcome.err


def test_a_relay_tells_where_a_model_is_from_anywhere(tmp_path):
    settings, over = parse_settings({"model": "mine.gguf"}), {"model": "mine.gguf", "runtime": {"threads": 2}}
    place = Place.at("/p")
    command = relay_command(place, settings, over, ["lsp", "--model", "mine.gguf"], is_starting=False)
    ways = json.loads(command[3])
    assert ways["folder"] == "/p"
    assert ways["hello"]["settings"]["model"] == ways["hello"]["over"]["model"] == str(tmp_path / "mine.gguf")
    assert ways["hello"]["over"]["runtime"] == {"threads": 2}
    assert ways["child"][2:] == ["dg_lsp", "lsp", "--model", "mine.gguf", "--daemon", "never"]
    known = relay_command(place, parse_settings({}), {}, ["lsp"], is_starting=False)
    assert json.loads(known[3])["hello"]["settings"]["model"] == "dg-mini"


@pytest.mark.parametrize("arguments", [["start", "--tcp", "-1"], ["start", "--idle", "0"], ["nonsense"]])
def test_wrong_use(dg_lsp, arguments):
    outcome = dg_lsp("daemon", *arguments)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
