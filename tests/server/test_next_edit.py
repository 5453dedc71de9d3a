"""When edits are proposed: after a pause, an accepted item or a save; never in excluded files, never twice unasked."""

import asyncio
from unittest.mock import Mock

import pytest

from dg_lsp.engine.edit_source import NextEditResult, NextEdits
from dg_lsp.engine.next_edit import Proposal
from dg_lsp.errors import RequestError
from dg_lsp.settings import NextEditSettings, PrivacySettings

from .conftest import URI

TEXT = "first = load(path, mode)\nsecond = load(path, mode)\n"
FIRST, SECOND = TEXT.splitlines()
EDITED, PROPOSED = (line.replace(")", ", strict=True)") for line in (FIRST, SECOND))
EDIT = (TEXT.index(")"), TEXT.index(")"), ", strict=True")


def propose(editor, *, wait=1.0, is_requested=False, **settings):
    editor.seconds += wait
    document = editor.documents.get(URI)
    proposing = editor.server.next_edits.propose(document, NextEditSettings(**settings), is_requested=is_requested)
    named, reason = asyncio.run(proposing)
    return NextEdits([*named.values()], reason)


def accept(editor, *proposals):
    ordered = sorted(proposals, key=lambda proposal: -proposal.start)
    editor.edit(*((proposal.start, proposal.end, proposal.text) for proposal in ordered))


def history(editor):
    past = editor.server.next_edits._pasts[URI]
    edits = past.history.edits(editor.documents.get(URI).lines, editor.seconds)
    return [(edit.new, edit.is_accepted) for edit in edits]


@pytest.fixture
def editor(editor):
    editor.open(TEXT)
    return editor


@pytest.fixture
def edited(editor):
    editor.edit(EDIT)
    return editor


@pytest.fixture
def waits(monkeypatch):
    waits = []
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: waits.append(seconds) or asyncio.to_thread(int))
    return waits


@pytest.mark.parametrize(
    ("before", "after", "is_requested", "wait"),
    [
        pytest.param(None, None, False, [pytest.approx(0.2)], id="typed"),
        pytest.param(None, None, True, [], id="on request"),
        pytest.param(None, lambda editor: editor.server.next_edits.end_pause(), False, [0.0], id="saved"),
        pytest.param(lambda editor: editor.shows(EDIT[2], at=EDIT[0]), None, False, [0.0], id="an accepted completion"),
    ],
)
def test_a_repeated_edit_is_proposed_after_a_pause(editor, waits, before, after, is_requested, wait):
    for step in filter(None, (before, lambda editor: editor.edit(EDIT), after)):
        step(editor)
    [proposal] = propose(editor, wait=0.1, is_requested=is_requested).proposals
    assert proposal.changed_line(editor.documents.get(URI).lines) == (SECOND, PROPOSED)
    assert waits == wait


def test_an_accepted_edit_ends_the_pause_and_is_marked(edited, waits):
    accept(edited, *propose(edited).proposals)
    assert history(edited)[0] == (f"{PROPOSED}\n", True)
    waits.clear()
    propose(edited, wait=0.0)
    assert waits == [0.0]


def open_again(editor):
    text = editor.text()
    editor.close()
    editor.open(text)


def exclude_once(editor):
    editor.exclusion.settings = PrivacySettings(exclude_languages=("python",))
    assert "not sent to the model" in propose(editor).reason
    editor.exclusion.settings = PrivacySettings()


@pytest.mark.parametrize("forget", [lambda editor: editor.replace(EDIT[2], ""), open_again, exclude_once])
def test_an_edit_that_is_undone_closed_or_excluded_is_not_repeated(edited, forget):
    forget(edited)
    assert propose(edited).reason == "the document was not edited lately"


def test_an_edit_is_forgotten_when_its_file_changes_while_it_is_excluded(edited):
    for privacy in (PrivacySettings(exclude_languages=("python",)), PrivacySettings()):
        edited.exclusion.settings = privacy
        edited.edit((0, 0, "# a line\n"))
    assert history(edited) == [("# a line\n# a line\n", False)]


