"""`dg-lsp daemon`, and when `dg-lsp lsp` uses a daemon. Real processes: tests/e2e/test_daemon.py."""

import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from shared_daemon import TIMEOUT, serving, wait_until

from dg_lsp import __version__
from dg_lsp.cli import loading
from dg_lsp.daemon.endpoint import DaemonRecord, Endpoint
from dg_lsp.errors import DaemonError
from dg_lsp.server import app as server


@pytest.fixture
def endpoint():
    return Endpoint.of_user()


def record_of(endpoint):
    """The record of a daemon that crashed."""
    return DaemonRecord(7, 0.0, "token", "proof", str(endpoint.socket_path))


def test_status_start_and_stop_with_and_without_a_daemon(dg_lsp, script, monkeypatch, endpoint):
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    with serving(endpoint, loading.open_engine):
        facts = dg_lsp("daemon", "status", "--json").json
        assert (facts["running"], facts["version"], facts["pid"]) == (True, __version__, os.getpid())
        session, _ = endpoint.call({"want": "session"})
        shown = dg_lsp("daemon", "status").facts
        assert (shown["running"], shown["pid"], shown["sessions"]) == ("yes", str(os.getpid()), "1")
        again = dg_lsp("daemon", "start")
        assert (again.code, again.out) == (0, "")
        assert "runs already" in again.err
        assert "a daemon runs already" in dg_lsp("daemon", "start", "--foreground").error(2)
        outcome = dg_lsp("daemon", "stop")
        assert (outcome.code, outcome.err) == (0, "stopped\n")
        with session:
            session.settimeout(TIMEOUT)
            assert session.recv(1) == b""
    outcome = dg_lsp("daemon", "status", "--json")
    assert (outcome.code, outcome.json) == (1, {"running": False, "other_versions_running": []})
    outcome = dg_lsp("daemon", "stop")
    assert (outcome.code, outcome.err) == (1, "no daemon runs\n")


def test_status_and_stop_after_a_crash(dg_lsp, endpoint):
    endpoint.prepare()
    endpoint.lock.touch()
    endpoint.write(record_of(endpoint))
    outcome = dg_lsp("daemon", "status")
    assert outcome.code == 1
    assert outcome.facts.items() >= {"running": "no", "crashed process": "7", "log": str(endpoint.log)}.items()
    assert dg_lsp("daemon", "stop").code == 1
    assert endpoint.read() is None


def test_a_daemon_in_the_foreground_ends_with_stop(dg_lsp, monkeypatch, endpoint):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(dg_lsp("daemon", "start", "--foreground")))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    thread.start()
    wait_until(endpoint.read)
    assert "stopping" in endpoint.query("stop")
    thread.join(TIMEOUT)
    assert outcomes[0].code == 0
    assert endpoint.read() is None
    assert not endpoint.socket_path.exists()
    assert f"the daemon listens at {endpoint.socket_path} (process {os.getpid()})\n" in outcomes[0].err


@pytest.fixture
def sessions(monkeypatch):
    """What `dg-lsp lsp` requested from daemons; a model of its own is never opened."""
    open_session = Mock(side_effect=DaemonError("no daemon here"))
    monkeypatch.setattr(Endpoint, "open_session", open_session)
    monkeypatch.setattr(server, "serve_client", lambda *_: 0)
    return open_session


@pytest.mark.parametrize(
    ("arguments", "has_record", "key", "uses_daemon"),
    [
        ((), False, "", False),
        ((), True, "", True),
        ((), True, "of this editor, which may name a server", False),
        (("--daemon", "start"), False, "", True),
        (("--daemon", "never"), True, "", False),
        (("--daemon", "start", "--remote", "http://127.0.0.1:9"), True, "", False),
    ],
)
def test_when_lsp_uses_a_daemon(dg_lsp, sessions, endpoint, monkeypatch, arguments, has_record, key, uses_daemon):
    monkeypatch.setenv("DG_LSP_REMOTE_KEY", key)
    if has_record:
        old = Endpoint(endpoint.folder, "0.0.1")
        old.prepare()
        old.write(record_of(old))
    outcome = dg_lsp("lsp", *arguments)
    assert outcome.code == 0
    assert sessions.call_count == uses_daemon
    assert outcome.err == ("dg-lsp: no daemon here; this editor gets a model of its own\n" if uses_daemon else "")


def test_lsp_sends_a_model_that_is_found_from_any_directory(dg_lsp, sessions, tmp_path, user_settings, monkeypatch):
    user_settings("[model]\nthreads = 2\n")
    Path("dg-lsp.toml").write_text("[completion]\nmax_tokens = 3\n")  # the editor may open another folder
    dg_lsp("lsp", "--daemon", "start", "--model", "mine.gguf")
    hello, command = sessions.call_args.args
    assert hello["over"]["model"]["name"] == str(tmp_path / "mine.gguf")
    assert hello["settings"]["model"]["name"] == str(tmp_path / "mine.gguf")
    assert hello["settings"]["model"]["threads"] == 2
    assert hello["settings"]["completion"]["max_tokens"] == 64
    assert command[1] == "-P"
    assert command[-1] == "--exit-when-idle"
    Path("gone").mkdir()
    monkeypatch.chdir("gone")
    Path("../gone").rmdir()
    assert dg_lsp("lsp", "--daemon", "start").code == 0
    assert sessions.call_args.args[0]["settings"]["model"]["name"] == "auto"
