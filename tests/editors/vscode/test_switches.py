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
    shared.fill_file.write_text("return total")
    shared.open_another(SUM)
    return shared


def test_tab_first_indents_where_a_completion_begins_with_the_indentation_of_its_line(window):
    window.fill_file.write_text("    return total")
    window.to_end()
    window.press("\\", 220, alt=True)
    assert window.until_ghost() == "    return total"
    window.press("Tab", 9)
    until(lambda: window.until_ghost() == "return total", lambda: window.ghost)
    window.press("Tab", 9)
    window.until_saved("def f(a):\n    total = a\n    return total")


def test_a_typescript_file_and_an_untitled_one_need_no_setting(window):
    window.fill_file.write_text("total + 1")
    window.open_another("const total = 1;\n", "store.ts")
    assert window.show("const sum = ") == "total + 1"
    window.press("Tab", 9)
    window.until_saved("const total = 1;\nconst sum = total + 1")
    tab = "document.querySelector('.tab.active[data-resource-name=\"Untitled-1\"]')"
    window.press_until(tab, "no untitled file", "n", 78, ctrl=True)
    window.until_focused()  # without a click, which may hit the link of VS Code's hint
    window.type("sum = ")
    until(lambda: window.lines[0].rstrip() == "sum =", lambda: window.lines)
    # on request too: the key may have come before the server had opened the file
    is_shown = lambda: window.ghost == "total + 1" or window.press("\\", 220, alt=True)  # noqa: E731
    until(is_shown, lambda: f"{window.ghost!r} in an untitled file", pause=0.5)


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
    window.change_settings(**{"editor.inlineSuggest.enabled": False})
    window.until_status("off")
    assert "editor.inlineSuggest.enabled is false" in window.status_label
    window.change_settings(**{"editor.inlineSuggest.enabled": True})
    window.until(f"!{window.STATUS}.textContent.includes('off')", "it stays off")


def test_the_setting_of_a_language_is_named_and_turned_on_by_the_command(window):
    window.change_settings(**{"[python]": {"dg-lsp.enable": False}})
    window.until_status("off")
    assert "dg-lsp.enable is false" in window.status_label
    window.to_end()
    window.command("dg-lsp: Why Is There Nothing?")
    window.until_text(".notification-list-item-message", "dg-lsp.enable is false")
    window.command("dg-lsp: Turn Completions On or Off")
    window.until(f"!{window.STATUS}.textContent.includes('off')", "it stays off")
    changed = json.loads(window.settings_file.read_text())
    assert (changed["[python]"], changed["dg-lsp.enable"]) == ({"dg-lsp.enable": True}, True)
    assert window.show("    ") == "return total"
    window.command("dg-lsp: Why Is There Nothing?")
    window.until_text(".notification-list-item-message", "probable, after")
