"""Messages of Copilot's clients, changed settings, and notifications of canvases."""

import json

import pytest

EDITOR = {"editorInfo": {"name": "test", "version": "1"}, "editorPluginInfo": {"name": "ours", "version": "2"}}
SECRET = "file:///project/.env"


@pytest.fixture
def editor(session):
    def make(scenario="fill", fill="return total", text="", env=None, **options):
        client = session(scenario, text, env={"DG_TEST_FILL": fill, **(env or {})}, **EDITOR, **options)
        client.wait_log("ready")
        return client

    return make


def test_the_status_goes_from_loading_to_ready(editor):
    client = editor()
    ready = client.wait_status(lambda status: status["dgLsp"]["state"] == "ready")
    first = client.received("didChangeStatus")[0]
    assert (first["busy"], first["dgLsp"]["state"]) == (True, "loading")
    assert (ready["kind"], ready["busy"], ready["dgLsp"]["model"]) == ("Normal", False, "scripted")
    assert client.shown() == []  # editorInfo is not an invalid setting


def test_shown_and_accepted_items_are_counted(editor):
    client = editor()
    [item] = client.items(client.complete(0, 0))
    assert item["command"]["command"] == "dg-lsp.accepted"
    client.notify("textDocument/didShowCompletion", {"item": item})
    client.notify("textDocument/didPartiallyAcceptCompletion", {"item": item, "acceptedLength": 0})
    assert client.wait_status(lambda status: status["dgLsp"]["shown"] == 1)["dgLsp"]["accepted"] == 0
    client.notify("textDocument/didPartiallyAcceptCompletion", {"item": item, "acceptedLength": 6})
    client.wait_status(lambda status: status["dgLsp"]["accepted"] == 1)
    done = client.request("workspace/executeCommand", {k: item["command"][k] for k in ("command", "arguments")})
    assert client.result(done) is None
    counts = client.received("didChangeStatus")[-1]["dgLsp"]
    assert (counts["shown"], counts["accepted"]) == (1, 1)
    assert counts["lastMs"] > 0


@pytest.mark.parametrize(("fill", "words"), [("= =", "would add a syntax error"), ("", "the result is empty")])
def test_the_status_has_the_reason_why_a_requested_completion_is_missing(editor, fill, words):
    client = editor(fill=fill, text="x = \n")
    assert client.texts(0, 4, kind=client.INVOKED) == []
    status = client.wait_status(lambda status: words in status["message"])
    assert (status["kind"], status["dgLsp"]["state"]) == ("Normal", "ready")
    assert client.texts(0, 4) == []
    client.wait_status(lambda status: not status["message"])


def test_an_excluded_file_is_inactive_until_it_is_closed(editor):
    client = editor()
    client.open("A=\n", uri=SECRET, language="properties")
    client.focus(SECRET)
    assert client.wait_status(lambda status: status["kind"] == "Inactive")["dgLsp"]["state"] == "excluded"
    client.focus(client.URI)
    client.notify("textDocument/didFocus", {})
    client.wait_status(lambda status: status["kind"] == "Normal")
    client.focus(SECRET)
    client.wait_status(lambda status: status["kind"] == "Inactive")
    client.close_document(SECRET)
    assert client.wait_status(lambda status: status["kind"] == "Normal")["message"] == ""
    client.focus(client.URI)
    for languages, kind in ((["python"], "Inactive"), ([], "Normal")):
        client.configure(privacy={"exclude_languages": languages})
        client.wait_status(lambda status, kind=kind: status["kind"] == kind)


def test_the_server_is_not_busy_after_a_cancelled_request(editor):
    client = editor("slow", text="s\n")
    cancelled = client.complete(0, 1)
    client.wait_status(lambda status: status["busy"] and status["dgLsp"]["state"] == "ready")
    client.cancel(cancelled)
    assert client.is_cancelled(cancelled)
    client.wait_status(lambda status: not status["busy"])


