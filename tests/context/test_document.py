"""Lines, the cursor's surroundings and the text style. The line index is compared with a walk over the characters."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.document import REACH, SAMPLE_CHARS, Cursor, Encoding, LineIndex, TextStyle

TEXTS = st.text(alphabet="ab\n\r\t\f\v\x1c\x85\u2028\u2029é→😋", max_size=40)
ENCODINGS = st.sampled_from(Encoding)
WIDTH = {
    Encoding.UTF8: lambda c: len(c.encode()),
    Encoding.UTF16: lambda c: len(c.encode("utf-16-le")) // 2,
    Encoding.UTF32: len,
}


def lines_of(text):
    """(start, end without the line end) of every line, by the words of the specification."""
    spans, start, at = [], 0, 0
    while at < len(text):
        width = 2 if text.startswith("\r\n", at) else 1 if text[at] in "\r\n" else 0
        if width:
            spans.append((start, at))
            start = at = at + width
        else:
            at += 1
    return [*spans, (start, len(text))]


def offset_by_walking(text, line, character, encoding):
    spans = lines_of(text)
    if line >= len(spans):
        return len(text)
    start, end = spans[line]
    units = 0
    for at in range(start, end):
        units += WIDTH[encoding](text[at])
        if units > character:
            return at
    return end


@given(TEXTS, st.integers(0, 12), st.integers(0, 60), ENCODINGS)
def test_lines_end_as_in_the_specification_and_any_position_has_its_offset(text, line, character, encoding):
    index = LineIndex.of(text)
    assert [index.span(number) for number in range(index.num_lines)] == lines_of(text)
    assert index.offset_at(line, character, encoding) == offset_by_walking(text, line, character, encoding)


@given(TEXTS, st.data(), ENCODINGS)
def test_an_offset_becomes_a_position_and_an_offset_again(text, data, encoding):
    index = LineIndex.of(text)
    offset = data.draw(st.integers(0, len(text)))
    line, character = index.position_at(offset, encoding)
    start, end = lines_of(text)[line]
    assert character == sum(map(WIDTH[encoding], text[start : min(offset, end)]))
    inside_crlf = text.startswith("\r\n", offset - 1) and offset > 0
    assert index.offset_at(line, character, encoding) == offset - inside_crlf


@given(TEXTS, st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), TEXTS), max_size=6))
def test_lines_stay_correct_after_edits(text, edits):
    index = LineIndex.of(text)
    for first, second, new in edits:
        start, end = sorted((first % (len(index.text) + 1), second % (len(index.text) + 1)))
        index = index.replaced(start, end, new)
    assert index.starts.tolist() == LineIndex.of(index.text).starts.tolist()


def test_a_keystroke_scans_only_the_changed_characters(monkeypatch):
    """20,000 lines, one character typed: counted in characters scanned, not in seconds."""
    index = LineIndex.of("    value = é + 1\n" * 20_000)
    module = sys.modules[LineIndex.__module__]
    scanned, scan = [], module._line_ends
    monkeypatch.setattr(module, "_line_ends", lambda text: scanned.append(len(text)) or scan(text))
    middle = len(index.text) // 2
    edited = index.replaced(middle, middle, "x")
    assert edited.num_lines == 20_001
    assert scanned == [3]


GIANT = "a" * 5 * REACH


@pytest.mark.parametrize(
    ("marked", "cursor"),
    [
        pytest.param("|", Cursor("", ""), id="an empty buffer"),
        pytest.param("a\nb|", Cursor("b", "", ("a",)), id="the end of a file without a last line end"),
        pytest.param("a\nb\n|", Cursor("", "", ("a", "b")), id="the end of a file with one"),
        pytest.param("a\n\nx = | 1\n\nb\n", Cursor("x = ", " 1", ("a", ""), ("", "b", "")), id="the middle of a line"),
        pytest.param("a\r\n\tb|c\r\nd", Cursor("\tb", "c", ("a",), ("d",)), id="CRLF and a tab"),
        pytest.param("a\rb|c\rd", Cursor("b", "c", ("a",), ("d",)), id="CR"),
        pytest.param("a\x0cb|\u2028c", Cursor("a\x0cb", "\u2028c"), id="form feed and U+2028 end no line"),
        pytest.param(f"{GIANT}|{GIANT}", Cursor("a" * REACH, "a" * REACH), id="a giant line is cut"),
    ],
)
def test_the_cursor_has_its_line_and_the_lines_around_it(marked, cursor):
    assert Cursor.at(marked.replace("|", "", 1), marked.index("|")) == cursor


TABS = TextStyle("\n", True)


@pytest.mark.parametrize(
    ("text", "line_end", "uses_tabs"),
    [
        pytest.param("", "\n", False, id="an empty buffer is LF with spaces"),
        pytest.param("a\nb\n", "\n", False, id="LF"),
        pytest.param("a\r\nb\r\n", "\r\n", False, id="CRLF"),
        pytest.param("a\r\nb\r\nc\n", "\r\n", False, id="the most common of mixed line ends"),
        pytest.param("a\x0cb\u2028c\r\nd", "\r\n", False, id="form feed and U+2028 end no line"),
        pytest.param("if x:\n\ty\n", "\n", True, id="tabs"),
        pytest.param("if x:\n\ty\n  z\n    z\n", "\n", False, id="more lines with spaces than with tabs"),
        pytest.param("/*\n * a\n * b\n */\nf() {\n\tx\n}\n", "\n", True, id="one leading space is no indentation"),
    ],
)
def test_the_style_is_that_of_most_lines(text, line_end, uses_tabs):
    assert TextStyle.of(text) == TextStyle(line_end, uses_tabs)


def test_the_style_is_that_of_the_text_near_the_cursor():
    text = "a\r\n" * SAMPLE_CHARS + "if x:\n\ty\n" * SAMPLE_CHARS
    assert TextStyle.of(text) == TextStyle("\r\n", False)
    assert TextStyle.of(text, len(text)) == TABS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a\r\nb\rc\nd", "a\nb\nc\nd", id="every line end is LF"),
        pytest.param("\tif x:\n\t\ty", "    if x:\n        y", id="tabs are four spaces"),
        pytest.param("  \tx", "    x", id="a tab goes to the next column of four"),
        pytest.param("a  \n\t\nb", "a\n\nb", id="trailing blanks are removed"),
        pytest.param("a\nx = ", "a\nx = ", id="trailing blanks before the cursor stay"),
        pytest.param("a\x0cb\u2028c", "a\x0cb\u2028c", id="form feed and U+2028 are text"),
        pytest.param("# é😋 日本", "# é😋 日本", id="emoji and CJK are unchanged"),
        pytest.param("x\ud83d", "x\ufffd", id="half a surrogate pair cannot be encoded"),
    ],
)
def test_the_model_receives_line_feeds_and_spaces(text, shown):
    assert TextStyle().to_model(text) == shown


@pytest.mark.parametrize(
    ("style", "line_prefix", "fill", "text"),
    [
        pytest.param(TextStyle("\r\n"), "", "a\nb\n", "a\r\nb\r\n", id="CRLF"),
        pytest.param(TextStyle("\r"), "", "a\nb", "a\rb", id="CR"),
        pytest.param(TABS, "", "if x:\n    y\n      z", "if x:\n\ty\n\t  z", id="tabs and remaining spaces"),
        pytest.param(TABS, "\t", "    x", "\tx", id="the first line continues in columns of four"),
        pytest.param(TABS, "  ", "  x", "  x", id="blanks before a column of four stay"),
        pytest.param(TABS, "x =", "    1", "    1", id="blanks inside a line stay"),
        pytest.param(TABS, "    ", "a:\n        b", "a:\n        b", id="spaces in a file with tabs"),
        pytest.param(TextStyle(), "\t", "a:\n        b\n    c", "a:\n\t\tb\n\tc", id="tabs in a file with spaces"),
        pytest.param(TABS, "\t  ", "a(\n      b\n    c", "a(\n\t  b\n\tc", id="a mixed indentation is repeated"),
        pytest.param(TABS, "  \t", "a(\n    b", "a(\n  \tb", id="spaces before a tab are repeated"),
        pytest.param(TABS, "\t", "a\n\nb", "a\n\nb", id="an empty line stays empty"),
    ],
)
def test_a_fill_has_the_style_of_the_buffer(style, line_prefix, fill, text):
    assert style.from_model(fill, line_prefix) == text


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["x", "é😋 = 1", "f(a,  b)"])), min_size=1),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
def test_text_that_the_model_received_returns_unchanged(lines, line_end, uses_tabs):
    text = line_end.join(("\t" if uses_tabs else "    ") * depth + body for depth, body in lines)
    style = TextStyle(line_end, uses_tabs)
    assert style.from_model(style.to_model(text), "") == text
