from dg_lsp.context.snippets import STRIDE, WINDOW, windows_of


def test_windows_overlap_and_cover_the_text():
    lines = [f"line{number}" for number in range(100)]
    windows = windows_of("\n".join(lines))
    assert [window.lines[0] for window in windows[:3]] == ["line0", f"line{STRIDE}", f"line{2 * STRIDE}"]
    assert all(len(window.lines) <= WINDOW for window in windows)
    assert {line for window in windows for line in window.lines} == set(lines)
    assert len(windows_of("")) == 1
