"""What becomes of inline completions: keys, reports of the client, and a clock that the test advances."""

import json
import re
from datetime import date
from pathlib import Path

import jsonschema_rs
import pytest

from dg_lsp.engine.audit import AuditLog
from dg_lsp.engine.ttfue import Usage, Verdict
from dg_lsp.server import acceptance

from .conftest import URI

PAGE = (Path(__file__).parents[2] / "docs/ttfue.md").read_text(encoding="utf-8")
START = "def area():\n    "
ITEM = "return width * height"


@pytest.fixture
def editor(editor):
    editor.open(START)
    return editor


def wait(editor, seconds=30.0):
    editor.seconds += seconds
    editor.server.settle()


def outcome(editor):
    """The only outcome, 30 seconds after the last key."""
    wait(editor)
    [outcome] = editor.outcomes
    return outcome


def accept(editor, name, length=None):
    editor.server.acceptance.record_accepted(name, length)


def test_an_item_that_is_still_there_after_30_seconds_is_a_useful_edit_whatever_changes_then(editor):
    [name] = editor.shows(ITEM)
    wait(editor, 3600)  # the user thinks before the first key
    editor.insert(ITEM)
    accept(editor, name)
    wait(editor, 29.9)
    assert editor.outcomes == []
    editor.seconds += 0.2
    editor.replace(ITEM, "")
    [outcome] = editor.outcomes
    assert (outcome.verdict, outcome.accepted) == ("useful", "whole")
    assert outcome.ttfue_ms == pytest.approx(80)


@pytest.mark.parametrize(
    ("text", "item", "edits", "verdict"),
    [
        pytest.param(START, ITEM, [("", ITEM), ("", "\n    x = 1")], "useful", id="inserted, then more lines"),
        pytest.param(START, ITEM, [("", key) for key in ITEM], "useful", id="typed through"),
        pytest.param(START, ITEM, [("", key) for key in "return 1"], "wrong", id="only its beginning was typed"),
        pytest.param(f"x = 1\n{START}", ITEM, [("", ITEM), ("x", "width, height")], "useful", id="an edit above it"),
        pytest.param("    ret", "urn width", [("ret", "return width")], "useful", id="the editor replaces the word"),
        pytest.param("total = 1", "", [("", "\n")], "quiet", id="nothing was missing"),
        pytest.param("total = 1", "", [("", "#"), ("", " sum")], "missed", id="silence where something was missing"),
    ],
)
def test_without_a_report_of_the_client_the_text_decides(editor, text, item, edits, verdict):
    editor.open(text)
    editor.shows(*filter(None, [item]))
    for old, new in edits:
        if old:
            editor.replace(old, new)
        else:
            editor.insert(new)
    judged = outcome(editor)
    assert (judged.verdict, judged.accepted, judged.ttfue_ms is None) == (verdict, "none", verdict != "useful")


@pytest.mark.parametrize(("text", "verdict"), [("", "wrong"), ("return height * width", "partly"), ("depth", "wrong")])
def test_an_accepted_item_that_is_changed_within_30_seconds_is_not_useful(editor, text, verdict):
    [name] = editor.shows(ITEM)
    editor.insert(ITEM)
    accept(editor, name)
    wait(editor, 29)
    editor.replace(ITEM, text)
    judged = outcome(editor)
    assert (judged.verdict, judged.accepted) == (verdict, "whole")


@pytest.mark.parametrize(("length", "accepted"), [(None, "whole"), (3, "words"), (8, "line"), (15, "whole")])
def test_reports_of_the_client_decide_how_much_was_accepted(editor, length, accepted):
    item = "f = open\nf.x = 1"[:15]
    [name] = editor.shows(item)
    editor.server.acceptance.record_shown(name)
    editor.insert(item[: length or 15])
    accept(editor, name, length)
    assert outcome(editor).accepted == accepted
    assert editor.server.acceptance.counts == {"shown": 1, "accepted": 1}


def test_items_that_are_typed_into_are_one_edit_over_several_requests(editor):
    editor.shows("total")
    for key in "to":
        editor.insert(key)
    editor.shows("tal")
    editor.insert("tal")
    wait(editor)
    assert [(outcome.verdict, outcome.is_rest) for outcome in editor.outcomes] == [("useful", False), ("useful", True)]


def test_a_closed_document_is_judged_at_once_and_nothing_of_it_is_kept(editor):
    [name] = editor.shows(ITEM)
    late = editor.server.acceptance.request(URI, 0, 0, is_invoked=False)
    editor.insert(ITEM)
    editor.close()
    editor.open("sesame")
    editor.server.acceptance.answer(late, ["sesame"], "m")
    assert [outcome.verdict for outcome in editor.outcomes] == ["useful", "cancelled"]
    accept(editor, name)
    assert editor.server.acceptance.counts["accepted"] == 1
    assert "return" not in repr(vars(editor.server.acceptance))


def test_many_requests_are_followed_in_bounded_memory(editor, monkeypatch):
    monkeypatch.setattr(acceptance, "MAX_FOLLOWED", 4)
    monkeypatch.setattr(acceptance, "MAX_OFFERED", 4)
    names = [editor.shows(ITEM)[0] for _ in range(10)]
    assert len(editor.outcomes) == 6
    for name in (names[0], "nonsense", ""):
        accept(editor, name)
    assert editor.server.acceptance.counts == {"shown": 0, "accepted": 0}


def test_the_numbers_of_the_day_start_again_at_midnight(editor):
    days = [date(2026, 1, 1)]
    usage = Usage(lambda: days[-1])
    editor.shows(ITEM)
    editor.insert(ITEM)
    usage.add(outcome(editor))
    assert usage.edits_today() == {"usefulEdits": 1, "medianMs": 80.0}
    days.append(date(2026, 1, 2))
    assert usage.edits_today() == {"usefulEdits": 0, "medianMs": None}


def test_records_follow_the_schema_of_the_specification_and_have_no_text(editor, tmp_path):
    [schema] = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "$schema" in block]
    validator = jsonschema_rs.validator_for(schema)
    log = AuditLog(tmp_path / "a.jsonl")
    for keys in (ITEM, "pass", "\n"):
        for items in ((ITEM,), (), (ITEM, "x")):
            editor.shows(*items, is_invoked=len(items) > 1)
            editor.insert(keys)
    wait(editor)
    cancelled = editor.server.acceptance.request(URI, 0, 0, is_invoked=False)
    editor.server.acceptance.drop(cancelled, Verdict.CANCELLED)
    for outcome in editor.outcomes:
        log.write(outcome)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert len(lines) == 10
    for line in lines:
        validator.validate(json.loads(line))
    for broken in ({"verdict": "good"}, {"answer_ms": -1}, {"text": "return"}):
        assert not validator.is_valid({**json.loads(lines[0]), **broken})
    assert "return" not in "".join(lines) and "project" not in "".join(lines)