def test_a_setting_turns_next_edits_off(edited):
    off = propose(edited, is_requested=True, enabled=False)
    assert off.reason == "next edits are off (next_edit.enabled is false)"


def test_an_edit_that_was_accepted_and_undone_is_not_proposed_again(edited):
    [proposal] = propose(edited).proposals
    accept(edited, proposal)
    edited.edit((proposal.start, proposal.start + len(proposal.text), ""))
    assert history(edited) == [(f"{EDITED}\n", False)]
    assert propose(edited).reason == "the user has gone on without this edit before"


@pytest.fixture
def renamed(editor):
    """A document with two edits that other lines follow."""
    editor.open("a = 'x'\nb = load(p, mode)\nc = 'x'\nd = load(p, mode)\ne = 'x'\n")
    editor.replace("mode", "kind")
    return editor


def test_a_format_of_several_lines_and_a_reload_make_no_edits_and_keep_those_of_the_user_elsewhere(renamed):
    first, last = renamed.text().index("'x'"), renamed.text().rindex("'x'")
    renamed.edit((last, last + 3, '"x"'), (first, first + 3, '"y"'))
    assert history(renamed) == [("b = load(p, kind)\n", False)]
    text = renamed.text()
    renamed.edit((0, len(text), text.replace('"y"', '"z"').replace("'x'", "'z'").replace("kind", "sort")))
    assert history(renamed) == []


def test_the_same_change_by_several_cursors_is_an_edit(renamed):
    starts = [renamed.text().rindex("'x'"), renamed.text().index("'x'")]
    renamed.edit(*((start, start + 3, "'y'") for start in starts))
    assert {new for new, _ in history(renamed)} >= {"a = 'y'\n", "e = 'y'\n"}


def test_an_edit_made_at_all_its_places_is_accepted_while_another_is_proposed(editor):
    editor.open(f"{TEXT}def f(width):\n    if width < 0:\n        raise ValueError(width)\n    return width\n")
    editor.replace("width", "length")
    editor.replace("width <", "length <")
    editor.edit(EDIT)
    proposals = propose(editor).proposals
    places = proposals[-1].places(proposals)
    assert (len(places), len(proposals)) == (2, 3)
    accept(editor, *places)
    assert [is_accepted for _, is_accepted in history(editor)] == [True, True, False, False, False]


# edits of a model


@pytest.mark.parametrize("end", [lambda editor: editor.close(), lambda editor: editor.edit((0, 0, "#"))])
def test_a_document_that_is_closed_or_changed_when_the_model_has_just_answered_gets_nothing(unrepeated, end):
    def model(_request):
        asyncio.get_running_loop().call_soon(end, unrepeated)
        return NextEditResult((Proposal(0, 5, "last", 0.9),), "m")

    unrepeated.model = model
    assert propose(unrepeated) == NextEdits([], "the document has changed")


@pytest.fixture
def unrepeated(editor):
    editor.replace(SECOND, "return 3")
    return editor


def test_a_model_is_asked_again_about_the_same_cursor(unrepeated):
    """*Apply to all places* names none, and makes the edits that are shown."""
    unrepeated.model = Mock(side_effect=RequestError(""))
    document = unrepeated.documents.get(URI)
    for offset in (3, None):
        asyncio.run(
            unrepeated.server.next_edits.propose(document, NextEditSettings(), offset=offset, is_requested=True)
        )
    assert [call.args[0].cursor for call in unrepeated.model.call_args_list] == [3, 3]


def test_the_error_of_a_model_is_the_reason(unrepeated):
    unrepeated.model = Mock(side_effect=RequestError("the code contains a mark"))
    assert propose(unrepeated).reason == "no recent edit is likely to be repeated elsewhere; the code contains a mark"


@pytest.mark.parametrize("change", [lambda editor: editor.replace("load", "read"), open_again], ids=["edit", "reopen"])
def test_a_change_ends_the_work_of_the_model(unrepeated, change):
    ended = []

    async def wait(_request):
        change(unrepeated)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    unrepeated.server.next_edits._ask_model = wait
    assert propose(unrepeated).reason == "the document has changed"
    assert ended == [True]
