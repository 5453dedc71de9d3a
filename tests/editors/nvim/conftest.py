"""Neovims of a session, with a server whose model completes a few lines."""

import sys
from functools import cache
from pathlib import Path

import pytest
from neovim import EDITORS, Editor, program, pynvim

SCRIPTED = [sys.executable, Path(__file__).parents[2] / "e2e/scripted_server.py", "lines"]


@pytest.fixture(scope="session")
def launch(tmp_path_factory):
    """`launch("0.12")` -> an editor, closed at the end of the session."""
    editors = []

    def start(name, *, cmd=None, more=""):
        version, ghost_text = EDITORS[name]
        path = program(version)
        if path is None or pynvim is None:
            pytest.skip(f"no Neovim {version}: run make editors, as root on Debian")
        directory = tmp_path_factory.mktemp(f"nvim-{name}")
        env = {"DG_TEST_LOG": directory / "log.jsonl", "DG_TEST_HOLD": directory / "hold", "DG_TEST_FOLLOWS": 1}
        cmd = cmd or ["env", *(f"{name}={value}" for name, value in env.items()), *SCRIPTED]
        editors.append(Editor(path, directory, cmd=cmd, ghost_text=ghost_text, more=more))
        return editors[-1]

    yield start
    for editor in editors:
        editor.close()


@pytest.fixture(scope="session")
def shared_of(launch):
    """`shared_of("0.12")` -> the editor of this kind that tests share."""
    return cache(launch)


@pytest.fixture(scope="session", params=EDITORS)
def shared(request, shared_of):
    """One editor of each kind for all tests."""
    return shared_of(request.param)


@pytest.fixture
def editor(shared):
    """The shared editor, whose server computes without waiting."""
    shared.hold.unlink(missing_ok=True)
    yield shared
    shared.hold.unlink(missing_ok=True)
    shared.nvim.command("stopinsert")
