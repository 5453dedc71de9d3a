"""Commands, messages, languages and crashes behind the extension in the real VS Code, over a scripted model."""

import json
import os
import re
import signal
import time

import pytest
from code_server import until
from shared_daemon import kill

from dg_lsp.daemon.endpoint import Endpoint

SUM = "def f(a):\n    total = a\n"
ON, OFF = {"dg-lsp.enable": True}, {"[python]": {"dg-lsp.enable": False}}


def test_tab_first_indents_where_a_completion_begins_with_the_indentation_of_its_line(open_window):
    window = open_window(SUM, fill="    return total")
    window.to_end()
    window.press("\\", 220, alt=True)
    assert window.until_ghost() == "    return total"
    window.press("Tab", 9)
    until(lambda: window.until_ghost() == "return total", lambda: window.ghost)
    window.press("Tab", 9)
    window.until_saved("def f(a):\n    total = a\n    return total")


def test_the_setting_of_a_language_is_named_and_turned_on_by_the_command(open_window):
    window = open_window(SUM, fill="return total", settings=OFF)
    window.until_status("off")
    assert "dg-lsp.enable is false" in window.status_label
    window.to_end()
    window.command("dg-lsp: Why Is There Nothing?")
    window.until_text(".notification-list-item-message", "dg-lsp.enable is false")
    window.command("dg-lsp: Turn Completions On or Off")
    window.until(f"!{window.STATUS}.textContent.includes('off')", "it stays off")
    changed = json.loads((window.file.parent / ".vscode/settings.json").read_text())
    assert (changed["[python]"], "dg-lsp.enable" in changed) == ({"dg-lsp.enable": True}, False)
    assert window.show("    ") == "return total"
    window.command("dg-lsp: Why Is There Nothing?")
    window.until_text(".notification-list-item-message", "probable, after")


@pytest.mark.parametrize("is_of_language", [False, True])
def test_in_a_workspace_of_several_folders_the_setting_of_the_files_folder_is_turned_on(open_window, is_of_language):
    off = OFF if is_of_language else {"dg-lsp.enable": False}
    window = open_window(SUM, fill="return total", settings=off, workspace=ON)
    window.until_status("off")
    window.command("dg-lsp: Turn Completions On or Off")
    window.until(f"!{window.STATUS}.textContent.includes('off')", "it stays off")
    folder = window.file.parent
    changed = json.loads((folder / ".vscode/settings.json").read_text())
    assert (changed["[python]"] if is_of_language else changed)["dg-lsp.enable"] is True
    assert json.loads(folder.with_suffix(".code-workspace").read_text())["settings"] == ON
    assert window.show("    ") == "return total"


BLOCK = "total += 1\n    return total"


def test_with_a_manual_trigger_completions_come_only_on_request_and_stay_while_typed(open_window):
    window = open_window(SUM, fill=BLOCK, settings={"dg-lsp.completion.trigger": "manual"})
    window.to_end()
    window.type("    ")
    window.until_saved(SUM + "    ")
    assert window.ghost == ""
    window.press("\\", 220, alt=True)
    assert "total += 1" in window.until_ghost()
    window.type("t")
    window.type("o")
    until(lambda: re.search(r"(?<!o)tal \+= 1$", window.until_ghost()), lambda: window.ghost)
    window.press("End", 35, alt=True)
    window.press("Escape", 27)
    window.until_saved(SUM + "    total += 1\n")


@pytest.mark.parametrize(("path", "shown"), [("/nowhere/dg-lsp", "/nowhere/dg-lsp could not"), (5, "server could not")])
def test_the_status_shows_that_a_program_cannot_be_started_until_its_path_is_corrected(
    open_window, install_program, tmp_path, path, shown
):
    window = open_window("", settings={"dg-lsp.server.path": path}, has_server=False)
    until(lambda: f"{shown} be started" in window.status_label, lambda: window.status_label)
    install_program(tmp_path / "program", "return total")
    corrected = json.dumps({"dg-lsp.server.path": str(tmp_path / "program")})
    (tmp_path / "project/.vscode/settings.json").write_text(corrected)
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


def test_a_typescript_file_and_an_untitled_one_need_no_setting(open_window):
    window = open_window("const total = 1;\n", name="store.ts", fill="total + 1")
    assert window.show("const sum = ") == "total + 1"
    window.press("Tab", 9)
    window.until_saved("const total = 1;\nconst sum = total + 1")
    tab = "document.querySelector('.tab.active[data-resource-name=\"Untitled-1\"]')"
    window.press_until(tab, "no untitled file", "n", 78, ctrl=True)
    assert window.show("sum = ") == "total + 1"


def test_the_status_is_off_where_the_settings_leave_out_every_open_language(open_window):
    window = open_window("# Notes\n", name="notes.md", settings={"dg-lsp.languages": ["python"]}, has_server=False)
    window.until_status("off")
    assert "starts with the first file" in window.status_label
    assert "dg-lsp.languages does not name markdown" in window.status_label
