"""Files in other languages than Python in the real VS Code."""

from code_server import until


def test_a_typescript_file_and_an_untitled_one_need_no_setting(open_window):
    window = open_window("const total = 1;\n", name="store.ts", fill="total + 1")
    window.to_end()
    window.type("const sum = ")
    assert window.until_ghost() == "total + 1"
    window.press("Tab", 9)
    window.until_saved("const total = 1;\nconst sum = total + 1")
    tab = "document.querySelector('.tab.active[data-resource-name=\"Untitled-1\"]')"
    window.press_until(tab, "no untitled file", "n", 78, ctrl=True)
    window.to_end()
    window.type("sum = ")
    assert window.until_ghost() == "total + 1"


def test_the_status_names_why_the_bundled_model_completes_no_typescript(open_window):
    window = open_window("const total = 1;\n", name="store.ts")
    window.until_status("dg-mini unsupported")
    reason = "dg-mini knows Python only; choose another model: dg-lsp setup"
    until(lambda: reason in window.status_label, lambda: window.status_label)
    window.to_end()
    window.type("const sum = ")
    window.command("Trigger Inline Suggestion")
    window.until_saved("const total = 1;\nconst sum = ")
    assert window.ghost == ""
    assert not [text for text in window.texts(".notification-list-item-message") if "dg-" in text]


def test_the_status_is_off_where_the_settings_leave_out_every_open_language(open_window):
    window = open_window("# Notes\n", name="notes.md", settings={"dg-lsp.languages": ["python"]}, has_server=False)
    window.until_status("off")
    assert "starts with the first file" in window.status_label
    assert "dg-lsp.languages does not name markdown" in window.status_label
