"""Next edits as clients request, show, make and dismiss them: our own, sidekick.nvim and copilot.el."""

import pytest
from language_client import span

NEXT, COPILOT = "dg-lsp/nextEdit", "textDocument/copilotInlineEdit"
TEXT = "😀 = load(a, mode)\r\nb = load(a, mode)\r\nc = 1\r\nd = load(a, mode)\r\n"
RENAMED = "def f(width):\r\n    if width < 0:\r\n        raise ValueError(width)\r\n    return width\r\n"
ANNOTATED = {"workspaceEdit": {"documentChanges": True, "changeAnnotationSupport": {}}}
PREVIEWS = {"workspace": ANNOTATED}
AUTOMATIC, INVOKED = 2, 1


@pytest.fixture
def editor(session):
    """A client that has added an argument to the first of three calls."""

    def make(text=TEXT, **options):
        client = session("fill", text, **options)
        client.wait_log("ready")
        end = {"line": 0, "character": text.index(")") + 1}  # the emoji has two UTF-16 units
        client.change(2, {"range": {"start": end, "end": end}, "text": ", strict=True"})
        return client

    return make


def ask(client, method, *, version=2, kind=None, line=0):
    params = {
        "textDocument": {"uri": client.URI, "version": version},
        "position": {"line": line, "character": 0},
        **({"context": {"triggerKind": kind}} if kind else {}),
    }
    return client.result(client.request(method, params))


def make_edit(client, version, edit):
    client.change(version, {"range": edit["range"], "text": edit["text"]})


def run_command(client, edit, *, send="request"):
    command = {key: edit["command"][key] for key in ("command", "arguments")}
    return getattr(client, send)("workspace/executeCommand", command)


def test_sidekick_gets_one_edit_after_the_other_with_versions(editor):
    """It shows and makes all edits of an answer, does not report what it shows, and requests again afterwards."""
    client = editor()
    client.focus(client.URI)
    lines = []
    for version in (2, 3):
        [edit] = ask(client, COPILOT, version=version, kind=AUTOMATIC)["edits"]
        assert edit["textDocument"] == {"uri": client.URI, "version": version}
        lines.append(edit["range"]["start"]["line"])
        make_edit(client, version + 1, edit)
        assert client.result(run_command(client, edit)) is None
    assert sorted(lines) == [1, 3]
    assert ask(client, COPILOT, version=4, kind=AUTOMATIC)["edits"] == []
    for wrong in ({}, {"textDocument": {"uri": "file:///x"}, "position": {"line": 0, "character": 0}}):
        assert client.result(client.request(COPILOT, wrong)) == {"edits": [], "reason": "the document is not open"}
    stats = client.stats()
    assert (stats["shown"], stats["accepted"]) == (2, 2)


def test_an_edit_that_sidekick_showed_is_not_proposed_again_after_typing(editor):
    client = editor()
    [shown] = ask(client, COPILOT, kind=AUTOMATIC)["edits"]
    client.type(3, 0, 0, " ")  # continues the edit of this line
    [other] = ask(client, COPILOT, version=3, kind=AUTOMATIC)["edits"]
    assert other["range"] != shown["range"]


def test_copilot_for_emacs_shows_an_edit_by_its_command_and_accepts_by_a_notification(editor):
    client = editor()
    client.notify("workspace/didChangeConfiguration", {"settings": None})  # as without copilot-lsp-settings
    [edit] = ask(client, COPILOT)["edits"]
    client.notify("textDocument/didShowInlineEdit", {"item": {"command": edit["command"]}})
    make_edit(client, 3, edit)
    run_command(client, edit, send="notify")
    [following] = ask(client, COPILOT, version=3)["edits"]
    assert following["range"]["start"]["line"] != edit["range"]["start"]["line"]
    stats = client.stats()
    assert (stats["shown"], stats["accepted"]) == (2, 1)


def test_our_clients_get_all_places_and_dismiss_one(editor):
    client = editor()
    edits = ask(client, NEXT, kind=AUTOMATIC)["edits"]
    assert [(edit["range"]["start"]["line"], edit["places"]) for edit in edits] == [(1, 2), (3, 2)]
    client.notify("textDocument/didShowInlineEdit", {"item": edits[0]})
    client.notify("dg-lsp/didDismissEdit", {"item": edits[0]})
    assert [edit["range"] for edit in ask(client, NEXT, kind=AUTOMATIC)["edits"]] == [edits[1]["range"]]
    assert [edit["range"] for edit in ask(client, NEXT, kind=INVOKED)["edits"]] == [edits[1]["range"]]
    client.notify("dg-lsp/didDismissEdit", {"item": edits[1]})
    assert ask(client, NEXT, kind=AUTOMATIC)["edits"] == []
    assert len(ask(client, NEXT, kind=INVOKED)["edits"]) == 2


