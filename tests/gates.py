"""Requests of scheduler tests, models that wait for the test, and ports for other programs."""

import random
import socket
import threading
import time

from scripted import ScriptedDenoiser

from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest
from dg_lsp.settings import CompletionSettings

LONG = CompletionSettings(deadline_ms=60_000, speculate=False)
TIMEOUT = 90
"""Seconds after which a test fails; far more than a busy machine needs."""


def ask(uri="file:///a.py", text="a = ", **options):
    return FillRequest(Snapshot(uri, text), len(text), **options)


def wait_until(happened, complaint="timeout", *, seconds=TIMEOUT, pause=0.002):
    """The first true value of `happened()`. The complaint is a text, or a function that returns one."""
    end = time.monotonic() + seconds
    while not (value := happened()):
        assert time.monotonic() < end, complaint() if callable(complaint) else complaint
        time.sleep(pause)
    return value


def free_port():
    """A port that no other test receives meanwhile: it is below those that the system gives to programs."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def is_idle(scheduler):
    """Nothing runs or waits, speculation included."""
    with scheduler._changed:
        return scheduler.ready.done() and not (scheduler._active or scheduler._queue)


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

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.allowed = threading.Semaphore(0)

    def predict(self, *args, **options):
        assert self.allowed.acquire(timeout=TIMEOUT)
        return super().predict(*args, **options)


class Slow(ScriptedDenoiser):
    """A token of a prompt takes 10 ms of its clock. After `num_free` pieces, each waits until `allowed` permits it."""

    def __init__(self, fill="alpha", num_free=10**6, **script):
        super().__init__(fill, **script)
        self.seconds = 0.0
        self.pieces = []
        self.allowed = threading.Semaphore(num_free)
        self.is_waiting = threading.Event()

    def prefill(self, slot, prompt_ids, *most):
        if not self.allowed.acquire(blocking=False):
            self.is_waiting.set()
            assert self.allowed.acquire(timeout=TIMEOUT)
        num_decoded = super().prefill(slot, prompt_ids, *most)
        self.pieces.append(num_decoded)
        self.seconds += 0.01 * num_decoded
        return num_decoded
