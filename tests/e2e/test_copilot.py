"""Messages of Copilot's clients, changed settings, and notifications of canvases."""

import os

import pytest

EDITOR = {"editorInfo": {"name": "test", "version": "1"}, "editorPluginInfo": {"name": "ours", "version": "2"}}
PATIENT = {"completion": {"deadline_ms": 60_000}}


@pytest.fixture
def editor(start):
    def make(scenario="fill", fill="return total", capabilities=None, **options):
        client = start(scenario, DG_TEST_FILL=fill)
        client.handshake(capabilities, {**PATIENT, **EDITOR, **options})
        client.wait_log("ready")
        return client

    return make


def last_status(client):
    return client.told("didChangeStatus")[-1]


def until_status(client, holds):
    client.wait_until(lambda: [one for one in client.told("didChangeStatus") if holds(one)])
    return last_status(client)


def test_the_status_goes_from_loading_to_ready(editor):
    client = editor()
    ready = until_status(client, lambda one: one["dgLsp"]["state"] == "ready")
    first = client.told("didChangeStatus")[0]
    assert (first["busy"], first["dgLsp"]["state"]) == (True, "loading")
    assert (ready["kind"], ready["busy"], ready["dgLsp"]["model"]) == ("Normal", False, "scripted")
    assert not client.told("window/showMessage")  # editorInfo is not an invalid setting


def test_a_client_without_a_status_bar_gets_no_status(start):
    client = start("fill")
    client.handshake(options=PATIENT)
    client.open("")
    client.items(client.complete(0, 0))
    assert client.told("didChangeStatus") == []


def test_shown_and_accepted_items_are_counted(editor):
    client = editor()
    client.open("\n")
    [item] = client.items(client.complete(0, 0))
    assert item["command"]["command"] == "dg-lsp.accepted"
    client.notify("textDocument/didShowCompletion", {"item": item})
    client.notify("textDocument/didPartiallyAcceptCompletion", {"item": item, "acceptedLength": 6})
    until_status(client, lambda one: one["dgLsp"]["accepted"] == 1)
    done = client.request("workspace/executeCommand", {k: item["command"][k] for k in ("command", "arguments")})
    assert client.result(done) is None
    counts = last_status(client)["dgLsp"]
    assert (counts["shown"], counts["accepted"]) == (1, 1)
    assert counts["lastMs"] > 0


def test_an_excluded_file_is_inactive(editor):
    client = editor()
    secret = "file:///project/.env"
    client.open("A=\n", uri=secret, language="properties")
    client.open("")
    client.notify("textDocument/didFocus", {"textDocument": {"uri": secret}})
    assert until_status(client, lambda one: one["kind"] == "Inactive")["dgLsp"]["state"] == "excluded"
    client.notify("textDocument/didFocus", {"textDocument": {"uri": client.URI}})
    client.notify("textDocument/didFocus", {})
    client.wait_until(lambda: last_status(client)["kind"] == "Normal")


@pytest.mark.parametrize("is_open_first", [True, False])
def test_an_excluded_file_with_the_focus_is_inactive_after_loading(start, tmp_path, is_open_first):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    client = start("fill", DG_TEST_GATE=str(gate))
    client.handshake(None, {**PATIENT, **EDITOR})
    secret = "file:///project/.env"
    if is_open_first:
        client.open("A=\n", uri=secret, language="properties")
    client.notify("textDocument/didFocus", {"textDocument": {"uri": secret}})
    gate.write_bytes(b"")
    client.wait_log("ready")
    if not is_open_first:
        client.open("A=\n", uri=secret, language="properties")
    assert until_status(client, lambda one: one["kind"] == "Inactive")["dgLsp"]["state"] == "excluded"


def test_a_file_excluded_by_changed_settings_is_inactive(editor):
    client = editor()
    client.open("")
    client.notify("textDocument/didFocus", {"textDocument": {"uri": client.URI}})
    for languages, kind in ((["python"], "Inactive"), ([], "Normal")):
        client.notify("workspace/didChangeConfiguration", {"settings": {"privacy": {"exclude_languages": languages}}})
        client.wait_until(lambda kind=kind: last_status(client)["kind"] == kind)


