"""The first messages of each campaign."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing

import pytest
from gates import wait_until

from soak import gguf, messages, traps, web
from soak.figures import FAILURES, run


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("campaign", "most", "least"),
    [
        pytest.param(messages.campaign, 2500, {"edits": 300, "compared": 30}, id="messages"),
        pytest.param(gguf.campaign, 20, {"messages": 20}, id="models"),
        pytest.param(web.campaign, 150, {"ordinary": 60}, id="http"),
        pytest.param(traps.campaign, traps.NUM_SHORT, {"messages": traps.NUM_SHORT}, id="traps"),
    ],
)
def test_the_first_messages_cause_no_failure(campaign, most, least):
    figures = run(campaign, seed=0, most=most)
    assert not any(figures[kind] for kind in FAILURES), figures["examples"]
    assert all(figures[kind] >= number for kind, number in least.items()), figures


@pytest.fixture
def folder(tmp_path):
    with closing(traps.Folder(tmp_path)) as folder:
        yield folder


def test_every_kind_of_trap_leaves_a_mark(folder):
    def run(*command, **options):
        subprocess.run(command, cwd=folder.path, capture_output=True, check=False, **options)
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
