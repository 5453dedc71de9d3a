"""Files in other languages than Python in the real VS Code."""


def test_a_typescript_file_and_an_untitled_one_need_no_setting(open_window):
    window = open_window("const total = 1;\n", name="store.ts", fill="total + 1")
    assert window.show("const sum = ") == "total + 1"
    window.press("Tab", 9)
    window.until_saved("const total = 1;\nconst sum = total + 1")
    tab = "document.querySelector('.tab.active[data-resource-name=\"Untitled-1\"]')"
    window.press_until(tab, "no untitled file", "n", 78, ctrl=True)
    assert window.show("sum = ") == "total + 1"


def test_the_status_is_off_where_the_settings_leave_out_every_open_language(open_window):
    window = open_window("# Notes\n", name="notes.md", settings={"dg-lsp.languages": ["python"]}, has_server=False)
    window.until_status("off")
    assert "starts with the first file" in window.status_label
    assert "dg-lsp.languages does not name markdown" in window.status_label
