"""The last edits are repeated in the real VS Code: Tab jumps to an edit and makes it, Escape dismisses it."""

import re

import pytest
from code_server import until

SOURCE = "a = load(x, mode)\nb = load(x, mode)\nc = 1\nd = load(x, mode)\n"
FIRST = SOURCE.replace(", mode)", ", mode, strict=True)", 1)
SECOND = SOURCE.replace(", mode)", ", mode, strict=True)", 2)
ALL = SOURCE.replace(", mode)", ", mode, strict=True)")
OTHER = FIRST.replace("d = load(x, mode)", "d = load(x, mode, strict=True)")
HAS_HINT = (
    "[...document.querySelectorAll('.view-line span')]"
    ".some(part => getComputedStyle(part, '::after').content.replaceAll('\u00a0', ' ').includes('{}'))"
)
IS_SHOWN = HAS_HINT.format("→ ")
NUM_CURSORS = "document.querySelectorAll('.editor-instance .cursors-layer .cursor').length"
MANUAL = {"dg-lsp.completion.trigger": "manual"}
POSITION = "document.getElementById('status.editor.selection')?.textContent ?? ''"


@pytest.fixture(scope="module")
def shared(open_shared_window):
    return open_shared_window(fill="x", settings=MANUAL)


@pytest.fixture
def open_file(shared):
    """Opens a file without a history, and adds an argument to its first call."""

    def opened(source):
        shared.open_another(source)
        add_argument(shared)
        until(lambda: shared.lines[0] == FIRST.split("\n")[0], lambda: shared.lines)
        return shared

    return opened


@pytest.fixture
def window(open_file):
    return open_file(SOURCE)


def add_argument(window):
    """Adds an argument to the call at the end of the first line."""
    window.to_line(1)
    window.press("End", 35)
    window.press("ArrowLeft", 37)
    window.type(", strict=True")
    window.press("Delete", 46)  # of the bracket that VS Code may have added
    window.type(")")


def until_shown(window, line):
    """Waits until an edit is shown while the cursor is in a line, counted from 1."""
    window.until(IS_SHOWN, "no edit is shown")
    until(lambda: f"Ln {line}," in window.run(POSITION), lambda: window.run(POSITION))


def dismiss(window):
    window.press("Escape", 27)
    window.until(f"!({IS_SHOWN})", "the edit is still shown")


def test_tab_jumps_and_makes_one_edit_after_the_other(window):
    until_shown(window, 1)
    window.press("Home", 36)
    window.until(f"!({HAS_HINT.format('Tab: next edit')})", "the hint is still at the cursor")
    window.press("End", 35)
    window.until(HAS_HINT.format("Tab: next edit in line 2 (2 places)"), "no hint at the cursor")
    window.press("Tab", 9)
    until_shown(window, 2)
    window.press("Tab", 9)
    window.until_saved(SECOND)
    until_shown(window, 4)
    window.press("Tab", 9)
    window.until_saved(ALL)
    window.until(f"!({IS_SHOWN})", "an edit is still shown")


def test_a_dismissed_edit_is_not_shown_after_a_save_but_by_a_key(window):
    until_shown(window, 1)
    dismiss(window)
    window.press("s", 83, ctrl=True)
    until_shown(window, 1)  # the other place
    dismiss(window)
    window.press("Home", 36)
    window.press("Tab", 9)
    window.until_saved(FIRST.replace("a = ", "    a = "))
    assert not window.run(IS_SHOWN)
    window.press("n", 78, ctrl=True, alt=True)
    window.until(IS_SHOWN, "no edit is shown by the key")


def test_escape_removes_the_other_cursors_before_it_dismisses_the_edit(window):
    until_shown(window, 1)
    window.command("Add Cursor Below")
    window.until(f"{NUM_CURSORS} === 2", "no second cursor")
    window.press("Escape", 27)
    window.until(f"{NUM_CURSORS} === 1", "the second cursor stays")
    assert window.run(IS_SHOWN)
    dismiss(window)


def dismiss_and_go_to(window, line, column):
    """Dismisses the edit that is shown, and has the next one proposed while the cursor is in a line."""
    until_shown(window, 1)
    dismiss(window)
    window.to_line(line)
    for _ in range(column):
        window.press("ArrowRight", 39)
    window.press("s", 83, ctrl=True)


def test_insertions_behind_the_cursor_are_ghost_text(open_file):
    window = open_file(SOURCE.replace("d = load(x, mode)", "d = load(x, mode), load(x, mode)"))
    dismiss_and_go_to(window, line=4, column=len("d = "))
    window.until_ghost()
    made = OTHER.replace("d = load(x, mode, strict=True)", "d = load(x, mode, strict=True), load(x, mode, strict=True)")
    assert window.lines[:4] == made.splitlines()
    assert not window.run(IS_SHOWN)
    window.press("Tab", 9)
    window.until_saved(made)


@pytest.mark.parametrize("column", [0, len("d = load(x, mode)")], ids=["indentation", "end"])
def test_in_the_line_of_the_cursor_other_edits_are_shown_behind_it(window, column):
    dismiss_and_go_to(window, line=4, column=column)
    until_shown(window, 4)
    assert window.ghost == ""
    window.press("Tab", 9)
    if column == 0:
        window.until_saved(FIRST.replace("d = ", "    d = "))
        return
    window.press("Tab", 9)
    window.until_saved(OTHER)


def test_the_edits_of_all_places_are_previewed_made_and_undone_as_one_step(window):
    until_shown(window, 1)
    window.press_until("document.querySelector('.action-widget .monaco-list-row')", "no actions", ".", 190, ctrl=True)
    window.click_text(".action-widget .monaco-list-row", "Apply to all 2 places")
    window.until("document.querySelector('.monaco-diff-editor')", "no preview")
    window.press_until("!document.querySelector('.monaco-diff-editor')", "the preview stays", "Enter", 13, ctrl=True)
    window.until_saved(ALL)
    window.press("z", 90, ctrl=True)
    window.until_saved(FIRST)


def test_with_a_manual_trigger_completions_come_only_on_request_and_stay_while_typed(shared):
    text = "def f(a):\n    total = a\n"
    shared.fill_file.write_text("total += 1\n    return total")
    shared.open_another(text)
    shared.to_end()
    shared.type("    ")
    shared.until_saved(text + "    ")
    assert shared.ghost == ""
    shared.press("\\", 220, alt=True)
    assert "total += 1" in shared.until_ghost()
    shared.type("t")
    shared.type("o")
    until(lambda: re.search(r"(?<!o)tal \+= 1$", shared.until_ghost()), lambda: shared.ghost)
    shared.press("End", 35, alt=True)
    shared.press("Escape", 27)
    shared.until_saved(text + "    total += 1\n")
