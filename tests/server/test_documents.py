"""Open documents: edits and positions of a client, snapshots, and edits for the client."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types

from dg_lsp.postprocess.text_edits import Change, minimal_changes
from dg_lsp.server.documents import DocumentStore

URI = "file:///a.py"


def documents(text):
    store = DocumentStore()
    store.open(types.TextDocumentItem(URI, "python", 1, text))
    return store


def span(*numbers):
    first_line, first, last_line, last = numbers
    return types.Range(types.Position(first_line, first), types.Position(last_line, last))


@given(st.text(alphabet=st.characters(categories=["Cs", "Ll", "So"]), max_size=20))
def test_any_text_can_be_encoded_as_utf_8(text):
    assert len(documents(text).get(URI).lines.text.encode()) >= len(text)


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
