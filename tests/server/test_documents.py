"""Open documents: edits and positions of a client, snapshots, and edits for the client."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types

from dg_lsp.context.document import Encoding, LineIndex
from dg_lsp.postprocess.validate import Candidate
from dg_lsp.server.documents import Change, DocumentStore, inline_item, lsp_range, minimal_changes

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


def params_at(line, character, selected=None):
    return types.InlineCompletionParams(
        context=types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic, selected),
        text_document=types.TextDocumentIdentifier(URI),
        position=types.Position(line, character),
    )


def test_a_snapshot_does_not_change():
    store = documents("before")
    earlier = snapshot(store)
    edit(store, (None, "after"))
    assert earlier.text == "before"
    assert earlier.version == 1


def test_after_a_line_that_opens_a_block_the_completion_begins_on_the_next_line():
    store = documents("class A:\n    def f(self):\n")
    position = store.completion_position(params_at(1, 16))
    assert position.snapshot.text == "class A:\n    def f(self):\n        \n"
    assert (position.offset, position.start, position.end) == (34, 25, 25)
    assert position.selected == "\n        "
    assert snapshot(store).text == "class A:\n    def f(self):\n"


@given(st.text(alphabet=st.characters(categories=["Cs", "Ll", "So"]), max_size=20))
def test_any_text_can_be_encoded_as_utf_8(text):
    assert len(snapshot(documents(text)).text.encode()) >= len(text)
    assert LineIndex.of(snapshot(documents(text)).text).num_lines >= 1


def item(text, encoding, line, character, selected=None):
    position = documents(text, encoding).completion_position(params_at(line, character, selected))
    return inline_item(Candidate("fill", -0.1), position, encoding)


@pytest.mark.parametrize(
    ("line", "character", "at"),
    [
        pytest.param(0, 99, (0, 4), id="column beyond the line"),
        pytest.param(9, 9, (1, 0), id="line beyond the text"),
        pytest.param(0, 3, (0, 2), id="inside a character"),
    ],
)
def test_the_range_of_an_item_is_inside_the_text(line, character, at):
    made = item("ab😋\r\n", Encoding.UTF16, line, character)
    assert made.range == span(*at, *at)


def test_a_range_may_span_lines():
    assert lsp_range(LineIndex.of("😋a\r\nbé"), 1, 6, Encoding.UTF16) == span(0, 2, 1, 2)


TEXTS = st.text(st.sampled_from("ab \t\r\n(é😋"), max_size=40)


def applied(text, changes):
    for change in reversed(changes):
        text = text[: change.start] + change.text + text[change.end :]
    return text


@given(TEXTS, TEXTS, TEXTS)
def test_minimal_changes_turn_the_old_text_into_the_new_one(before, old, new):
    changes = minimal_changes(old, new, len(before))
    assert applied(before + old, changes) == before + new
    for first, second in pairwise(changes):
        assert first.end <= second.start
    for change in changes:
        for at in (change.start - len(before), change.end - len(before)):
            assert old[at - 1 : at + 1] != "\r\n" or at == 0


def test_only_differing_text_is_changed():
    old = "a = 1\nb = 2\nc = 3\nd = 4\n"
    assert minimal_changes(old, old.replace("2", "20")) == (Change(11, 11, "0"),)
    assert minimal_changes(old, old.replace("b = 2\n", "")) == (Change(6, 12, ""),)
    changes = minimal_changes(old, "x = 1\nb = 2\nc = 3\nd = 5\n", 100)
    assert changes == (Change(100, 101, "x"), Change(122, 123, "5"))
    assert minimal_changes(old, old) == ()
