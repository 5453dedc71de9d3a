"""The last edits are repeated where their tokens stand in the same context, and nowhere else."""

import pytest

from dg_lsp.context.document import LineIndex
from dg_lsp.context.edit_history import EditHistory
from dg_lsp.context.syntax_tree import SyntaxCheck
from dg_lsp.engine import next_edit
from dg_lsp.engine.next_edit import Proposal, from_newest_edit, repetitions, takes_back


def edited(text, *edits):
    """The text after edits, each of which replaces the first occurrence of a text, and their history."""
    history = EditHistory()
    for old, new in edits:
        start = text.index(old)
        history.change(LineIndex.of(text), start, start + len(old), new, 0.0)
        text = text[:start] + new + text[start + len(old) :]
    lines = LineIndex.of(text)
    return lines, history.edits(lines, 0.0)


RENAMED = """\
def scale(width, factor):
    if width < 0:
        raise ValueError(width)
    return width * factor
"""
RENAMES = [("width", "length"), ("width <", "length <")]
CALLS = """\
first = load(path, mode)
second = load(path, mode)
third = load(other)
"""
MINIFIED = "f(a,b,c);" * 110_000 + CALLS
THREE = "a = f(x)\nb = f(x)\nc = f(x)\n"
ATTRIBUTES = """\
    logger.warn("no connection")
    retry()
    logger.warn("still none")
"""


@pytest.mark.parametrize(
    ("text", "edits", "expected"),
    [
        pytest.param(RENAMED, RENAMES, {"raise ValueError(length)", "return length * factor"}, id="a rename"),
        pytest.param(CALLS, [("mode)", "mode, x=True)")], {"second = load(path, mode, x=True)"}, id="a new argument"),
        pytest.param(MINIFIED, [("mode)", "mode, 1)")], {"second = load(path, mode, 1)"}, id="a line of a megabyte"),
        pytest.param(ATTRIBUTES, [("warn", "warning")], {'logger.warning("still none")'}, id="an attribute"),
        pytest.param("a = f(x, None)\nb = f(x, None)\n", [(", None", "")], {"b = f(x)"}, id="a removed argument"),
        pytest.param("f(old, old)\na\nf(old, old)\n", [("old, old", "b, b")], {"f(b, b)"}, id="two places of a line"),
        pytest.param("😀 = get(a)\r\n😀 = get(a)\r\n", [("get(a)", "get(b)")], {"😀 = get(b)"}, id="emoji"),
        pytest.param("a = f(x)\r\nb = f(x)\r\n", [("f(x)\r", "f(x).a()\r")], {"b = f(x).a()"}, id="a CRLF line end"),
        pytest.param(THREE, [(")", ", y)"), ("b = f(x", "b = f(x, z")], {"c = f(x, z)"}, id="the newer insertion"),
        pytest.param(RENAMED, [], set(), id="no edit"),
        pytest.param("total = 1\ncount = 2\nprint(1, 2, 3)\n", [("1", "7")], set(), id="another number"),
        pytest.param("a = width\nb = width\n", [("width", "w"), ("w", "width")], set(), id="an edit that is undone"),
        pytest.param("x = 1\n" * 400, [("x = 1", "y = 2")], set(), id="too many places"),
        pytest.param("", [("", "x")], set(), id="an empty file"),
        pytest.param(f"f(x)\nf(x){' ' * 100_000}z\n", [("x)\n", "x);\n")], set(), id="a line of blanks"),
        pytest.param("'unclosed\n(((\n", [("(((", ")))")], set(), id="broken code"),
    ],
)
def test_an_edit_is_repeated_in_the_same_context_only(text, edits, expected):
    lines, history = edited(text, *edits)
    assert {edit.changed_line(lines)[1].strip() for edit in repetitions(lines, history)} == expected


FIRST = "first = load(path)\n"
CALL = f"{FIRST}second = load(path)\n"
MODE = ("path)", "path, mode)")


@pytest.mark.parametrize(
    ("text", "edit", "proposed", "is_reversal"),
    [
        pytest.param(CALL, MODE, ("path, mode)", "path)"), True, id="a changed line"),
        pytest.param(CALL.replace("\n", "\r\n"), MODE, (", mode", ""), True, id="CRLF"),
        pytest.param("# 😀\n" + CALL, MODE, (", mode", ""), True, id="emoji"),
        pytest.param(CALL, ("first", "import os\nfirst"), ("import os\n", ""), True, id="an inserted line"),
        pytest.param(CALL, (FIRST, ""), ("second", f"{FIRST}second"), True, id="a deleted line"),
        pytest.param(CALL, MODE, (", mode)\n", ")  \n"), True, id="with other blanks at the line end"),
        pytest.param("a = 2\nb\na = 1\n", ("2", "1"), ("b\na = 1", "b\na = 2"), True, id="in another place"),
        pytest.param(CALL, ("first", "    first"), ("    f", "        f"), False, id="the same indentation again"),
        pytest.param(CALL, MODE, (", mode", ", kind"), False, id="another change of the line"),
        pytest.param(CALL, ("(path)", "(path"), ("(path", "(path)"), False, id="what mends a syntax error of the edit"),
        pytest.param(CALL, ("(path)", "(path))"), ("(path)", "((path)"), False, id="another way to mend it"),
    ],
)
def test_what_takes_an_edit_back(text, edit, proposed, is_reversal):
    lines, edits = edited(text, edit)
    old, new = proposed
    start = lines.text.index(old)
    proposal = Proposal(start, start + len(old), new, 1.0)
    assert takes_back(proposal, lines, edits, SyntaxCheck(lines.text, "python")) == is_reversal


def test_places_come_in_the_order_of_the_text_from_the_newest_edit_on():
    lines, edits = edited("a\nb\nc\nd\ne\n", ("c", "x"))
    places = [Proposal(start, start + 1, "y", 0.9) for start in (8, 0, 6, 2)]
    assert [proposal.start for proposal in from_newest_edit(places, lines, edits)] == [6, 8, 0, 2]


BROKEN = [("b = 1", "b = = 1")]


@pytest.mark.parametrize(
    ("text", "edits", "changes", "kept"),
    [
        pytest.param(CALL, [MODE], [(", mode", "")], [], id="an edit that is taken back"),
        pytest.param("call(\n    a\n)\n", [], [("(", ""), (")", "")], [], id="another proposal would mend it"),
        pytest.param("a = 1\nb = 1\n", [], [("a = 1", "a = 2"), *BROKEN], ["a = 2"], id="one of several breaks"),
        pytest.param("f(]\na = (1\nb = 1\n", [], [("(1", "(2"), *BROKEN], ["(2"], id="broken elsewhere"),
    ],
)
def test_a_repetition_that_takes_an_edit_back_or_breaks_the_text_is_dropped(monkeypatch, text, edits, changes, kept):
    lines, history = edited(text, *edits)
    starts = [lines.text.index(old) for old, _ in changes]
    places = [Proposal(start, start + len(old), new, 0.9) for start, (old, new) in zip(starts, changes, strict=True)]
    monkeypatch.setattr(next_edit, "repetitions", lambda *_: places)
    assert [proposal.text for proposal in next_edit.next_edits(lines, history, "python")] == kept
