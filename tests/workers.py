"""Requests of scheduler tests, and models that wait for the test."""

import threading
import time

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest
from dg_lsp.settings import CompletionSettings

LONG = CompletionSettings(deadline_ms=60_000, speculate=False)
TIMEOUT = 30


def ask(uri="file:///a.py", text="a = ", **more):
    return FillRequest(Snapshot(uri, 1, text), len(text), **more)


def wait_until(is_so):
    """Waits for a condition."""
    end = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


class Gate(ScriptedDenoiser):
    """Waits inside each step until `go_on` is set."""

    def __init__(self, fill, **script):
        super().__init__(fill, **script)
        self.is_inside = threading.Event()
        self.go_on = threading.Event()

    def predict(self, *args, **kwargs):
        self.is_inside.set()
        assert self.go_on.wait(TIMEOUT)
        return super().predict(*args, **kwargs)


class Stepping(ScriptedDenoiser):
    """Makes as many steps as `allowed` permits."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.allowed = threading.Semaphore(0)

    def predict(self, *args, **more):
        assert self.allowed.acquire(timeout=TIMEOUT)
        return super().predict(*args, **more)
