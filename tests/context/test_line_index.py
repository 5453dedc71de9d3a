"""The line index against a reference that reads the text character by character."""

import sys

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


@given(TEXTS, st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), TEXTS), max_size=6))
def test_many_edits_stay_right(text, edits):
    index = LineIndex.of(text)
    for first, second, new in edits:
        start, end = sorted((first % (len(index.text) + 1), second % (len(index.text) + 1)))
        index = index.replaced(start, end, new)
    assert index.starts.tolist() == LineIndex.of(index.text).starts.tolist()


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
