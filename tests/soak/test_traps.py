"""The strictest runs of the campaign of traps, and the traps themselves."""

import math
import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing

import pytest
from gates import wait_until

from soak import traps

NUM_SESSIONS, NUM_CHECKS = 5, 3


@pytest.mark.timeout(900)
def test_no_command_executes_obeys_or_shows_what_it_must_not():
    figures = traps.run(seconds=math.inf, seed=0, most=NUM_SESSIONS + 1 + NUM_CHECKS + len(traps.commands()))
    assert figures["crashes"] == figures["lost"] == figures["unexpected"] == 0, figures
    assert figures["commands"] == len(traps.commands())
    assert figures["spellings"] >= 40
    assert figures["messages"] > 8 * figures["spellings"]


@pytest.fixture
def folder(tmp_path):
    with closing(traps.Folder(tmp_path)) as folder:
        yield folder


def test_every_kind_of_trap_leaves_a_mark(folder):
    def run(*command, **more):
        subprocess.run(command, cwd=folder.path, capture_output=True, check=False, **more)
        return folder.triggered()

    assert "executed json.py" in run(sys.executable, "-c", "import json")
    assert "executed program-nvidia-smi" in run("nvidia-smi", env={"PATH": "."})
    assert run(sys.executable, "-P", "-c", "open('obeyed-model.gguf')") == ["opened obeyed-model.gguf"]
    if shutil.which("cc"):
        assert "executed library" in run(sys.executable, "-P", "-c", "import ctypes; ctypes.CDLL('./libggml.so')")
    if shutil.which("git"):
        assert "executed git-fsmonitor" in run("git", "status", env={**os.environ, "HOME": str(folder.home)})
    socket.create_connection(folder.listener.getsockname()).close()
    assert wait_until(folder.triggered) == ["executed remote-server"]
