"""`dg-lsp daemon` and what `dg-lsp lsp` makes of a daemon. Real processes: tests/e2e/test_daemon.py."""

import json
import os
import re
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from dg_lsp import __version__
from dg_lsp.cli import handing
from dg_lsp.cli.handing import relay_command
from dg_lsp.cli.serve import HttpOptions, http_opener
from dg_lsp.daemon.calling import ask
from dg_lsp.daemon.deaths import Deaths
from dg_lsp.daemon.listening import Daemon
from dg_lsp.daemon.place import Place, Record
from dg_lsp.errors import SettingsError, UsageError
from dg_lsp.server import app as server
from dg_lsp.settings import parse_settings
from dg_lsp.system import python_command

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
    outcome = dg_lsp("daemon", "start", "--http", "127.0.0.1:0")
    assert outcome.code == 2
    assert "serves no HTTP: run dg-lsp daemon stop" in outcome.err
    outcome = dg_lsp("daemon", "stop")
    assert (outcome.code, outcome.err) == (0, "stopped\n")
    assert dg_lsp("daemon", "status").code == 1


def test_status_says_what_died_of_what(dg_lsp, running):
    Deaths(Place.of_user().folder).note("Aborted", ["mine"])
    [death] = dg_lsp("daemon", "status", "--json").json["deaths"]
    assert (death["how"], death["models"]) == ("Aborted", ["mine"])
    assert re.search(r"one died \d s ago \(Aborted\), at work: mine", dg_lsp("daemon", "status").out)
    dg_lsp("daemon", "start")  # a person has it tried again
    assert dg_lsp("daemon", "status", "--json").json["deaths"] == []


def test_status_knows_what_became_of_one_that_is_gone(dg_lsp):
    place = Place.of_user()
    place.make()
    place.write(Record(__version__, 7, "old", path=str(place.folder / "nothing")))
    (place.folder / "daemon.work").write_text('["mine"]')
    (place.folder / "daemon.crash").write_text("Fatal Python error: Bus error\n")
    outcome = dg_lsp("daemon", "status")
    assert (outcome.code, outcome.out) == (1, "no daemon runs\nprocess 7 died (Bus error), at work: mine\n")


def http_of(text, tree=None, *, is_lenient=True, **options):
    options = HttpOptions(text, options.get("key_file"), (), ())
    return http_opener(options, parse_settings({"daemon": tree or {}}), is_lenient=is_lenient)


def test_http_is_where_the_command_line_or_the_settings_say():
    assert http_of(None) is None
    for opened in (http_of("127.0.0.1:0"), http_of(None, {"http": "localhost:0"})):
        web = opened(lambda _: None)
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", web.url)
        web.stop()


def test_the_settings_open_nothing_to_other_machines(monkeypatch):
    monkeypatch.setenv("DG_LSP_API_KEY", "key")
    with pytest.raises(SettingsError, match="daemon start --http"):
        http_of(None, {"http": "0.0.0.0:0"})
    web = http_of("0.0.0.0:0")(lambda _: None)
    web.stop()
    monkeypatch.delenv("DG_LSP_API_KEY")
    with pytest.raises(UsageError, match="api-key-file"):
        http_of("0.0.0.0:0")(lambda _: None)


def test_editors_are_served_where_the_address_for_http_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert http_of(None, {"http": address})(lambda _: None) is None
        assert "no HTTP: cannot listen" in capsys.readouterr().err
        for opened in (http_of(address), http_of(None, {"http": address}, is_lenient=False)):
            with pytest.raises(UsageError, match="cannot listen"):
                opened(lambda _: None)


def test_a_daemon_of_ones_own_with_http_over_tcp(dg_lsp, monkeypatch):
    """As a person starts it, in the foreground of a thread."""
    Path("dg-lsp.toml").write_text('[daemon]\ntransport = "tcp"\nhttp = "127.0.0.1:0"\n')
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(dg_lsp("daemon", "start", "--foreground").code))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    thread.start()
    place = Place.of_user()
    end = time.monotonic() + TIMEOUT
    while (record := place.read()) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    facts = ask(record, "status")
    assert (record.path, record.host) == ("", "127.0.0.1")
    assert facts["http"].startswith("http://127.0.0.1:")
    ask(record, "stop")
    thread.join(TIMEOUT)
    assert outcomes == [0]


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
    assert arguments[:-1] == python_command("dg_lsp.daemon.relay")
    ways = json.loads(arguments[-1])
    assert ways["starter"] == []
    assert ways["child"] == python_command("dg_lsp", *sys.argv[1:], "--daemon", "never")


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
    ways = json.loads(caught.value.args[1][-1])
    assert ways["starter"][:-2] == python_command("dg_lsp", "daemon", "start", "--linger")


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
    ways = json.loads(command[-1])
    assert ways["folder"] == "/p"
    assert ways["hello"]["settings"]["model"] == ways["hello"]["over"]["model"] == str(tmp_path / "mine.gguf")
    assert ways["hello"]["over"]["runtime"] == {"threads": 2}
    assert ways["child"] == python_command("dg_lsp", "lsp", "--model", "mine.gguf", "--daemon", "never")
    known = relay_command(place, parse_settings({}), {}, ["lsp"], is_starting=False)
    assert json.loads(known[-1])["hello"]["settings"]["model"] == "dg-mini"


@pytest.mark.parametrize(
    "arguments",
    [
        ["start", "--tcp", "-1"],
        ["start", "--idle", "0"],
        ["start", "--http", "8012"],
        ["start", "--http", "127.0.0.1:8012", "--api-key-file", "nowhere"],
        ["nonsense"],
    ],
)
def test_wrong_use(dg_lsp, arguments):
    outcome = dg_lsp("daemon", *arguments)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
