"""When edits are proposed: after a pause, an accepted item or a save; never in excluded files, never twice unasked."""

import asyncio
import itertools

import pytest

from dg_lsp.context.document import LineIndex
from dg_lsp.context.exclusion import Exclusion
from dg_lsp.engine.edit_source import NextEditResult, NextEdits
from dg_lsp.engine.next_edit import Proposal
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.text_edits import Change
from dg_lsp.server.documents import Document, DocumentStore
from dg_lsp.server.next_edit import NextEditProvider
from dg_lsp.settings import NextEditSettings, PrivacySettings

URI = "file:///a.py"
TEXT = "first = load(path, mode)\nsecond = load(path, mode)\n"
EDIT = Change(TEXT.index(")"), TEXT.index(")"), ", strict=True")
RENAMED = "def f(width):\n    if width < 0:\n        raise ValueError(width)\n    return width\n"
PROPOSED = ("second = load(path, mode)", "second = load(path, mode, strict=True)")


class Session:
    """A document that is edited, with a clock that stands still."""

    def __init__(self):
        self.seconds = 0.0
        self.store = DocumentStore()
        self.exclusion = Exclusion(PrivacySettings())
        names = map(str, itertools.count())
        self.provider = NextEditProvider(
            self.store, self.exclusion, self.ask_model, names.__next__, clock=lambda: self.seconds
        )
        self.requests = []
        self.result = None
        self.set_text(TEXT)

    async def ask_model(self, request):
        self.requests.append(request)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def set_text(self, text):
        self.document = Document(URI, 1, "python", LineIndex.of(text))
        self.store._open[URI] = self.document

    def edit(self, *changes, **options):
        """Each change is one of the text after those before it."""
        before = lines = self.document.lines
        for change in changes:
            lines = lines.replaced(change.start, change.end, change.text)
        self.set_text(lines.text)
        self.provider.change(URI, before, changes, **options)

    def replace(self, old, new):
        """Replaces the first occurrence of a text."""
        start = self.document.lines.text.index(old)
        self.edit(Change(start, start + len(old), new))

    def propose(self, *, wait=1.0, is_requested=False, **settings):
        self.seconds += wait
        proposing = self.provider.propose(self.document, NextEditSettings(**settings), is_requested=is_requested)
        named, reason = asyncio.run(proposing)
        return NextEdits([*named.values()], reason)

    def exclude_once(self):
        self.exclusion.settings = PrivacySettings(exclude_languages=("python",))
        assert "not sent to the model" in self.propose().reason
        self.exclusion.settings = PrivacySettings()

    def accept(self, *proposals):
        ordered = sorted(proposals, key=lambda proposal: -proposal.start)
        self.edit(*(Change(proposal.start, proposal.end, proposal.text) for proposal in ordered))

    def history(self):
        past = self.provider._pasts[URI]
        return [(edit.new, edit.is_accepted) for edit in past.history.edits(self.document.lines, self.seconds)]


@pytest.fixture
def edited():
    session = Session()
    session.edit(EDIT)
    return session


@pytest.fixture
def waits(monkeypatch):
    """The seconds of each pause."""
    waits = []
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: waits.append(seconds) or asyncio.to_thread(int))
    return waits


@pytest.mark.parametrize(
    ("before", "is_requested", "wait"),
    [
        (lambda session: session.edit(EDIT), False, [pytest.approx(0.2)]),
        (lambda session: session.edit(EDIT), True, []),
        (lambda session: (session.edit(EDIT), session.provider.end_pause()), False, [0.0]),
        (lambda session: session.edit(EDIT, is_accepted=True), False, [0.0]),
    ],
    ids=["typed", "on request", "saved", "an accepted completion"],
)
def test_a_repeated_edit_is_proposed_after_a_pause(waits, before, is_requested, wait):
    session = Session()
    before(session)
    [proposal] = session.propose(wait=0.1, is_requested=is_requested).proposals
    assert proposal.changed_line(session.document.lines) == PROPOSED
    assert waits == wait


def test_an_accepted_edit_ends_the_pause_and_is_marked(edited, waits):
    edited.accept(*edited.propose().proposals)
    assert edited.history()[0] == ("second = load(path, mode, strict=True)\n", True)
    waits.clear()
    edited.propose(wait=0.0)
    assert waits == [0.0]