def test_a_file_that_shrinks_meanwhile_gets_nothing(editor):
    client = editor()
    params = {"textDocument": {"uri": client.URI, "version": 2}, "position": {"line": 0, "character": 0}}
    request = client.request(NEXT, params)
    client.change(3, {"text": "x"})
    assert client.result(request) == {"edits": [], "reason": "the document has changed"}


def test_all_places_are_changed_by_one_edit_with_a_preview(editor):
    client = editor(capabilities=PREVIEWS)
    done = client.command("dg-lsp.applyNextEdits")
    edit = client.wait_request("workspace/applyEdit")["params"]["edit"]
    [annotation] = edit["changeAnnotations"].values()
    assert annotation == {"label": "dg-lsp: repeat the last edit in 2 lines", "needsConfirmation": True}
    [document] = edit["documentChanges"]
    assert document["textDocument"] == {"uri": client.URI, "version": 2}
    assert [item["newText"] for item in document["edits"]] == [", strict=True"] * 2
    client.change(3, *({"range": item["range"], "text": item["newText"]} for item in reversed(document["edits"])))
    client.reply("workspace/applyEdit", {"applied": True})
    assert client.result(done) == {"applied": True, "reason": None}
    assert client.stats()["accepted"] == 2
    assert ask(client, NEXT, version=3)["edits"] == []


def test_of_two_edits_only_the_first_one_is_made_at_all_its_places(session):
    client = session("fill", TEXT + RENAMED, capabilities=PREVIEWS)
    client.wait_log("ready")
    end = TEXT.index(")") + 1
    edits = [(span(4, 6, 11), "length"), (span(5, 7, 12), "length"), (span(0, end, end), ", strict=True")]
    for version, (place, text) in enumerate(edits, 2):
        client.change(version, {"range": place, "text": text})
    proposed = ask(client, NEXT, version=4, kind=INVOKED)["edits"]
    assert [(edit["range"]["start"]["line"], edit["places"]) for edit in proposed] == [(1, 2), (3, 2), (6, 2), (7, 2)]
    client.command("dg-lsp.applyNextEdits")
    [document] = client.wait_request("workspace/applyEdit")["params"]["edit"]["documentChanges"]
    changes = [(item["range"]["start"]["line"], item["newText"]) for item in document["edits"]]
    assert changes == [(1, ", strict=True"), (3, ", strict=True")]


def test_a_document_that_changes_during_the_preview_is_left_to_the_client(editor):
    client = editor(capabilities=PREVIEWS)
    done = client.command("dg-lsp.applyNextEdits")
    client.wait_request("workspace/applyEdit")
    client.change(3, {"text": "x"})
    client.reply("workspace/applyEdit", {"applied": False, "failureReason": "version 2 is gone"})
    assert client.result(done) == {"applied": False, "reason": "version 2 is gone"}
    assert client.stats()["accepted"] == 0


@pytest.mark.parametrize(
    ("uri", "options", "words"),
    [
        ("file:///unknown.py", {}, "is not open"),
        (None, {"privacy": {"exclude_languages": ["python"]}}, "this file is not sent to the model"),
    ],
)
def test_all_places_are_refused_with_a_reason(editor, uri, options, words):
    client = editor(**options)
    outcome = client.result(client.command("dg-lsp.applyNextEdits", uri or client.URI))
    assert not outcome["applied"]
    assert words in outcome["reason"]
    assert any(words in message for message in client.shown())


def test_the_reason_for_silence_is_a_part_of_why_and_of_the_answer(editor):
    client = editor(next_edit={"trigger": "request"})
    assert "next_edit.trigger is request" in ask(client, COPILOT)["reason"]
    params = {"textDocument": {"uri": client.URI}, "position": {"line": 2, "character": 5}}
    why = client.result(client.request("dg-lsp/why", params))
    assert why["nextEdit"] == "No next edit: next edits come only on request (next_edit.trigger is request)."
    params["context"] = {"triggerKind": INVOKED}
    assert client.result(client.request("dg-lsp/why", params))["nextEdit"] == "Next edits: line 2, 4."


CODE = "a = 1\n\ntotal = a + 2\n"


def test_a_diffusion_model_proposes_edits_where_none_is_repeated(session):
    client = session("edits", CODE, env={"DG_TEST_FILL": CODE.replace("a + 2", "a * 5").replace("a = 1", "a = 3")})
    client.wait_log("ready")
    client.change(2, {"range": span(0, 4, 5), "text": "3"})
    [edit] = ask(client, COPILOT, line=2)["edits"]
    assert edit["textDocument"] == {"uri": client.URI, "version": 2}
    assert edit["range"]["start"]["line"] == 2
