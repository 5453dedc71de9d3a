from dg_lsp.context.snippets import CAPACITY, STRIDE, WINDOW, RecentEdits, windows_of


def test_windows_overlap_and_cover_the_text():
    lines = [f"line{number}" for number in range(100)]
    windows = windows_of("\n".join(lines))
    assert [window.lines[0] for window in windows[:3]] == ["line0", f"line{STRIDE}", f"line{2 * STRIDE}"]
    assert all(len(window.lines) <= WINDOW for window in windows)
    assert {line for window in windows for line in window.lines} == set(lines)
    assert len(windows_of("")) == 1


def test_a_newer_edit_of_the_same_code_replaces_the_older_one():
    edits = RecentEdits()
    body = " ".join(f"word{number}" for number in range(30))
    edits.add("a", "python", body)
    edits.add("b", "python", "something else")
    edits.add("a", "python", body + " more")
    edits.add("c", "python", "  \n")
    assert [(edit.uri, edit.text[-4:]) for edit in edits.newest_first()] == [("a", "more"), ("b", "else")]


def test_the_oldest_edits_are_dropped():
    edits = RecentEdits()
    for number in range(CAPACITY + 2):
        edits.add(f"file{number}", "python", f"word{number}")
    assert [edit.uri for edit in edits.newest_first()] == [f"file{number}" for number in range(CAPACITY + 1, 1, -1)]
