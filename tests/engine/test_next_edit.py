"""The last edits are repeated where their tokens stand in the same context, and nowhere else."""

import pytest

from dg_lsp.context.document import LineIndex
from dg_lsp.context.edit_history import Edit, EditHistory
from dg_lsp.context.syntax_tree import SyntaxCheck
from dg_lsp.engine import next_edit
from dg_lsp.engine.next_edit import Proposal, from_newest_edit, repetitions, takes_back


def proposals(text, *edits):
    """The lines that are proposed after edits, each of which replaces the first occurrence of a text."""
    history = EditHistory()
    for old, new in edits:
        start = text.index(old)
        history.change(LineIndex.of(text), start, start + len(old), new, 0.0)
        text = text[:start] + new + text[start + len(old) :]
    lines = LineIndex.of(text)
    return [proposal.changed_line(lines)[1].strip() for proposal in repetitions(lines, history.edits(lines, 0.0))]


RENAMED = """\
def scale(width, factor):
    if width < 0:
        raise ValueError(width)
    return width * factor
"""
CALLS = """\
first = load(path, mode)
second = load(path, mode)
third = load(other)
"""
ATTRIBUTES = """\
    logger.warn("no connection")
    retry()
    logger.warn("still none")
"""


@pytest.mark.parametrize(
    ("text", "edits", "expected"),
    [
        (
            RENAMED,
            [("width", "length"), ("width <", "length <")],
            {"raise ValueError(length)", "return length * factor"},
        ),
        (CALLS, [("mode)", "mode, strict=True)")], {"second = load(path, mode, strict=True)"}),
        (ATTRIBUTES, [("logger.warn", "logger.warning")], {'logger.warning("still none")'}),
        ("a = f(x, None)\nb = f(x, None)\n", [(", None", "")], {"b = f(x)"}),
        ("swap(old, old)\nkeep\nswap(old, old)\n", [("old, old", "new, new")], {"swap(new, new)"}),
        ("😀 = get(a)\r\n😀 = get(a)\r\n", [("get(a)", "get(b)")], {"😀 = get(b)"}),
        ("a = get(x)\r\nb = get(x)\r\n", [("get(x)\r", "get(x).run()\r")], {"b = get(x).run()"}),
    ],
    ids=[
        "a rename",
        "an added argument",
        "an attribute",
        "a removed argument",
        "two places of a line",
        "emoji and CRLF",
        "the end of a line with CRLF",
    ],
)
def test_an_edit_is_repeated(text, edits, expected):
    assert set(proposals(text, *edits)) == expected


@pytest.mark.parametrize(
    ("text", "edits"),
    [
        (RENAMED, []),
        ("total = 1\ncount = 2\nprint(1, 2, 3)\n", [("1", "7")]),
        ("a = width\nb = width\n", [("width", "length"), ("length", "width")]),
        ("x = 1\n" * 400, [("x = 1", "y = 2")]),
        ("", [("", "x")]),
        ("'unclosed\n(((\n", [("(((", ")))")]),
    ],
    ids=["no edit", "another number", "an edit that is undone", "too many places", "an empty file", "broken code"],
)
def test_nothing_is_proposed_without_the_same_context(text, edits):
    assert proposals(text, *edits) == []


CALL = "first = load(path)\nsecond = load(path)\n"


def edit_of(text, old, new):
    """The text after one edit, and that edit."""
    start = text.index(old)
    history = EditHistory()
    history.change(LineIndex.of(text), start, start + len(old), new, 0.0)
    lines = LineIndex.of(text[:start] + new + text[start + len(old) :])
    return lines, history.edits(lines, 0.0)


@pytest.mark.parametrize(
    ("text", "edit", "proposed", "is_reversal"),
    [
        (CALL, ("path)", "path, mode)"), ("path, mode)", "path)"), True),
        (CALL.replace("\n", "\r\n"), ("path)", "path, mode)"), (", mode", ""), True),
        ("# 😀\n" + CALL, ("path)", "path, mode)"), (", mode", ""), True),
        (CALL, ("first", "import os\nfirst"), ("import os\n", ""), True),
        (CALL, ("first = load(path)\n", ""), ("second", "first = load(path)\nsecond"), True),
        (CALL, ("path)", "path, mode)"), (", mode)\n", ")  \n"), True),
        (CALL, ("first", "    first"), ("    first", "        first"), False),
        (CALL, ("path)", "path, mode)"), (", mode", ", kind"), False),
        (CALL, ("load(path)", "load(path"), ("load(path", "load(path)"), False),
        (CALL, ("load(path)", "load(path))"), ("load(path)", "load((path)"), False),
    ],
    ids=[
        "a changed line",
        "CRLF",
        "emoji",
        "an inserted line",
        "a deleted line",
        "with other blanks at the line end",
        "the same change of indentation again",
        "another change of the line",
        "what mends the syntax error that the edit made",
        "another way to mend it",
    ],
)
def test_what_takes_an_edit_back(text, edit, proposed, is_reversal):
    lines, edits = edit_of(text, *edit)
    old, new = proposed
    start = lines.text.index(old)
    proposal = Proposal(start, start + len(old), new, 1.0)
    assert takes_back(proposal, lines, edits, SyntaxCheck(lines.text, "python")) == is_reversal


def test_the_reverse_of_an_edit_in_another_place_takes_it_back():
    lines = LineIndex.of("a = 1\nb = 3\na = 1\n")
    proposal = Proposal(16, 17, "2", 1.0)
    syntax = SyntaxCheck(lines.text, "python")
    assert takes_back(proposal, lines, [Edit(0, "", "a = 2\n", "a = 1\n", "")], syntax)


def test_no_repetition_takes_an_edit_back(monkeypatch):
    lines, edits = edit_of(CALL, "path)", "path, mode)")
    start = lines.text.index(", mode")
    monkeypatch.setattr(next_edit, "repetitions", lambda *_: [Proposal(start, start + len(", mode"), "", 0.9)])
    assert next_edit.next_edits(lines, edits, "python") == []


def test_places_come_in_the_order_of_the_text_from_the_newest_edit_on():
    lines, edits = edit_of("a\nb\nc\nd\ne\n", "c", "x")
    places = [Proposal(start, start + 1, "y", 0.9) for start in (8, 0, 6, 2)]
    assert [proposal.start for proposal in from_newest_edit(places, lines, edits)] == [6, 8, 0, 2]


@pytest.mark.parametrize(
    ("text", "changes", "kept"),
    [
        ("call(\n    a\n)\n", [("(", ""), (")", "")], []),
        ("a = 1\nb = 1\n", [("a = 1", "a = 2"), ("b = 1", "b = = 1")], ["a = 2"]),
        ("f(]\na = (1\nb = 1\n", [("a = (1", "a = (2"), ("b = 1", "b = = 1")], ["a = (2"]),
    ],
    ids=["an error that another proposal would mend", "one of several breaks the text", "the text is broken elsewhere"],
)
def test_a_proposal_that_breaks_the_text_is_dropped(monkeypatch, text, changes, kept):
    places = [Proposal(text.index(old), text.index(old) + len(old), new, 0.9) for old, new in changes]
    monkeypatch.setattr(next_edit, "repetitions", lambda *_: places)
    assert [proposal.text for proposal in next_edit.next_edits(LineIndex.of(text), [], "python")] == kept
