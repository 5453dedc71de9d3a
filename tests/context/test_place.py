import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.document import REACH, Cursor


def place_of(marked):
    return Cursor.at(marked.replace("|", "", 1), marked.index("|"))


@pytest.mark.parametrize(
    ("marked", "place"),
    [
        pytest.param("|", Cursor("", ""), id="an empty buffer"),
        pytest.param("|a\nb", Cursor("", "a", (), ("b",)), id="offset 0"),
        pytest.param("a\nb|", Cursor("b", "", ("a",)), id="the end of a file without a last line end"),
        pytest.param("a\nb\n|", Cursor("", "", ("a", "b")), id="the end of a file with one"),
        pytest.param("a\n\nx = | 1\n\nb\n", Cursor("x = ", " 1", ("a", ""), ("", "b", "")), id="the middle of a line"),
        pytest.param("a\r\n\tb|c\r\nd", Cursor("\tb", "c", ("a",), ("d",)), id="CRLF and a tab"),
        pytest.param("a\rb|c\rd", Cursor("b", "c", ("a",), ("d",)), id="CR"),
        pytest.param("a\x0cb|\u2028c", Cursor("a\x0cb", "\u2028c"), id="form feed and U+2028 end no line"),
        pytest.param("# é😋|x", Cursor("# é😋", "x"), id="after an emoji"),
    ],
)
def test_place(marked, place):
    assert place_of(marked) == place


def test_a_line_that_is_cut_is_no_neighbour():
    place = Cursor.at("a" * REACH + "\nbb\n" + "c\n" + "d" * REACH, REACH + 1)
    assert (place.above, place.below) == ((), ("c",))


def test_a_giant_line_is_cut():
    place = Cursor.at("a" * 10 * REACH, 5 * REACH)
    assert place == Cursor("a" * REACH, "a" * REACH)


def test_as_shown_expands_tabs_in_columns_of_the_whole_line():
    assert place_of("\ta\n\tx|\ty\n\tb").as_shown() == Cursor("    x", "   y", ("    a",), ("    b",))


@given(st.text("ab \t\r\n\x0c😋", max_size=40), st.data())
def test_the_pieces_are_the_buffer(text, data):
    offset = data.draw(st.integers(0, len(text)))
    place = Cursor.at(text, offset)
    assert text[:offset].endswith(place.line_prefix)
    assert text[offset:].startswith(place.line_rest)
    assert "".join(place.above) + place.line_prefix == text[:offset].replace("\r", "").replace("\n", "")
    assert place.line_rest + "".join(place.below) == text[offset:].replace("\r", "").replace("\n", "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("retu|rn total_of(x)", True),
        ("retu|rn total  ", False),  # eight characters follow
        ("return |total_of_all", False),
        ("return total_of_al|l", False),
        ("tot|al", False),
        ("|", False),
    ],
)
def test_a_cursor_deep_inside_a_word_wants_nothing(line, expected):
    assert Cursor.at(line.replace("|", ""), line.index("|")).is_deep_inside_word is expected
