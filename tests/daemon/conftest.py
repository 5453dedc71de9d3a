"""Daemons inside the test's process, over scripted models."""

import threading

import pytest
from workers import TIMEOUT

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.daemon.listening import Daemon
from dg_lsp.daemon.place import Place
from dg_lsp.engine.engine import Engine


class Scripts:
    """Opens scripted engines and remembers them."""

    def __init__(self):
        self.denoisers = []
        self.error = None

    def __call__(self, settings):
        if self.error is not None:
            raise self.error
        self.denoisers.append(ScriptedDenoiser("fill"))
        return Engine(self.denoisers[-1], self.denoisers[-1].tokenizer, settings.fill)


@pytest.fixture
def scripts():
    return Scripts()


@pytest.fixture
def place(tmp_path):
    return Place.at(str(tmp_path / "place"))


@pytest.fixture
def start(place, scripts, monkeypatch):
    """`start(...)` -> a daemon that listens, in a thread of its own."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    running = []

    def run(**how):
        ready = threading.Event()
        daemon = Daemon(place, scripts, **{"idle_seconds": 60, **how})
        thread = threading.Thread(target=daemon.run, args=(ready.set,))
        thread.start()
        running.append((daemon, thread))
        assert ready.wait(TIMEOUT)
        return daemon

    yield run
    for daemon, thread in running:
        daemon.stop()
        thread.join(TIMEOUT)
        assert not thread.is_alive()
