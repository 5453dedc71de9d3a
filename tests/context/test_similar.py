import pytest

from dg_lsp.context.snippets import (
    CAPACITY,
    STRIDE,
    WINDOW,
    RecentEdits,
    most_similar,
    windows_of,
    words_of,
)


def test_parts_overlap_and_cover_the_text():
    lines = [f"line{number}" for number in range(100)]
    parts = windows_of("\n".join(lines))
    assert [part.lines[0] for part in parts[:3]] == ["line0", f"line{STRIDE}", f"line{2 * STRIDE}"]
    assert all(len(part.lines) <= WINDOW for part in parts)
    assert {line for part in parts for line in part.lines} == set(lines)
    assert len(windows_of("")) == 1


def test_the_part_that_is_most_alike():
    text = "\n".join(["other = stuff"] * 40 + ["total = price * amount"] + ["other = stuff"] * 40)
    alike, part = most_similar(windows_of(text), words_of("total price amount"))
    assert "total = price * amount" in part.lines
    assert alike == pytest.approx(3 / 5)


def test_a_ring_takes_a_newer_state_of_a_place_for_an_older_one():
    ring = RecentEdits()
    body = " ".join(f"word{number}" for number in range(30))
    ring.add("a", "python", body)
    ring.add("b", "python", "something else")
    ring.add("a", "python", body + " more")
    ring.add("c", "python", "  \n")
    assert [(one.uri, one.text[-4:]) for one in ring.newest_first()] == [("a", "more"), ("b", "else")]


def test_the_oldest_edits_are_dropped():
    edits = RecentEdits()
    for number in range(CAPACITY + 2):
        edits.add(f"file{number}", "python", f"word{number}")
    assert [one.uri for one in edits.newest_first()] == [f"file{number}" for number in range(CAPACITY + 1, 1, -1)]
