"""The last edits are repeated in the real VS Code: the next place is shown, Tab makes the edit, Escape hides it."""

import pytest
from code_server import until

SOURCE = "a = load(x, mode)\nb = load(x, mode)\nc = 1\nd = load(x, mode)\n"
FIRST = SOURCE.replace(", mode)", ", mode, strict=True)", 1)
SECOND = SOURCE.replace(", mode)", ", mode, strict=True)", 2)
ALL = SOURCE.replace(", mode)", ", mode, strict=True)")
IS_SHOWN = (
    "[...document.querySelectorAll('.view-line span')]"
    ".some(part => getComputedStyle(part, '::after').content.includes('→ '))"
)
POSITION = "document.getElementById('status.editor.selection')?.textContent ?? ''"


@pytest.fixture
def window(open_window):
    """Its first call has got an argument."""
    window = open_window(SOURCE, fill="x", settings={"dg-lsp.completion.trigger": "manual"})
    window.to_line(1)
    window.press("End", 35)
    window.press("ArrowLeft", 37)
    window.type(", strict=True")
    window.press("Delete", 46)  # of the bracket that VS Code may have added
    window.type(")")
    window.until_saved(FIRST)
    return window


def until_shown_in(window, line):
    """Waits until an edit is shown, and the cursor is in its line, counted from 1."""
    window.until(IS_SHOWN, "no edit is shown")
    until(lambda: f"Ln {line}," in window.run(POSITION), lambda: window.run(POSITION))


def test_tab_makes_one_edit_after_the_other(window):
    window.press("n", 78, ctrl=True, alt=True)
    until_shown_in(window, 2)
    window.press("Tab", 9)
    window.until_saved(SECOND)
    until_shown_in(window, 4)
    window.press("Tab", 9)
    window.until_saved(ALL)
    window.until(f"!({IS_SHOWN})", "an edit is still shown")


def test_escape_hides_the_edit_and_tab_indents_again(window):
    window.press("n", 78, ctrl=True, alt=True)
    until_shown_in(window, 2)
    window.press("Escape", 27)
    window.until(f"!({IS_SHOWN})", "the edit is still shown")
    window.press("Home", 36)
    window.press("Tab", 9)
    window.until_saved(FIRST.replace("b = ", "    b = "))


def test_the_edits_of_all_places_are_made_and_undone_as_one_step(window):
    window.command("dg-lsp: Make the Next Edit at All Places")
    window.until_saved(ALL)
    window.press("z", 90, ctrl=True)
    window.until_saved(FIRST)
