"""What becomes of inline completions: keys, reports of the client, and a clock that the test advances."""

import asyncio
import json
import re
from datetime import date
from pathlib import Path

import jsonschema_rs
import pytest
from lsprotocol import types

from dg_lsp.engine.audit import AuditLog, read_log
from dg_lsp.engine.ttfue import Usage, Verdict
from dg_lsp.server import acceptance
from dg_lsp.server.acceptance import Acceptance
from dg_lsp.server.app import did_change
from dg_lsp.server.documents import DocumentStore
from dg_lsp.server.session import Server
from dg_lsp.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs/ttfue.md").read_text(encoding="utf-8")
URI = "file:///project/sesame.py"
ITEM = "return width * height"


class Editor:
    """A buffer with the cursor at its end, or at `cursor`; items arrive 80 ms after their request."""

    def __init__(self, text="def area():\n    "):
        self.seconds = 1000.0
        self.outcomes = []
        self.documents = DocumentStore()
        self.acceptance = Acceptance(self.documents, self.outcomes.append, lambda: self.seconds)
        self.documents.open(types.TextDocumentItem(uri=URI, language_id="python", version=1, text=text))

    @property
    def text(self):
        return self.documents.get(URI).lines.text

    def shows(self, *items, invoked=False):
        """Names of the items that the server shows at the cursor."""
        followed = self.acceptance.request(URI, len(self.text), len(self.text), is_invoked=invoked)
        self.seconds += 0.08
        return self.acceptance.answer(followed, items, "m")

    def replace(self, start, end, text):
        document = self.documents.get(URI)
        self.acceptance.settle()
        self.seconds += 0.2
        span = self.documents.range(document, start, end)
        change = types.TextDocumentContentChangePartial(text=text, range=span)
        applied = self.documents.change(
            types.VersionedTextDocumentIdentifier(uri=URI, version=document.version + 1), [change]
        )
        return self.acceptance.change(URI, applied)

    def insert(self, text):
        return self.replace(len(self.text), len(self.text), text)

    def type(self, text):
        for key in text:
            self.insert(key)

    def wait(self, seconds=30.0):
        self.seconds += seconds
        self.acceptance.settle()

    def outcome(self):
        """The only outcome, 30 seconds after the last key."""
        self.wait()
        [outcome] = self.outcomes
        return outcome


def test_an_item_that_is_still_there_after_30_seconds_is_a_useful_edit():
    editor = Editor()
    [name] = editor.shows(ITEM)
    editor.wait(3600)  # the user thinks before the first key
    editor.insert(ITEM)
    editor.acceptance.record_accepted(name)
    editor.wait(29.9)
    assert editor.outcomes == []
    editor.wait(0.2)
    [outcome] = editor.outcomes
    assert (outcome.verdict, outcome.accepted) == ("useful", "whole")
    assert outcome.ttfue_ms == pytest.approx(80)


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        pytest.param([ITEM, "\n    x = 1"], "useful", id="accepted, then more lines"),
        pytest.param(list(ITEM), "useful", id="typed through"),
        pytest.param(list("return 1"), "wrong", id="only its beginning was typed"),
    ],
)
def test_without_a_report_of_the_client_the_text_decides(keys, verdict):
    editor = Editor()
    editor.shows(ITEM)
    for key in keys:
        editor.insert(key)
    outcome = editor.outcome()
    assert (outcome.verdict, outcome.accepted) == (verdict, "none")


@pytest.mark.parametrize(
    ("keys", "inserted"),
    [
        (["r", "eturn", " width * height"], [False, True, True]),
        (["return 1"], [False]),
        (list("return"), [False] * 6),
    ],
    ids=["a key, a word, the rest", "other text", "typed by hand"],
)
def test_a_change_that_inserts_a_part_of_an_item_is_recognized(keys, inserted):
    editor = Editor()
    editor.shows(ITEM)
    assert [editor.insert(key) for key in keys] == inserted


@pytest.mark.parametrize(("text", "verdict"), [("", "wrong"), ("return height * width", "partly"), ("depth", "wrong")])
def test_an_accepted_item_that_is_changed_within_30_seconds_is_not_useful(text, verdict):
    editor = Editor()
    start = len(editor.text)
    [name] = editor.shows(ITEM)
    editor.insert(ITEM)
    editor.acceptance.record_accepted(name)
    editor.wait(29)
    editor.replace(start, start + len(ITEM), text)
    outcome = editor.outcome()
    assert (outcome.verdict, outcome.accepted) == (verdict, "whole")


@pytest.mark.parametrize(
    ("text", "item", "edits"),
    [
        ("x = 1\ndef area():\n    ", ITEM, [(23, 23, ITEM), (0, 5, "width, height = 1, 2")]),
        ("    ret", "urn width", [(4, 7, "return width")]),
    ],
    ids=["an edit above the item", "an editor that replaces the typed word by a longer one"],
)
def test_an_item_is_found_where_edits_have_moved_it(text, item, edits):
    editor = Editor(text)
    editor.shows(item)
    for start, end, new in edits:
        editor.replace(start, end, new)
    assert editor.outcome().verdict == "useful"


