"""Daemons inside the process of the test, over scripted models."""

import threading
from contextlib import ExitStack

import pytest
from scripted import ScriptedDenoiser
from shared_daemon import serving

from dg_lsp.daemon.endpoint import Endpoint
from dg_lsp.engine.engine import LocalEngine


class Scripts:
    def __init__(self):
        self.denoisers = []

    def __call__(self, settings):
        self.denoisers.append(ScriptedDenoiser("fill"))
        return LocalEngine(self.denoisers[-1], self.denoisers[-1].tokenizer, settings.completion)


@pytest.fixture
def scripts():
    return Scripts()


@pytest.fixture
def endpoint(request, tmp_path):
    """Of a daemon; as `tcp` in a folder whose path is too long for a Unix socket."""
    name = "x" * 120 if getattr(request, "param", "socket") == "tcp" else "daemon"
    return Endpoint(tmp_path / name)


@pytest.fixture
def start(endpoint, scripts, monkeypatch):
    """`start(...)` -> a daemon that listens, in a thread of its own."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(serving(endpoint, scripts, **options))