def test_the_server_is_not_busy_after_a_cancelled_request(editor):
    client = editor("slow")
    client.open("s\n")
    asked = client.complete(0, 1)
    until_status(client, lambda one: one["busy"] and one["dgLsp"]["state"] == "ready")
    client.cancel(asked)
    assert client.answer(asked)["error"]["code"] == client.CANCELLED
    client.wait_until(lambda: not last_status(client)["busy"])


def test_no_account_is_needed(editor):
    client = editor()
    for method in ("checkStatus", "signIn", "signOut"):
        assert client.result(client.request(method, {}))["status"] == "OK"


def test_an_inline_edit_names_its_version(editor):
    client = editor(fill="total = a * 2")
    client.open("def f(a):\n    total = a + 1\n", version=7)
    params = {"textDocument": {"uri": client.URI, "version": 7}, "position": {"line": 1, "character": 6}}
    edits = client.result(client.request("textDocument/copilotInlineEdit", params))["edits"]
    assert edits
    assert all(edit["textDocument"] == {"uri": client.URI, "version": 7} for edit in edits)
    assert all(edit["range"]["start"]["line"] == 1 for edit in edits)
    for wrong in ({}, {"textDocument": {"uri": "file:///x"}, "position": {"line": 0, "character": 0}}):
        assert client.result(client.request("textDocument/copilotInlineEdit", wrong))["edits"] == []


def test_changed_settings_apply_to_the_next_request(editor):
    client = editor("echo")
    client.open("")
    for pushed, expected in (
        ({"dg-lsp": {"completion": {"deadline_ms": 1234}}}, 1234),
        ({"completion": {"deadline_ms": 4321}}, 4321),
    ):
        client.notify("workspace/didChangeConfiguration", {"settings": pushed})
        [item] = client.items(client.complete(0, 0))
        assert f'"settings": {expected}' in item["insertText"]


def test_settings_are_requested_from_a_client_that_sends_none(editor):
    client = editor("echo", capabilities={"workspace": {"configuration": True}})
    client.open("")
    client.notify("workspace/didChangeConfiguration", {"settings": None})
    asked = client.wait_until(lambda: [m for m in client.messages if m.get("method") == "workspace/configuration"])[0]
    assert asked["params"]["items"] == [{"section": "dg-lsp"}]
    client.send_bytes(client.encode(id=asked["id"], result=[{"privacy": {"exclude_languages": ["python"]}}]))
    client.wait_until(lambda: client.items(client.complete(0, 0)) == [])


def test_an_invalid_setting_is_shown_once(editor):
    client = editor()
    for _ in range(2):
        client.notify("workspace/didChangeConfiguration", {"settings": {"completion": {"nonsense": 1}}})
    client.open("")
    client.items(client.complete(0, 0))
    assert len([one for one in client.told("window/showMessage") if "nonsense" in one["message"]]) == 1


def test_changed_model_settings_load_the_model_again(editor):
    client = editor()
    client.notify("workspace/didChangeConfiguration", {"settings": {"model": {"threads": 3}}})
    client.wait_until(lambda: len([one for one in client.told("window/logMessage") if "ready" in one["message"]]) == 2)
    client.open("")
    assert [item["insertText"] for item in client.items(client.complete(0, 0))] == ["return total"]


def test_canvases_are_sent_on_request(editor):
    client = editor("slow")
    client.open("f\n")
    client.notify("dg-lsp/watch", {"on": True})
    assert client.items(client.complete(0, 1))
    frames = client.told("dg-lsp/denoising")
    assert [frame["step"] for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[0]["uri"] == client.URI
    assert set(frames[0]["cells"][0]) == {"text", "confidence", "isCommitted", "isEnd"}
    client.notify("dg-lsp/watch", {"on": False})
    client.change(2, {"text": "g\n"})
    client.items(client.complete(0, 1))
    assert len(client.told("dg-lsp/denoising")) == len(frames)


def test_the_stats_of_a_session_contain_its_model_time(editor):
    client = editor()
    client.open("")
    client.items(client.complete(0, 0))

    def stats_with_model_time():
        # the model's thread adds its time after it has sent the result
        stats = client.result(client.request("dg-lsp/stats", {}))
        return stats if stats["modelSeconds"] > 0 else None

    stats = client.wait_until(stats_with_model_time)
    assert set(stats) == {"shown", "accepted", "modelSeconds", "staleSeconds", "speculationSeconds"}
    assert stats["staleSeconds"] == 0