@pytest.mark.parametrize(("length", "accepted"), [(None, "whole"), (3, "words"), (8, "line"), (15, "whole")])
def test_reports_of_the_client_decide_how_much_was_accepted(length, accepted):
    editor = Editor()
    item = "f = open\nf.x = 1"[:15]
    [name] = editor.shows(item)
    editor.acceptance.record_shown(name)
    editor.insert(item[: length or 15])
    editor.acceptance.record_accepted(name, length)
    assert editor.outcome().accepted == accepted
    assert editor.acceptance.counts == {"shown": 1, "accepted": 1}


@pytest.mark.parametrize(("keys", "verdict"), [("\n", "quiet"), (" # sum", "missed")])
def test_silence_is_right_where_nothing_was_missing(keys, verdict):
    editor = Editor("total = 1")
    editor.shows()
    editor.type(keys)
    assert (editor.outcome().verdict, editor.outcomes[0].ttfue_ms) == (verdict, None)


def test_items_that_are_typed_into_are_one_edit_over_several_requests():
    editor = Editor()
    editor.shows("total")
    editor.type("to")
    editor.shows("tal")
    editor.insert("tal")
    editor.wait()
    assert [(outcome.verdict, outcome.is_rest) for outcome in editor.outcomes] == [("useful", False), ("useful", True)]


def test_a_closed_document_is_judged_at_once_and_nothing_of_it_is_kept():
    editor = Editor()
    [name] = editor.shows(ITEM)
    late = editor.acceptance.request(URI, 0, 0, is_invoked=False)
    editor.insert(ITEM)
    editor.acceptance.close(URI)
    editor.documents.close(URI)
    editor.acceptance.answer(late, ["sesame"], "m")
    assert [outcome.verdict for outcome in editor.outcomes] == ["useful", "cancelled"]
    editor.acceptance.record_accepted(name)
    assert editor.acceptance.counts["accepted"] == 1
    assert "return" not in repr(vars(editor.acceptance))


def test_many_requests_are_followed_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(acceptance, "MAX_FOLLOWED", 4)
    monkeypatch.setattr(acceptance, "MAX_OFFERED", 4)
    editor = Editor()
    names = [editor.shows(ITEM)[0] for _ in range(10)]
    assert len(editor.outcomes) == 6
    for name in (names[0], "nonsense", ""):
        editor.acceptance.record_accepted(name)
    assert editor.acceptance.counts == {"shown": 0, "accepted": 0}


def test_the_numbers_of_the_day_start_again_at_midnight():
    days = [date(2026, 1, 1)]
    usage, editor = Usage(lambda: days[-1]), Editor()
    editor.shows(ITEM)
    editor.insert(ITEM)
    usage.add(editor.outcome())
    assert usage.edits_today() == {"usefulEdits": 1, "medianMs": 80.0}
    days.append(date(2026, 1, 2))
    assert usage.edits_today() == {"usefulEdits": 0, "medianMs": None}


def test_records_follow_the_schema_of_the_specification_and_have_no_text(tmp_path):
    [schema] = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "$schema" in block]
    validator = jsonschema_rs.validator_for(schema)
    editor, log = Editor(), AuditLog(tmp_path / "a.jsonl")
    for keys in (ITEM, "pass", "\n"):
        for items in ((ITEM,), (), (ITEM, "x")):
            editor.shows(*items, invoked=len(items) > 1)
            editor.insert(keys)
    editor.wait()
    editor.acceptance.drop(editor.acceptance.request(URI, 0, 0, is_invoked=False), Verdict.CANCELLED)
    for outcome in editor.outcomes:
        log.write(outcome)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert len(lines) == 10
    for line in lines:
        validator.validate(json.loads(line))
    for broken in ({"verdict": "good"}, {"answer_ms": -1}, {"text": "return"}):
        assert not validator.is_valid({**json.loads(lines[0]), **broken})
    assert "return" not in "".join(lines) and "sesame" not in "".join(lines)
    records, outcomes, num_bad = read_log(tmp_path / "a.jsonl")
    assert outcomes[0].verdict == editor.outcomes[0].verdict
    assert (records, num_bad) == ([], 0)


def test_what_is_due_is_judged_by_the_text_before_the_next_change():
    async def session():
        server = Server(lambda _settings: None, Settings())
        outcomes = []
        clock = [0.0]
        server.acceptance = Acceptance(server.documents, outcomes.append, lambda: clock[0])
        server.documents.open(types.TextDocumentItem(uri=URI, language_id="python", version=1, text=""))
        server.acceptance.answer(server.acceptance.request(URI, 0, 0, is_invoked=False), [ITEM], "m")
        for text in (ITEM, ""):
            identifier = types.VersionedTextDocumentIdentifier(version=2, uri=URI)
            change = types.TextDocumentContentChangeWholeDocument(text)
            did_change(server, types.DidChangeTextDocumentParams(identifier, [change]))
            clock[0] += 31
        server.close()
        return outcomes

    assert [outcome.verdict for outcome in asyncio.run(session())] == ["useful"]
