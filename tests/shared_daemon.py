"""A daemon in a folder of its own, editors that use it, and waiting for either."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from gates import TIMEOUT, wait_until

from dg_lsp.daemon.endpoint import Endpoint
from dg_lsp.daemon.server import Daemon

HERE = Path(__file__).parent / "e2e"
SCRIPTED = [sys.executable, str(HERE / "scripted_daemon.py")]


def is_gone(pid):
    """Ended, even if its parent has not read the exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill(endpoint):
    pid = wait_until(endpoint.read).pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))


@contextmanager
def serving(endpoint, open_engine, **options):
    """A daemon in a thread of this process, once it listens."""
    ready = threading.Event()
    daemon = Daemon(endpoint, open_engine, **options)
    thread = threading.Thread(target=daemon.run, args=(ready.set,))
    thread.start()
    assert ready.wait(TIMEOUT)
    yield daemon
    daemon.stop()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


class Shared:
    """A folder for one daemon, and editors that use it."""

    def __init__(self, launcher, folder):
        self.launcher = launcher
        self.endpoint = Endpoint(folder)
        self.env = {
            "DG_LSP_DAEMON_DIR": str(folder),
            "DG_TEST_STEPS": str(launcher.steps_path),
            "DG_TEST_FILL": "total",
            "PYTHONPATH": str(HERE.parents[1]),
        }

    def dg_lsp(self, *arguments, scenario="fill"):
        options = {"env": {**os.environ, **self.env}, "cwd": self.launcher.directory, "timeout": TIMEOUT}
        return subprocess.run([*SCRIPTED, scenario, *arguments], capture_output=True, text=True, check=False, **options)

    def start(self, scenario="fill"):
        """A daemon that stays without editors."""
        assert self.dg_lsp("daemon", "start", scenario=scenario).returncode == 0
        return self.pid

    def edit(self, scenario="fill", *options, use="start", **env):
        """The process that an editor starts."""
        command = [*SCRIPTED, scenario, "lsp", "--daemon", use, *options]
        return self.launcher.launch(command, **{**self.env, **env})

    @property
    def pid(self):
        """Of the daemon that clients find."""
        return wait_until(self.endpoint.read).pid

    def status(self):
        return self.endpoint.query("status")

    def daemons(self):
        """Processes that are daemons of this folder, or are about to be."""
        pids = []
        for process in psutil.process_iter(["cmdline"]):
            with suppress(psutil.Error):
                command = process.info["cmdline"] or []
                is_ours = process.environ().get("DG_LSP_DAEMON_DIR") == str(self.endpoint.folder)
                if is_ours and ["daemon", "run"] in (command[-2:], command[-3:-1]):
                    pids.append(process.pid)
        return pids

    def end(self):
        for pid in self.daemons():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
