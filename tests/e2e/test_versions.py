"""Daemons and editors that are not of the same version."""

import subprocess
import sys

import pytest
from shared_daemon import TIMEOUT, begin, wait_until

from dg_lsp import __version__

OLD = "0.0.1"


@pytest.fixture
def old(shared):
    """A daemon of an older version; what is on the disk is newer by now."""
    shared.env["DG_TEST_VERSION"] = OLD
    pid = shared.start("echo")
    del shared.env["DG_TEST_VERSION"]
    return pid


def test_an_upgrade_while_windows_are_open(shared, old):
    """Nobody is disturbed who need not be, nobody is left without completions, nothing is started twice."""
    was_there = begin(shared.edit("echo", starts=True, version=OLD), "before\n")
    was_there.change(2, {"text": "typed\n"})
    assert "typed" in was_there.items(was_there.complete(0, 0))[0]["insertText"]
    assert shared.status()["version"] == OLD
    comes = begin(shared.edit("echo", starts=True))
    comes.wait_log(f"the daemon is dg-lsp {OLD} and this is {__version__}: run dg-lsp daemon stop")
    assert comes.items(comes.complete(0, 0))
    assert (shared.pid, shared.status()["sessions"]) == (old, 1)
    command = [sys.executable, "-m", "dg_lsp", "daemon", "stop"]
    subprocess.run(command, env=shared.inherited, check=True, capture_output=True, timeout=TIMEOUT)
    was_there.wait_log(f"the daemon is dg-lsp {__version__} and this is {OLD}")
    was_there.wait_log("a server has taken over")
    assert "typed" in was_there.items(was_there.complete(0, 0))[0]["insertText"]
    late = begin(shared.edit("echo", starts=True))
    assert late.items(late.complete(0, 0))
    status = shared.status()
    assert (status["version"], status["sessions"]) == (__version__, 1)
    assert shared.daemons() == [shared.pid]
    for client in (was_there, comes, late):
        assert client.leave() == 0
        client.check()
        assert client.stderr == ""


def test_an_old_daemon_that_serves_nobody_makes_room(shared, old):
    client = begin(shared.edit("echo", starts=True))
    assert client.items(client.complete(0, 0))
    assert shared.status()["version"] == __version__
    assert shared.pid != old
    wait_until(lambda: shared.daemons() == [shared.pid])
    assert client.leave() == 0
    client.check()
