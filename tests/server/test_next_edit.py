"""Edits are proposed after a pause, never for excluded files, and not again once the user has gone on without them."""

import asyncio

import pytest

from dg_lsp.context.document import LineIndex
from dg_lsp.context.eligibility import Cause, Eligibility
from dg_lsp.server.documents import Change, Document, DocumentStore
from dg_lsp.server.next_edit import NextEditProvider

URI = "file:///a.py"
TEXT = "first = load(path, mode)\nsecond = load(path, mode)\n"
EDIT = Change(TEXT.index(")"), TEXT.index(")"), ", strict=True")
PROPOSED = ("second = load(path, mode)", "second = load(path, mode, strict=True)")


class Session:
    """A document that is edited, with a clock that stands still."""

    def __init__(self):
        self.seconds = 0.0
        self.store = DocumentStore()
        self.provider = NextEditProvider(self.store, clock=lambda: self.seconds)
        self.set_text(TEXT)

    def set_text(self, text):
        self.document = Document(URI, 1, "python", LineIndex.of(text))
        self.store._open[URI] = self.document

    def edit(self, change):
        text = self.document.lines.text
        self.provider.change(URI, text, [change])
        self.set_text(text[: change.start] + change.text + text[change.end :])

    def propose(self, eligibility=None, *, wait=1.0):
        self.seconds += wait
        return asyncio.run(self.provider.propose(self.document, eligibility or Eligibility()))


@pytest.fixture
def edited():
    session = Session()
    session.edit(EDIT)
    return session


def test_a_repeated_edit_is_proposed_after_a_pause(edited):
    [proposal] = edited.propose().proposals
    assert proposal.changed_line(edited.document.lines) == PROPOSED


def test_the_server_waits_for_the_pause(edited, monkeypatch):
    waits = []
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: waits.append(seconds) or asyncio.to_thread(int))
    assert edited.propose(wait=0.1).proposals
    assert waits == [pytest.approx(0.2)]


def test_a_document_that_changes_during_the_pause_gets_nothing(edited):
    document = edited.document
    edited.set_text("")
    edited.document = document
    assert edited.propose().reason == "the document has changed"


def test_nothing_is_proposed_without_an_edit():
    assert Session().propose().reason == "the document was not edited lately"


def test_an_excluded_document_is_forgotten(edited):
    assert edited.propose(Eligibility(Cause.EXCLUDED, "this file is not sent to the model")).proposals == ()
    assert edited.propose().reason == "the document was not edited lately"


def test_an_edit_that_was_displayed_and_not_made_is_not_proposed_again(edited):
    edited.provider.record_shown(URI, *PROPOSED)
    edited.edit(Change(0, 0, "import os\n"))
    assert edited.propose().reason == "the user has gone on without this edit before"


def test_an_edit_that_was_made_is_no_dismissal(edited):
    edited.provider.record_shown(URI, *PROPOSED)
    end = edited.document.lines.text.rindex(")")
    edited.edit(Change(end, end, ", strict=True"))
    assert edited.propose().reason == "no recent edit is likely to be repeated elsewhere"


def test_a_closed_document_is_forgotten(edited):
    edited.provider.close(URI)
    assert edited.propose().reason == "the document was not edited lately"
