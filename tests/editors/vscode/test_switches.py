"""Commands and switches of the extension in the real VS Code, over a scripted model, in one window."""

import json

import pytest
from code_server import until

SUM = "def f(a):\n    total = a\n"
ON = {"dg-lsp.enable": True}


@pytest.fixture(scope="module")
def shared(open_shared_window):
    return open_shared_window(fill="return total", settings=ON)


@pytest.fixture
def window(shared):
    """Its file has no history."""
    shared.open_another(SUM)
    return shared


def test_a_word_of_a_completion_can_be_accepted(window):
    assert window.show("    ") == "return total"
    window.press("ArrowRight", 39, ctrl=True)
    until(lambda: window.ghost == " total", lambda: window.ghost)
    window.press("Escape", 27)
    window.until_saved("def f(a):\n    total = a\n    return")


def test_commands_for_a_selection_are_listed_only_with_one(window):
    rows = ".quick-input-list .monaco-list-row"
    window.search("dg-lsp: Re", "F1", 112)
    window.until_text(rows, "Restart Server")
    assert not any("Rewrite Selection" in row for row in window.texts(rows))
    window.press("Escape", 27)
    window.focus()
    window.press("a", 65, ctrl=True)
    window.search("dg-lsp: Re", "F1", 112)
    window.until_text(rows, "Rewrite Selection")
    window.press("Escape", 27)


def test_completions_that_are_off_can_be_requested(window):
    window.command("dg-lsp: Snooze Completions…")
    window.click_text(".quick-input-list .monaco-list-row", "15 minutes")
    window.until_status("snoozed until")
    window.to_end()
    window.type("   ")
    window.until_saved("def f(a):\n    total = a\n   ")
    assert window.ghost == ""
    window.command("dg-lsp: Snooze Completions…")
    window.click_text(".quick-input-list .monaco-list-row", "End the snooze")
    window.until(f"!{window.STATUS}.textContent.includes('snoozed')", "it stays snoozed")
    window.command("dg-lsp: Turn Completions On or Off")
    window.until_status("off")
    window.to_end()
    window.type(" ")
    window.until_saved("def f(a):\n    total = a\n    ")
    assert window.ghost == ""
    window.press("\\", 220, alt=True)
    assert window.until_ghost() == "return total"
    window.command("dg-lsp: Turn Completions On or Off")
    window.until(f"!{window.STATUS}.textContent.includes('off')", "it stays off")


def test_vs_codes_own_switch_is_named(window):
    settings = window.file.parent / ".vscode/settings.json"
    before = settings.read_text()
    settings.write_text(json.dumps({**json.loads(before), "editor.inlineSuggest.enabled": False}))
    window.until_status("off")
    assert "editor.inlineSuggest.enabled is false" in window.status_label
    settings.write_text(before)
    window.until(f"!{window.STATUS}.textContent.includes('off')", "it stays off")