def test_no_account_is_needed(editor):
    client = editor()
    for method in ("checkStatus", "signIn", "signOut"):
        assert client.result(client.request(method, {}))["status"] == "OK"


def test_changed_settings_apply_to_the_next_request(editor):
    client = editor("echo")
    for expected, pushed in (
        (1234, {"dg-lsp": {"completion": {"deadline_ms": 1234}}}),
        (4321, {"completion": {"deadline_ms": 4321}}),
    ):
        client.configure(**pushed)
        [text] = client.texts(0, 0)
        assert f'"settings": {expected}' in text


def test_settings_are_requested_from_a_client_that_sends_none(editor):
    client = editor("echo", capabilities={"workspace": {"configuration": True}})
    client.notify("workspace/didChangeConfiguration", {"settings": None})
    requested = client.reply("workspace/configuration", [{"privacy": {"exclude_languages": ["python"]}}])
    assert requested["items"] == [{"section": "dg-lsp"}]
    client.wait_until(lambda: client.texts(0, 0) == [])


def test_canvases_are_sent_on_request(editor):
    client = editor("slow", text="f\n")
    client.notify("dg-lsp/watch", {"on": True})
    assert client.texts(0, 1)
    frames = client.received("dg-lsp/denoising")
    assert [frame["step"] for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[0]["uri"] == client.URI
    assert set(frames[0]["cells"][0]) == {"text", "confidence", "isCommitted", "isEnd"}
    client.notify("dg-lsp/watch", {"on": False})
    client.change(2, {"text": "g\n"})
    client.texts(0, 1)
    assert len(client.received("dg-lsp/denoising")) == len(frames)


def test_the_stats_of_a_session_contain_its_model_time(editor):
    client = editor()
    client.texts(0, 0)
    client.wait_until(lambda: client.stats()["modelSeconds"] > 0)  # added after the result was sent
    stats = client.stats()
    counts = {"shown", "accepted", "modelSeconds", "staleSeconds", "speculationSeconds", "today"}
    assert set(stats) == {"state", "message", "rewriteModel", *counts}
    assert (stats["rewriteModel"], stats["staleSeconds"]) == ("", 0)


def test_a_completion_is_followed_until_its_document_is_closed(editor, tmp_path):
    log = tmp_path / "audit.jsonl"
    client = editor(privacy={"audit_log": str(log)})
    [item] = client.items(client.complete(0, 0))
    client.type(2, 0, 0, item["insertText"])
    client.request("workspace/executeCommand", {k: item["command"][k] for k in ("command", "arguments")})
    client.close_document()
    status = client.wait_status(lambda status: status["dgLsp"]["today"]["usefulEdits"] == 1)
    assert client.stats()["today"] == status["dgLsp"]["today"]
    assert status["dgLsp"]["today"]["medianMs"] > 0
    client.wait_until(lambda: log.read_text().count("\n") == 2)
    request, outcome = sorted(map(json.loads, log.read_text().splitlines()), key=lambda record: "verdict" in record)
    assert (outcome["verdict"], outcome["accepted"]) == ("useful", "whole")
    assert request["request"] == outcome["request"]
    assert "return" not in log.read_text() and "main.py" not in log.read_text()


def test_a_user_can_ask_why_nothing_is_shown(editor):
    client = editor(text="x = \n")

    def why(uri, line, character):
        at = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
        return client.result(client.request("dg-lsp/why", at))

    shown = why(client.URI, 0, 4)
    assert (shown["outcome"], shown["text"]) == ("refused", "return total")
    assert "syntax error" in shown["sentence"]
    client.open("KEY=\n", uri=SECRET)
    assert why(SECRET, 0, 4)["outcome"] == "excluded"
    assert why("file:///unknown.py", 0, 0)["sentence"] == "The document is not open."
    assert client.result(client.request("dg-lsp/why", {"textDocument": []}))["outcome"] == "not-requested"
