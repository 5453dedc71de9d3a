"""One VS Code for all tests, with a folder and a server for each."""

import json
import os
import stat
import sys
from functools import partial
from pathlib import Path

import pytest
from chromium import start_browser
from code_server import EAGER, ROOT, CodeServer, NotebookWindow, Window
from installation import PYTHON, PYTHONPATH

PICTURES = ROOT / "docs/img"


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    browser = start_browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def code_server(tmp_path_factory):
    server = CodeServer(tmp_path_factory.mktemp("code-server"))
    yield server
    server.close()


@pytest.fixture
def open_window(code_server, browser, tmp_path):
    """A window on a folder of one file; the `dg-lsp` in its `.venv` is the real one or has a scripted model."""
    return partial(opened, code_server, browser, tmp_path / "project")


@pytest.fixture(scope="module")
def open_shared_window(code_server, browser, tmp_path_factory):
    """A window for all tests of a module, none of which opens another one; its model reads `fill_file`."""
    folder = tmp_path_factory.mktemp("shared") / "project"
    fill_file = folder.with_name("fill")

    def opened_with_others(*args, fill, **options):
        fill_file.write_text(fill)
        window = opened(code_server, browser, folder, *args, fill=fill_file, **options)
        window.fill_file = fill_file
        for other in (*window.others, folder / "store.ts"):  # all at once: VS Code keeps its list of files
            other.touch()
        return window

    return opened_with_others


def opened(
    code_server,
    browser,
    folder,
    text="",
    *,
    name="main.py",
    fill=None,
    settings=None,
    has_server=True,
    daemon=None,
    workspace=None,
):
    """With `workspace`, the settings of a workspace, the folder is its second one, which is added after the start."""
    (folder / ".vscode").mkdir(parents=True)
    (folder / ".vscode/settings.json").write_text(json.dumps({**EAGER, **(settings or {})}))
    if has_server:
        write_program(folder / ".venv/bin/dg-lsp", *program(fill, daemon))
    file = folder / name
    file.write_text(text, encoding="utf-8", newline="")
    root = folder
    if workspace is not None:
        first, root = folder.with_name("first"), folder.with_suffix(".code-workspace")
        first.mkdir()
        folders = [{"path": first.name}]
        root.write_text(json.dumps({"folders": folders, "settings": workspace}))
    browser.renew()
    window = (NotebookWindow if name.endswith(".ipynb") else Window)(browser, code_server, root, file)
    if workspace is not None:
        window.until_label("dg-lsp is not installed: ")
        folders.append({"path": folder.name})
        # in place: where the file is missing or empty, VS Code loads the page anew
        with root.open("r+") as opened_file:
            opened_file.write(json.dumps({"folders": folders, "settings": workspace}))
    if has_server:
        window.until_status("scripted" if fill else "dg-mini")
    return window


def program(fill, daemon=None):
    if fill is None:
        return {}, f'{PYTHON} -m dg_lsp "$@"'
    if daemon is not None:
        scripted = ROOT / "tests/e2e/scripted_daemon.py"
        return {"DG_LSP_DAEMON_DIR": daemon}, f'{sys.executable} {scripted} {fill} "$@" --daemon start'
    scripted = ROOT / "tests/e2e/scripted_server.py"
    scenario = "file" if isinstance(fill, Path) else "fill"
    return {"DG_TEST_FILL": fill, "DG_TEST_FOLLOWS": "1"}, f"{sys.executable} {scripted} {scenario}"


def write_program(path, env, command):
    """A shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    env = {**PYTHONPATH, **env}
    given = " ".join(f"{name}='{value}'" for name, value in env.items())
    path.write_text(f"#!/bin/sh\nexec env {given} {command}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def install_program():
    return lambda path, fill: write_program(path, *program(fill))


@pytest.fixture
def take_picture(tmp_path):
    """Takes a picture of a window; with DG_TEST_PICTURES it replaces the one in the documentation."""
    folder = PICTURES if os.environ.get("DG_TEST_PICTURES") else tmp_path

    def take(window, name):
        folder.mkdir(parents=True, exist_ok=True)
        window.browser.screenshot(folder / name)
        assert (folder / name).stat().st_size > 5_000

    return take
