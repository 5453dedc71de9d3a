"""Ghost text of the bundled model in the real VS Code."""

import re
import sys
from contextlib import closing

from code_server import EAGER, ROOT, CodeServer, Window, until
from hostile import executed, make_hostile, make_hostile_settings

WORDS = '''"""Counting and comparing words."""


def longest_word(words):
    longest = ""
    for word in words:
        if len(word) > len(longest):
            longest = word
'''


def test_an_accepted_completion_is_saved(open_window, take_picture, tmp_path):
    """No Python file of the folder is executed meanwhile."""
    make_hostile(tmp_path / "project", tmp_path / "marks")
    window = open_window(WORDS)
    assert re.fullmatch(r"\S* ?dg-mini", window.status)
    ghost = window.show("    return ")
    take_picture(window, "vscode-completion.png")
    window.until_status(" ms")
    assert re.search(r"dg-mini \d+ ms$", window.status)
    window.press("Tab", 9)
    window.until_saved(f"{WORDS}    return {ghost}")
    # the server counts it
    until(lambda: "1 accepted" in window.status_label, lambda: window.status_label)
    assert executed(tmp_path / "marks") == []


def test_nothing_of_a_folder_in_restricted_mode_is_executed_or_obeyed(browser, code_server, tmp_path):
    project, marks = tmp_path / "project", tmp_path / "marks"
    make_hostile(project, marks)
    make_hostile_settings(project, marks)
    file = project / "main.py"
    file.write_text(WORDS)
    (tmp_path / "server").mkdir()
    with closing(CodeServer(tmp_path / "server", settings=EAGER, trusts_all=False, like=code_server)) as server:
        server.put_program("dg-lsp", f'PYTHONPATH={ROOT} exec {sys.executable} -m dg_lsp "$@"')
        browser.renew()
        window = Window(browser, server, project, file)
        window.until_status("dg-mini")
        window.until_text(".notification-list-item-message", "the editor does not trust this folder")
        window.show("    return ")
        assert executed(marks) == []


def test_the_denoising_view_shows_the_canvas_or_how_to_see_one(open_window, take_picture):
    window = open_window(WORDS, settings={"dg-lsp.completion.decoder": "diffusion"})
    window.command("dg-lsp: Show Denoising")
    frame = "document.querySelector('iframe.webview')?.contentDocument?.querySelector('iframe')?.contentDocument"
    # messages that arrive before its script are lost
    is_there = f"{frame}?.querySelector('#hint') && {frame}.readyState === 'complete'"
    window.until(f"document.querySelector('iframe.webview') && {is_there}", "no view")
    window.command("View: Focus First Editor Group")
    window.show("    return ")
    window.until(f"{frame}.querySelectorAll('.row').length", "no row")
    window.until(f"{frame}.querySelectorAll('.committed').length", "no committed token")
    assert window.run(f"{frame}.querySelector('#file').textContent") == "main.py"
    assert window.run(f"{frame}.querySelector('#no-canvas').hidden")
    take_picture(window, "vscode-denoising.png")
    window.press("Escape", 27)
    window.until_saved(f"{WORDS}    return ")
    window.change_settings(**{"dg-lsp.completion.decoder": "autoregressive"})
    # the setting may reach the server some keys later
    has_no_canvas = lambda: window.run(f"!{frame}.querySelector('#no-canvas').hidden") or window.type("l")  # noqa: E731
    until(has_no_canvas, "a canvas is still shown", pause=0.5)
    window.until(f"{frame}.querySelectorAll('.committed').length", "no committed token")
