"""A daemon that is killed behind a real Neovim."""

import os
import signal
import sys
from pathlib import Path

import pytest
from shared_daemon import kill

from dg_lsp.daemon.endpoint import Endpoint

SCRIPT = Path(__file__).parents[2] / "e2e/scripted_daemon.py"


@pytest.mark.parametrize(("kind", "is_project"), [("0.12", True), ("0.12-own", False), ("0.11", False), ("0.10", True)])
def test_ghost_text_is_back_after_the_daemon_was_killed(launch, kind, is_project):
    """Of the text that was typed without a server; no other key is needed."""
    editor = launch(kind, cmd=[sys.executable, SCRIPT, "count", "lsp", "--daemon", "start"])
    endpoint = Endpoint(editor.directory / "no-daemon")
    if is_project:
        (editor.directory / "pyproject.toml").touch()
    editor.open()
    editor.keys("is = ")
    editor.wait_ghost("total(0)")
    for number in range(1, 4):
        kill(endpoint)
        editor.keys(f"{number} + ")
        editor.wait_ghost(f"total({number})")
    editor.keys("<Tab>")
    editor.wait_lines("s = 1 + 2 + 3 + total(3)")
    assert sum("started again" in message for message in editor.notifications) == 1
    editor.close()
    os.kill(endpoint.read().pid, signal.SIGTERM)
