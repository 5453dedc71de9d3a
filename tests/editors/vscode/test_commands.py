"""Commands and messages of the extension in the real VS Code, over a scripted model."""

from code_server import until


def test_a_word_of_a_completion_can_be_accepted(open_window):
    window = open_window("def f(a):\n    total = a\n", fill="return total")
    window.to_end()
    window.type("    ")
    assert window.until_ghost() == "return total"
    window.press("ArrowRight", 39, ctrl=True)
    until(lambda: window.ghost == " total", lambda: window.ghost)
    window.press("Escape", 27)
    window.until_saved("def f(a):\n    total = a\n    return")


def test_completions_that_are_off_can_be_requested(open_window):
    on = {"dg-lsp.enable": True}
    window = open_window("def f(a):\n    total = a\n", fill="return total", settings=on)
    window.command("dg-lsp: Turn Completions On or Off")
    window.until_status("off")
    window.to_end()
    window.type("    ")
    window.until_saved("def f(a):\n    total = a\n    ")
    assert window.ghost == ""
    window.command("Trigger Inline Suggestion")
    assert window.until_ghost() == "return total"
    window.command("dg-lsp: Turn Completions On or Off")
    window.until(f"!{window.STATUS}.textContent.includes('off')", "it stays off")


def test_a_missing_server_can_be_installed_from_the_notification(open_window, code_server, install_program):
    code_server.put_program(
        "pipx", f'[ "$*" = "install dg-lsp" ] && mv {code_server.home}/waiting {code_server.home}/.local/bin/dg-lsp'
    )
    (code_server.home / ".local/bin").mkdir(parents=True)
    install_program(code_server.home / "waiting")
    window = open_window("def f(a):\n    total = a\n", has_server=False)
    window.until_text(".notification-list-item-message", "not installed")
    window.click_text(".notification-list-item .monaco-button", "Install with pipx")
    window.until_status("scripted")
    window.to_end()
    window.type("    ")
    assert window.until_ghost() == "return total"
    window.press("Tab", 9)
    window.until_saved("def f(a):\n    total = a\n    return total")


def test_the_status_names_a_program_that_cannot_be_started(open_window):
    window = open_window("", settings={"dg-lsp.server.path": "/nowhere/dg-lsp"}, has_server=False)
    until(lambda: "/nowhere/dg-lsp could not be started" in window.status_label, lambda: window.status_label)
