"""A daemon in a place of its own, editors that look for it there, and ways to wait for either."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from dg_lsp.daemon.calling import ask
from dg_lsp.daemon.place import Place
from dg_lsp.system import python_command

HERE = Path(__file__).parent / "e2e"
TIMEOUT = 60
PATIENT = {"fill": {"deadline_ms": 60_000, "early_stop_ms": 0, "type_through": False}}

RELAY = """
import sys, dg_lsp
dg_lsp.__version__ = "{}"
from dg_lsp.daemon.relay import main
sys.exit(main())
"""


def wait_until(is_so):
    end = time.monotonic() + TIMEOUT
    while not (value := is_so()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


def is_gone(pid):
    """Ended, whether or not somebody has looked at how."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def begin(client, text="s = \n", **more):
    """An editor's first words."""
    client.handshake(options={**PATIENT, **more})
    client.open(text)
    return client


class Shared:
    """A place for one daemon, and editors that look for it there."""

    def __init__(self, launcher, folder):
        self.launcher = launcher
        self.place = Place.at(str(folder))
        self.env = {
            "DG_LSP_DAEMON_DIR": str(folder),
            "DG_TEST_ABORT": str(launcher.directory / "abort"),
            "DG_TEST_FILL": "total",
        }
        self.pids = set()

    def command(self, program, scenario, *more):
        return [sys.executable, str(HERE / program), scenario, *more]

    def start(self, scenario="fill"):
        """A daemon that nobody starts again."""
        subprocess.run(
            self.command("scripted_daemon.py", scenario, "apart"), env=self.inherited, check=True, timeout=TIMEOUT
        )
        return self.pid

    @property
    def inherited(self):
        steps = {"DG_TEST_STEPS": str(self.launcher.steps_path), "PYTHONPATH": str(HERE.parents[1])}
        return {**os.environ, **steps, **self.env}

    def edit(self, scenario="fill", *, starts=False, settings=None, over=None, version=None):
        """An editor's relay, of another version than what lies on the disk by now."""
        ways = {
            "folder": str(self.place.folder),
            "hello": {"settings": settings or {}, "over": over or {}},
            "starter": self.command("scripted_daemon.py", scenario, "apart") if starts else [],
            "child": self.command("scripted_daemon.py", scenario, "own"),
        }
        said = json.dumps(ways)
        command = [sys.executable, "-c", RELAY.format(version), said]
        return self.launcher.launch(command if version else python_command("dg_lsp.daemon.relay", said), **self.env)

    @property
    def pid(self):
        """Of the daemon that runs."""
        pid = wait_until(self.place.read).pid
        self.pids.add(pid)
        return pid

    def status(self):
        return ask(self.place.read(), "status")

    def kill(self, number=signal.SIGKILL):
        pid = self.pid
        os.kill(pid, number)
        wait_until(lambda: is_gone(pid))

    def daemons(self):
        """Processes that are daemons of this place, or are about to be."""
        pids = []
        for one in psutil.process_iter(["cmdline"]):
            command = one.info["cmdline"] or ()
            with suppress(psutil.NoSuchProcess):
                is_one = str(HERE / "scripted_daemon.py") in command and "own" not in command
                if is_one and one.environ().get("DG_LSP_DAEMON_DIR") == str(self.place.folder):
                    pids.append(one.pid)
        return pids

    def end(self):
        """Leaves nothing of it behind."""
        for pid in {*self.pids, *self.daemons()}:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
