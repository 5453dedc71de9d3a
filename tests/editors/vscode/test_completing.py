"""Grey text in the real VS Code, from the model that is bundled."""

import re

from code_server import until
from hostile import executed, make_hostile

WORDS = '''"""Counting and comparing words."""


def longest_word(words):
    longest = ""
    for word in words:
        if len(word) > len(longest):
            longest = word
'''


def test_what_is_typed_is_completed_and_saved(open_window, take_picture):
    window = open_window(WORDS)
    assert re.fullmatch(r"\S* ?dg-mini", window.status)
    window.to_end()
    window.type("    return ")
    ghost = window.until_ghost()
    take_picture(window, "vscode-completion.png")
    window.until_status(" ms")
    assert re.search(r"dg-mini \d+ ms$", window.status)
    window.press("Tab", 9)
    window.until_saved(f"{WORDS}    return {ghost}")
    # the server was told, and says so
    until(lambda: "1 accepted" in window.status_label, lambda: window.status_label)


def test_python_files_of_the_folder_are_not_executed(open_window, tmp_path):
    make_hostile(tmp_path / "project", tmp_path / "marks")
    window = open_window(WORDS)
    window.to_end()
    window.type("    return ")
    window.until_ghost()
    assert executed(tmp_path / "marks") == []


def test_an_emoji_before_the_cursor_shifts_nothing(open_window):
    window = open_window(WORDS)
    window.to_end()
    window.type("    mark = 'é😋")
    window.press("ArrowRight", 39)  # over the quotation mark that VS Code has put in
    window.type("; return ")
    ghost = window.until_ghost()
    window.press("Tab", 9)
    window.until_saved(f"{WORDS}    mark = 'é😋'; return {ghost}")


def test_a_server_that_dies_is_started_again(open_window, server_process):
    window = open_window(WORDS)
    window.to_end()
    window.type("    return ")
    first_ghost = window.until_ghost()
    window.press("Tab", 9)
    window.until_status(" ms")
    first = until(server_process, "no server runs")
    first.kill()
    until(lambda: window.status.endswith("dg-mini"), lambda: f"no new server: {window.status!r}")
    assert server_process().pid != first.pid
    window.press("Enter", 13, text="\r")
    window.type("mark = ")
    ghost = window.until_ghost()
    window.press("Tab", 9)
    window.until_saved(f"{WORDS}    return {first_ghost}\n    mark = {ghost}")


def test_the_model_is_seen_at_work(open_window, take_picture):
    window = open_window(WORDS, settings={"dg-lsp.completion.decoder": "diffusion"})
    window.command("dg-lsp: Show Denoising")
    frame = "document.querySelector('iframe.webview')?.contentDocument?.querySelector('iframe')?.contentDocument"
    # what is sent before its script has come is drawn by nobody
    is_there = f"{frame}?.querySelector('#hint') && {frame}.readyState === 'complete'"
    window.until(f"document.querySelector('iframe.webview') && {is_there}", "no view came up")
    window.command("View: Focus First Editor Group")
    window.to_end()
    window.type("    return ")
    window.until_ghost()
    window.until(f"{frame}.querySelectorAll('.row').length", "nothing is drawn")
    window.until(f"{frame}.querySelectorAll('.committed').length", "nothing was accepted")
    assert window.run(f"{frame}.querySelector('#file').textContent") == "main.py"
    take_picture(window, "vscode-denoising.png")
    window.press("Escape", 27)
    window.until_saved(f"{WORDS}    return ")
