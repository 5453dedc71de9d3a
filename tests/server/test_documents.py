"""Open documents: what a client says, and the snapshot that comes of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types

from dg_lsp.context.document import Encoding, LineIndex
from dg_lsp.server.documents import DocumentStore

URI = "file:///a.py"


def documents(text, encoding=Encoding.UTF16):
    store = DocumentStore(encoding)
    store.open(types.TextDocumentItem(URI, "python", 1, text))
    return store


def span(*numbers):
    first_line, first, last_line, last = numbers
    return types.Range(types.Position(first_line, first), types.Position(last_line, last))


def edit(store, *changes, version=2):
    events = [
        types.TextDocumentContentChangeWholeDocument(text)
        if where is None
        else types.TextDocumentContentChangePartial(range=span(*where), text=text)
        for where, text in changes
    ]
    return store.change(types.VersionedTextDocumentIdentifier(version, URI), events)


def snapshot(store):
    return store.get(URI).snapshot()


def asked(line, character, selected=None):
    return types.InlineCompletionParams(
        context=types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic, selected),
        text_document=types.TextDocumentIdentifier(URI),
        position=types.Position(line, character),
    )


@pytest.mark.parametrize(
    ("text", "where", "new", "expected"),
    [
        pytest.param("", (0, 0, 0, 0), "x", "x", id="into nothing"),
        pytest.param("abc", (0, 3, 0, 3), "d", "abcd", id="at a file's end without newline"),
        pytest.param("a\nb\n", (2, 0, 2, 0), "c", "a\nb\nc", id="after the last newline"),
        pytest.param("a\nb\n", (5, 5, 9, 9), "c", "a\nb\nc", id="beyond the end"),
        pytest.param("abcd", (0, 3, 0, 1), "-", "a-d", id="a range the wrong way round"),
        pytest.param("a\r\nb", (0, 1, 1, 0), "", "ab", id="a CRLF removed"),
        pytest.param("a\r\nb", (0, 2, 0, 2), "x", "ax\r\nb", id="never inside a CRLF"),
        pytest.param("\f\na\u2028b\nc", (2, 0, 2, 1), "x", "\f\na\u2028b\nx", id="no line ends of Python's"),
        pytest.param("é😋x", (0, 3, 0, 4), "y", "é😋y", id="UTF-16 units"),
        pytest.param("é😋x", (0, 2, 0, 3), "y", "éyx", id="a character goes as a whole"),
        pytest.param("x", (0, 1, 0, 1), "\ud83d", "x\ufffd", id="a lone surrogate is replaced"),
        pytest.param("gone", None, "all new", "all new", id="the whole text"),
    ],
)
def test_an_edit(text, where, new, expected):
    store = documents(text)
    assert edit(store, (where, new), version=9)
    assert snapshot(store).text == expected
    assert snapshot(store).version == 9


def test_edits_of_one_change_build_on_each_other():
    store = documents("ab")
    edit(store, ((0, 1, 0, 1), "\n"), ((1, 0, 1, 1), "c"), (None, "x"), ((0, 1, 0, 1), "y"))
    assert snapshot(store).text == "xy"


def test_a_snapshot_stays_as_it_was():
    store = documents("before")
    earlier = snapshot(store)
    edit(store, (None, "after"))
    assert earlier.text == "before"
    assert earlier.version == 1


def test_documents_that_are_not_open():
    store = DocumentStore(Encoding.UTF8)
    assert not edit(store, (None, "x"))
    assert store.get(URI) is None
    assert store.cursor(asked(0, 0)) is None
    store.close(URI)


def test_opened_again_it_is_as_the_client_says_now():
    store = documents("old")
    store.open(types.TextDocumentItem(URI, "toml", 5, "new"))
    assert (snapshot(store).text, snapshot(store).language, snapshot(store).version) == ("new", "toml", 5)
    store.close(URI)
    assert store.get(URI) is None


@pytest.mark.parametrize(("encoding", "character"), [(Encoding.UTF8, 8), (Encoding.UTF16, 5), (Encoding.UTF32, 4)])
def test_the_cursor_in_the_clients_units(encoding, character):
    cursor = documents("# é😋x", encoding).cursor(asked(0, character))
    assert cursor.offset == cursor.start == cursor.end == 4
    assert cursor.selected == ""
    assert cursor.snapshot == documents("# é😋x").get(URI).snapshot()


def test_the_popups_item_stands_in_the_snapshot_but_not_in_the_document():
    store = documents("x = pri\n")
    selected = types.SelectedCompletionInfo(range=span(0, 4, 0, 7), text="print")
    cursor = store.cursor(asked(0, 7, selected))
    assert cursor.snapshot.text == "x = print\n"
    assert (cursor.offset, cursor.start, cursor.end, cursor.selected) == (9, 4, 7, "print")
    assert snapshot(store).text == "x = pri\n"


def test_behind_a_line_that_opens_a_block_the_fill_begins_on_the_next_one():
    store = documents("class A:\n    def f(self):\n")
    cursor = store.cursor(asked(1, 16))
    assert cursor.snapshot.text == "class A:\n    def f(self):\n        \n"
    assert (cursor.offset, cursor.start, cursor.end) == (34, 25, 25)
    assert cursor.selected == "\n        "
    assert snapshot(store).text == "class A:\n    def f(self):\n"


@given(st.text(alphabet=st.characters(categories=["Cs", "Ll", "So"]), max_size=20))
def test_any_text_a_client_can_send_survives_utf_8(text):
    assert len(snapshot(documents(text)).text.encode()) >= len(text)
    assert LineIndex.of(snapshot(documents(text)).text).num_lines >= 1
