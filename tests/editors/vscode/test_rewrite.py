"""Rewrites in the real VS Code, over a scripted model."""

import pytest
from gates import wait_until

SUM = "def f(a):\n    total = a + 1\n    return total\n"
IS_CLOSED = "!document.querySelector('.tab')?.parentElement.textContent.includes('dg-lsp: ')"
DOUBLED = "def f(a):\n    total = a * 2\n    return total\n"


@pytest.fixture(scope="module")
def shared(open_shared_window):
    return open_shared_window(SUM, fill="total = a * 2")


@pytest.fixture
def window(shared):
    """Its second line is selected."""
    wait_until(lambda: shared.file.read_text() == SUM, "the file differs")  # a save of the last test empties it first
    shared.to_line(2)
    shared.press("End", 35, shift=True)
    return shared


def until_preview(window, title):
    window.until_text(".tab.active", f"dg-lsp: {title}")
    window.until_text(".modified .view-lines", "total = a * 2")
    window.until(
        "document.querySelector('.modified .monaco-editor.focused, .modified.monaco-editor.focused')", "no focus"
    )


def until_back(window, text):
    window.until(IS_CLOSED, "the preview stays")
    window.until_saved(text)


def test_a_rewrite_is_applied_from_its_preview(window, take_picture):
    window.press("r", 82, ctrl=True, alt=True)
    window.answer("selected code change", "double it")
    until_preview(window, "double it")
    assert window.file.read_text() == SUM
    take_picture(window, "vscode-rewrite.png")
    window.press("Enter", 13, ctrl=True)
    until_back(window, DOUBLED)
    window.press("z", 90, ctrl=True)
    window.until_saved(SUM)


def test_a_failing_test_is_entered_and_the_rewrite_with_which_it_passes_is_previewed(bwrap, window):
    window.command("dg-lsp: Fix the Failing Test")
    window.answer("Which command fails?", "grep -q 'a . 2' main.py")
    until_preview(window, "Fixing the test")
    assert window.file.read_text() == SUM
    window.press("Enter", 13, ctrl=True)
    until_back(window, DOUBLED)
    window.press("z", 90, ctrl=True)
    window.until_saved(SUM)
    window.command("Notifications: Clear All Notifications")


def test_a_code_action_prompts_for_the_instruction(window):
    row = "document.querySelector('.action-widget .monaco-list-row')"
    window.press_until(row, "no actions", ".", 190, ctrl=True)
    window.click_text(".action-widget .monaco-list-row", "Rewrite selection…")
    window.answer("selected code change", "double it")
    until_preview(window, "double it")
    button = "document.querySelector('.editor-actions [aria-label^=\"Apply This Rewrite\"]')"
    window.click_until(IS_CLOSED, "the preview stays", button)
    until_back(window, DOUBLED)
    window.press("z", 90, ctrl=True)
    window.until_saved(SUM)


def test_a_document_that_changes_during_a_rewrite_is_not_edited(window):
    window.command("dg-lsp: Replace Selection With a Completion")
    until_preview(window, "Rewriting")
    window.click_text(".tab", "main.py")
    window.until_focused()
    window.press("Delete", 46)
    window.until_text(".notification-list-item-message", "changed meanwhile")
    window.press("z", 90, ctrl=True)
    until_back(window, SUM)
    window.command("Notifications: Clear All Notifications")


def test_a_preview_stays_open_while_another_file_is_clicked_and_is_discarded(window):
    window.command("dg-lsp: Replace Selection With a Completion")
    until_preview(window, "Rewriting")
    window.press("e", 69, ctrl=True, shift=True)
    window.click_text(".explorer-folders-view .monaco-list-row", window.others[0].name)
    window.until_tab(window.others[0].name)
    window.click_text(".tab", "dg-lsp: ")
    until_preview(window, "Rewriting")
    window.press("Escape", 27)
    until_back(window, SUM)
    assert not window.texts(".notification-list-item-message")
    window.press("b", 66, ctrl=True)
