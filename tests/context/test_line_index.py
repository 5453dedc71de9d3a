"""The line index against a reference that reads the text character by character."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.context.document import Encoding, LineIndex

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


@given(TEXTS)
def test_lines_end_where_lsp_says(text):
    index = LineIndex.of(text)
    assert [index.span(line) for line in range(index.num_lines)] == lines_of(text)


@given(TEXTS, st.integers(0, 12), st.integers(0, 60), ENCODINGS)
def test_offset_of_any_position(text, line, character, encoding):
    assert LineIndex.of(text).offset_at(line, character, encoding) == offset_by_walking(text, line, character, encoding)


@given(TEXTS, st.data(), ENCODINGS)
def test_there_and_back(text, data, encoding):
    index = LineIndex.of(text)
    offset = data.draw(st.integers(0, len(text)))
    line, character = index.position_at(offset, encoding)
    start, end = lines_of(text)[line]
    assert character == sum(map(WIDTH[encoding], text[start : min(offset, end)]))
    inside_crlf = text.startswith("\r\n", offset - 1) and offset > 0
    assert index.offset_at(line, character, encoding) == offset - inside_crlf


@given(TEXTS, TEXTS, st.data())
def test_an_edit_finds_the_lines_of_a_full_scan(text, new, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    edited = LineIndex.of(text).replaced(start, end, new)
    full = LineIndex.of(text[:start] + new + text[end:])
    assert edited.text == full.text
    assert edited.starts.tolist() == full.starts.tolist()


@given(TEXTS, st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), TEXTS), max_size=6))
def test_many_edits_stay_right(text, edits):
    index = LineIndex.of(text)
    for first, second, new in edits:
        start, end = sorted((first % (len(index.text) + 1), second % (len(index.text) + 1)))
        index = index.replaced(start, end, new)
    assert index.starts.tolist() == LineIndex.of(index.text).starts.tolist()


@pytest.mark.parametrize(
    ("text", "line", "character", "encoding", "offset"),
    [
        pytest.param("", 0, 0, Encoding.UTF16, 0, id="empty file"),
        pytest.param("", 5, 7, Encoding.UTF16, 0, id="anywhere in an empty file"),
        pytest.param("abc", 0, 3, Encoding.UTF16, 3, id="end of a file without newline"),
        pytest.param("abc", 0, 4, Encoding.UTF16, 3, id="column beyond it is its end"),
        pytest.param("abc\n", 1, 0, Encoding.UTF16, 4, id="the empty line after the last newline"),
        pytest.param("abc\n", 2, 0, Encoding.UTF16, 4, id="line beyond the text is its end"),
        pytest.param("a\r\nb", 0, 2, Encoding.UTF16, 1, id="never inside a carriage return and line feed"),
        pytest.param("a\rb", 1, 1, Encoding.UTF16, 3, id="a carriage return ends a line"),
        pytest.param("a\fb\u2028c\x85d\ne", 1, 1, Encoding.UTF32, 9, id="form feed, U+2028 and U+0085 end none"),
        pytest.param("# é😋x", 0, 8, Encoding.UTF8, 4, id="UTF-8 after é😋"),
        pytest.param("# é😋x", 0, 5, Encoding.UTF16, 4, id="UTF-16 after é😋"),
        pytest.param("# é😋x", 0, 4, Encoding.UTF32, 4, id="UTF-32 after é😋"),
        pytest.param("# é😋x", 0, 4, Encoding.UTF16, 3, id="between surrogates: before the character"),
        pytest.param("# é😋x", 0, 6, Encoding.UTF8, 3, id="between bytes: before the character"),
        pytest.param("a" * 9, 0, 2**31 - 1, Encoding.UTF8, 9, id="largest column"),
    ],
)
def test_places(text, line, character, encoding, offset):
    assert LineIndex.of(text).offset_at(line, character, encoding) == offset


def test_a_keystroke_scans_only_what_it_touches(monkeypatch):
    """20,000 lines, one character typed: counted in characters scanned, not in seconds."""
    index = LineIndex.of("    value = é + 1\n" * 20_000)
    module = sys.modules[LineIndex.__module__]
    scanned, scan = [], module._line_ends
    monkeypatch.setattr(module, "_line_ends", lambda text: scanned.append(len(text)) or scan(text))
    middle = len(index.text) // 2
    edited = index.replaced(middle, middle, "x")
    assert edited.num_lines == 20_001
    assert scanned == [3]
