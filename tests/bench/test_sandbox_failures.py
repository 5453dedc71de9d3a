import os
import signal
import sys

import pytest

from dg_lsp.bench.sandbox.sandbox import Limits, Sandbox
from dg_lsp.errors import SandboxError


def test_a_machine_on_which_nothing_passes_is_refused():
    with pytest.raises(SandboxError, match="--execute") as caught:
        Sandbox(Limits(file_bytes=0)).check()
    assert "\n" not in str(caught.value)


def test_a_process_that_cannot_be_started_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SandboxError, match="cannot start"):
        Sandbox().run("pass")


def test_an_interruption_leaves_nothing_behind(monkeypatch, tmp_path):
    import subprocess

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    started = []

    def wait(process, timeout=None):
        if not started:
            started.append(process.pid)
            raise KeyboardInterrupt
        return original(process, timeout)

    original = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        Sandbox().run("import time\ntime.sleep(30)")
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], signal.SIG_DFL)
    assert not list(tmp_path.iterdir())
