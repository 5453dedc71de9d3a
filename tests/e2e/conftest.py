"""Servers of one test or module, and clients of them."""

import os
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from e2e.scripted_server import UNHURRIED, open_engine
from installation import PYTHONPATH
from language_client import Client, ThreadClient
from shared_daemon import Shared

HERE = Path(__file__).parent


class Launcher:
    def __init__(self, directory):
        self.directory = directory
        self.steps_path = directory / "steps"
        self.steps_path.touch()
        self.clients = []

    def launch(self, argv, *, deaf=False, **env):
        """A client of a new process. A client that is `deaf` reads no messages."""
        inherited = {**os.environ, **PYTHONPATH, "DG_TEST_STEPS": str(self.steps_path)}
        no_daemon = str(self.directory / "no-daemon")  # a daemon that the developer runs must not be used
        env = {**inherited, "OMP_WAIT_POLICY": "passive", "DG_LSP_DAEMON_DIR": no_daemon, **env}
        self.clients.append(Client(argv, env, self.directory, deaf=deaf))
        return self.clients[-1]

    def scripted(self, scenario, **env):
        """A client of the server of `scripted_server.py` in a thread of this process."""
        environment = {"DG_TEST_STEPS": str(self.steps_path), **env}
        self.clients.append(ThreadClient(partial(open_engine, scenario=scenario, environment=environment), UNHURRIED))
        return self.clients[-1]

    def scripted_process(self, scenario, **options):
        """A client of a process that runs `scripted_server.py`."""
        return self.launch([sys.executable, str(HERE / "scripted_server.py"), scenario], **options)

    def close(self):
        for client in self.clients:
            client.kill()


@pytest.fixture
def launcher(tmp_path):
    with closing(Launcher(tmp_path)) as launcher:
        yield launcher


@pytest.fixture
def session(launcher, capfd):
    """A session of the server of `scripted_server.py`, checked at the end of the test; the document is open."""
    clients = []

    def begin(scenario, text="\n", *, env=None, **options):
        clients.append(launcher.scripted(scenario, **(env or {})))
        return clients[-1].begin(text, **options)

    yield begin
    for client in clients:
        client.check()
    assert capfd.readouterr().err == ""


@pytest.fixture
def gate(tmp_path):
    """Its `env` delays the loading of a model until `open()`."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return SimpleNamespace(env={"DG_TEST_GATE": str(path)}, open=lambda: path.write_bytes(b""))


@pytest.fixture
def shared(request, launcher, tmp_path):
    """A folder for one daemon; as `tcp` with a path that is too long for a Unix socket: TCP is used as on Windows."""
    name = "x" * 120 if getattr(request, "param", "socket") == "tcp" else "daemon"
    shared = Shared(launcher, tmp_path / name)
    yield shared
    shared.end()


@pytest.fixture
def steps(launcher):
    """The denoising steps so far, one character each."""
    return launcher.steps_path.read_text