@pytest.mark.parametrize(
    "forget",
    [
        lambda session: session.replace(", strict=True", ""),
        lambda session: session.provider.close(URI),
        Session.exclude_once,
    ],
    ids=["undone", "closed", "excluded"],
)
def test_an_edit_that_is_gone_is_not_repeated(edited, forget):
    forget(edited)
    assert edited.propose().reason == "the document was not edited lately"


def test_a_setting_turns_next_edits_off(edited):
    assert edited.propose(is_requested=True, enabled=False).reason == "next edits are off (next_edit.enabled is false)"


def test_an_edit_that_was_accepted_and_undone_is_not_proposed_again(edited):
    [proposal] = edited.propose().proposals
    edited.accept(proposal)
    edited.edit(Change(proposal.start, proposal.start + len(proposal.text), ""))
    assert edited.history() == [("first = load(path, mode, strict=True)\n", False)]
    assert edited.propose().reason == "the user has gone on without this edit before"


MANY = "a = 'x'\nb = load(p, mode)\nc = 'x'\nd = load(p, mode)\ne = 'x'\n"


@pytest.fixture
def renamed():
    """A document with two edits that other lines follow."""
    session = Session()
    session.set_text(MANY)
    session.replace("mode", "kind")
    return session


def test_a_format_of_several_lines_makes_no_edits_and_keeps_those_of_the_user(renamed):
    text = renamed.document.lines.text
    first, last = text.index("'x'"), text.rindex("'x'")
    renamed.edit(Change(last, last + 3, '"x"'), Change(first, first + 3, '"y"'))
    assert renamed.history() == [("b = load(p, kind)\n", False)]


def test_a_reload_of_the_whole_text_makes_no_edits(renamed):
    text = renamed.document.lines.text
    new = text.replace("a = 'x'", "a = 'y'").replace("c = 'x'", "c = 'z'").replace("kind", "sort")
    renamed.edit(Change(0, len(text), new))
    assert renamed.history() == []


def test_the_same_change_by_several_cursors_is_an_edit(renamed):
    text = renamed.document.lines.text
    starts = [text.rindex("'x'"), text.index("'x'")]
    renamed.edit(*(Change(start, start + 3, "'y'") for start in starts))
    assert {new for new, _ in renamed.history()} >= {"a = 'y'\n", "e = 'y'\n"}


def test_an_edit_made_at_all_its_places_is_accepted_while_another_is_proposed(renamed):
    renamed.set_text(TEXT + RENAMED)
    renamed.provider.close(URI)
    renamed.replace("width", "length")
    renamed.replace("width <", "length <")
    renamed.edit(EDIT)
    proposals = renamed.propose().proposals
    places = proposals[-1].places(proposals)
    assert (len(places), len(proposals)) == (2, 3)
    renamed.accept(*places)
    assert [is_accepted for _, is_accepted in renamed.history()] == [True, True, False, False, False]


# edits of a model


LINE = TEXT.index("first")
FROM_MODEL = Proposal(LINE, LINE + 5, "third", 0.9)


@pytest.fixture
def unrepeated():
    session = Session()
    session.replace("second = load(path, mode)", "return 3")
    return session


def test_a_model_is_asked_where_no_edit_is_repeated(unrepeated):
    unrepeated.result = NextEditResult((FROM_MODEL,), "zeta-2")
    assert unrepeated.propose().proposals == [FROM_MODEL]
    [request] = unrepeated.requests
    assert (request.snapshot.text, request.edits[0].old) == (
        unrepeated.document.lines.text,
        TEXT.splitlines()[1] + "\n",
    )
    assert request.cursor == request.snapshot.text.index("return 3") + len("return 3")


def test_the_error_of_a_model_is_the_reason(unrepeated):
    unrepeated.result = RequestError("the code contains a mark")
    assert unrepeated.propose().reason == "no recent edit is likely to be repeated elsewhere; the code contains a mark"


def test_a_change_ends_the_work_of_the_model(unrepeated):
    ended = []

    async def wait(_request):
        unrepeated.replace("load", "read")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    unrepeated.provider._ask_model = wait
    assert unrepeated.propose().reason == "the document has changed"
    assert ended == [True]
