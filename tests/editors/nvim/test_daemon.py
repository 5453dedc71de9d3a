"""A daemon that is killed behind a real Neovim."""

import os
import signal
import sys
from pathlib import Path

import pytest
from shared_daemon import kill_idle

from dg_lsp.daemon.client import Endpoint

SCRIPT = Path(__file__).parents[2] / "e2e/scripted_daemon.py"


@pytest.mark.parametrize("kind", ["0.12", "0.12-own", "0.11", "0.10"])
def test_ghost_text_is_back_after_the_daemon_was_killed(launch, kind):
    """For the text that was typed while there was no server, without another key."""
    editor = launch(kind, cmd=[sys.executable, SCRIPT, "count", "lsp", "--daemon", "start"])
    endpoint = Endpoint(editor.directory / "no-daemon")
    editor.open()
    editor.keys("is = ")
    editor.wait_ghost("total(0)")
    for number in range(1, 5):
        kill_idle(endpoint)
        editor.keys(f"{number} + ")
        editor.wait_ghost(f"total({number})")
    editor.keys("<Tab>")
    editor.wait_lines("s = 1 + 2 + 3 + 4 + total(4)")
    assert sum("started again" in one for one in editor.lua("return told")) == 1
    editor.close()
    os.kill(endpoint.read().pid, signal.SIGTERM)
