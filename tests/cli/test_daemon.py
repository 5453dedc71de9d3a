"""`dg-lsp daemon`, and when `dg-lsp lsp` uses a daemon. Real processes: tests/e2e/test_daemon.py."""

import json
import os
import re
import threading
from pathlib import Path

import pytest
from shared_daemon import TIMEOUT

from dg_lsp import __version__
from dg_lsp.cli import daemon as cli_daemon
from dg_lsp.cli import loading
from dg_lsp.daemon import client
from dg_lsp.daemon.client import Endpoint, Record
from dg_lsp.daemon.pool import CrashLog
from dg_lsp.daemon.server import Daemon
from dg_lsp.errors import DaemonError
from dg_lsp.models import gpus
from dg_lsp.models.gpus import INTEL, NVIDIA, Gpu
from dg_lsp.server import app as server
from dg_lsp.settings import ModelSettings, Settings


@pytest.fixture
def endpoint():
    return Endpoint.of_user()


@pytest.fixture
def running(script, monkeypatch, endpoint):
    """A daemon in this process."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    ready = threading.Event()
    daemon = Daemon(endpoint, loading.open_engine)
    thread = threading.Thread(target=daemon.run, args=(ready.set,))
    thread.start()
    assert ready.wait(TIMEOUT)
    yield daemon
    daemon.stop()
    thread.join(TIMEOUT)


def test_status_and_stop_without_a_daemon(dg_lsp):
    assert dg_lsp("daemon", "status").code == 1
    assert dg_lsp("daemon", "status", "--json").json == {"running": False}
    outcome = dg_lsp("daemon", "stop")
    assert (outcome.code, outcome.err) == (1, "no daemon runs\n")


def test_status_start_and_stop_with_a_daemon(dg_lsp, running):
    facts = dg_lsp("daemon", "status", "--json").json
    assert (facts["running"], facts["version"], facts["pid"]) == (True, __version__, os.getpid())
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


def test_status_lists_crashes_and_start_forgets_them(dg_lsp, running, endpoint):
    log = CrashLog(endpoint.crashes)
    log.set_in_use(["mine"])
    log.add_crash()
    assert [one["models"] for one in dg_lsp("daemon", "status", "--json").json["crashes"]] == [["mine"]]
    assert re.search(r"a daemon crashed \d s ago; models in use: mine", dg_lsp("daemon", "status").out)
    dg_lsp("daemon", "start")
    assert dg_lsp("daemon", "status", "--json").json["crashes"] == []


def test_status_and_stop_after_a_crash(dg_lsp, endpoint):
    endpoint.prepare()
    endpoint.lock.touch()
    endpoint.write(Record(__version__, 7, "old", path=str(endpoint.folder / "nothing")))
    outcome = dg_lsp("daemon", "status")
    assert (outcome.code, outcome.out) == (1, f"no daemon runs\nprocess 7 crashed: see {endpoint.log}\n")
    assert dg_lsp("daemon", "stop").code == 1
    assert endpoint.read() is None


@pytest.fixture
def sessions(monkeypatch):
    """What `dg-lsp lsp` requested from daemons; a model of its own is never opened."""
    requested = []

    def open_session(*arguments):
        requested.append(arguments)
        raise DaemonError("no daemon here")

    monkeypatch.setattr(client, "open_session", open_session)
    monkeypatch.setattr(server, "serve_stdio", lambda *_: 0)
    return requested


@pytest.mark.parametrize(
    ("arguments", "has_record", "uses_daemon"),
    [
        ((), False, False),
        ((), True, True),
        (("--daemon", "start"), False, True),
        (("--daemon", "never"), True, False),
        (("--daemon", "start", "--remote", "http://127.0.0.1:9"), True, False),
    ],
)
def test_when_lsp_uses_a_daemon(dg_lsp, sessions, endpoint, arguments, has_record, uses_daemon):
    if has_record:
        endpoint.prepare()
        endpoint.write(Record("0.0.1", 1, "t", path="nowhere"))
    outcome = dg_lsp("lsp", *arguments)
    assert outcome.code == 0
    assert len(sessions) == uses_daemon
    assert outcome.err == ("dg-lsp: no daemon here; this editor gets a model of its own\n" if uses_daemon else "")


def test_lsp_sends_a_model_that_is_found_from_any_directory(dg_lsp, sessions, tmp_path, user_settings):
    user_settings("[model]\nthreads = 2\n")
    Path("dg-lsp.toml").write_text("[completion]\nmax_tokens = 3\n")  # the editor may open another folder
    dg_lsp("lsp", "--daemon", "start", "--model", "mine.gguf")
    [(_, hello, command, given)] = sessions
    assert hello["over"]["model"]["name"] == str(tmp_path / "mine.gguf")
    assert hello["settings"]["model"]["name"] == str(tmp_path / "mine.gguf")
    assert hello["settings"]["model"]["threads"] == 2
    assert hello["settings"]["completion"]["max_tokens"] == 64
    assert command[1] == "-P"
    assert json.loads(given) == {"settings": hello["settings"], "exit_when_idle": True, "gpu": None}
    dg_lsp("lsp", "--daemon", "start")
    assert sessions[1][1]["settings"]["model"]["name"] == "auto"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "a"], "such as 0,1"),
        (["--gpus", "0,,1"], "such as 0,1"),
        (["--gpus", "0,1", "--foreground"], "--foreground is for one daemon"),
    ],
)
def test_daemons_of_single_gpus_refuse_options_of_one_daemon(dg_lsp, options, message):
    assert message in dg_lsp("daemon", "start", *options).error(2)


@pytest.mark.parametrize(
    ("num_gpus", "message"), [(0, "has no GPU 1 (GPUs found: 0;"), (1, "has no GPU 1 (GPUs found: 1;")]
)
def test_daemons_of_gpus_that_are_not_there_do_not_start(dg_lsp, monkeypatch, endpoint, num_gpus, message):
    monkeypatch.setattr(gpus, "find_gpus", lambda: (Gpu(NVIDIA, "RTX", 1), Gpu(INTEL, "on board", 0)) * num_gpus)
    monkeypatch.setattr(cli_daemon, "start_daemon", pytest.fail)
    assert message in dg_lsp("daemon", "start", "--gpus", "0,1").error(2)
    assert endpoint.of_gpus() == []


def test_a_model_of_a_pinned_daemon_runs_on_its_gpu_or_not_at_all(script):
    for device, expected in (("auto", "gpu"), ("gpu:1", "gpu"), ("cpu", "cpu")):
        cli_daemon._open_on_gpu(Settings(model=ModelSettings(device=device)))
        assert script.settings.model.device == expected
