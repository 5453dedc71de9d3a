"""Commands, messages, languages and crashes behind the extension in the real VS Code, over a scripted model."""

import json
import os
import signal
import time

from code_server import until
from shared_daemon import kill

from dg_lsp.daemon.endpoint import Endpoint

SUM = "def f(a):\n    total = a\n"


def test_in_a_workspace_of_several_folders_the_setting_of_the_files_folder_is_turned_on(open_window):
    on = {"dg-lsp.enable": True}
    window = open_window(SUM, fill="return total", workspace=on)
    workspace = window.file.parent.with_suffix(".code-workspace")
    for off in ({"dg-lsp.enable": False}, {"[python]": {"dg-lsp.enable": False}}):
        window.change_settings(**off)
        window.until_status("off")
        window.command("dg-lsp: Turn Completions On or Off")
        window.until(f"!{window.STATUS}.textContent.includes('off')", "it stays off")
        changed = json.loads(window.settings_file.read_text())
        assert changed.get("[python]", changed)["dg-lsp.enable"] is True
        assert json.loads(workspace.read_text())["settings"] == on
    assert window.show("    ") == "return total"


def test_the_status_shows_that_a_program_cannot_be_started_until_its_path_is_corrected(
    open_window, install_program, tmp_path
):
    window = open_window("", settings={"dg-lsp.server.path": "/nowhere/dg-lsp"}, has_server=False)
    window.until_label("/nowhere/dg-lsp could not be started")
    window.change_settings(**{"dg-lsp.server.path": 5})
    window.until_label("server could not be started")
    install_program(tmp_path / "program", "return total")
    window.change_settings(**{"dg-lsp.server.path": str(tmp_path / "program")})
    window.until_status("scripted")


PAUSE = 2.0


def test_ghost_text_is_back_after_the_daemon_was_killed(open_window, tmp_path):
    """Typing is enough, also after more crashes than VS Code's client accepts by default."""
    endpoint = Endpoint(tmp_path / "daemon")
    window = open_window("s = 0\n", fill="count", daemon=endpoint.folder)
    assert window.show("s = ") == "total(0)"
    num_typed = 0

    def type_on():
        nonlocal num_typed
        num_typed += 1
        window.type("1 + ")
        end = time.monotonic() + PAUSE
        while (is_back := window.ghost == f"total({num_typed})") is False and time.monotonic() < end:
            time.sleep(0.05)
        return is_back

    for _ in range(5):
        kill(endpoint)
        until(type_on, lambda: f"no ghost text; the status bar says {window.status_label!r}")
    assert window.texts(".notification-list-item-message") == []
    window.press("Tab", 9)
    window.until_saved(f"s = 0\ns = {'1 + ' * num_typed}total({num_typed})")
    os.kill(endpoint.read().pid, signal.SIGTERM)


def test_the_status_is_off_where_the_settings_leave_out_every_open_language(open_window):
    window = open_window("# Notes\n", name="notes.md", settings={"dg-lsp.languages": ["python"]}, has_server=False)
    window.until_status("off")
    assert "starts with the first file" in window.status_label
    assert "dg-lsp.languages does not name markdown" in window.status_label
