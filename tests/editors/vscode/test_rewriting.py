"""Rewrites in the real VS Code, by a server whose model says what the test wants."""

import pytest

SUM = "def f(a):\n    total = a + 1\n    return total\n"
IS_CLOSED = "!document.querySelector('.tab')?.parentElement.textContent.includes('dg-lsp: ')"
DOUBLED = "def f(a):\n    total = a * 2\n    return total\n"


@pytest.fixture(scope="module")
def shared(open_shared_window):
    return open_shared_window(SUM, fill="total = a * 2")


@pytest.fixture
def window(shared):
    """Its second line is selected."""
    assert shared.file.read_text() == SUM
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


def test_a_rewrite_is_looked_at_before_it_is_made(window, take_picture):
    window.command("dg-lsp: Rewrite Selection…")
    window.answer("double it")
    until_preview(window, "double it")
    assert window.file.read_text() == SUM
    take_picture(window, "vscode-rewrite.png")
    window.press("Enter", 13, ctrl=True)
    until_back(window, DOUBLED)
    window.press("z", 90, ctrl=True)
    window.until_saved(SUM)


def test_a_rewrite_that_is_discarded_leaves_everything_as_it_was(window):
    window.command("dg-lsp: Replace Selection With a Fill")
    until_preview(window, "Rewriting")
    window.press("Escape", 27)
    until_back(window, SUM)
    assert not window.texts(".notification-list-item-message")


def test_a_code_action_asks_for_words_too(window):
    row = "document.querySelector('.action-widget .monaco-list-row')"
    window.press_for(row, "no actions", ".", 190, ctrl=True)
    window.click_text(".action-widget .monaco-list-row", "Rewrite selection…")
    window.answer("double it")
    until_preview(window, "double it")
    button = "document.querySelector('.editor-actions [aria-label^=\"Apply This Rewrite\"]')"
    window.click_for(IS_CLOSED, "the preview stays", button)
    until_back(window, DOUBLED)
    window.press("z", 90, ctrl=True)
    window.until_saved(SUM)


def test_a_document_that_changes_meanwhile_is_left_alone(window):
    window.command("dg-lsp: Replace Selection With a Fill")
    until_preview(window, "Rewriting")
    window.click_text(".tab", "main.py")
    window.until_focused()
    window.press("Delete", 46)
    window.until_text(".notification-list-item-message", "changed meanwhile")
    window.press("z", 90, ctrl=True)
    until_back(window, SUM)
    window.command("Notifications: Clear All Notifications")


def test_what_cannot_be_done_is_said(window):
    window.press("Home", 36)
    window.command("dg-lsp: Replace Selection With a Fill")
    window.until_text(".notification-list-item-message", "select some code")
    window.command("Notifications: Clear All Notifications")
