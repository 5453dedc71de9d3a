"""Messages that are malformed or late. `soak/messages.py` sends thousands more."""

import pytest
from language_client import span

INVALID_PARAMS = -32602
ACTION = {"textDocument": {"uri": "file:///a.py"}, "range": span(0, 0, 0), "context": {"diagnostics": []}}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        pytest.param(None, "params.textDocument", id="missing"),
        pytest.param({**ACTION, "textDocument": {"uri": 5}}, "params.textDocument.uri", id="a number for a string"),
        pytest.param({**ACTION, "context": {"diagnostics": [1]}}, "params.context.diagnostics[0]", id="an element"),
    ],
)
def test_a_parameter_of_a_wrong_type_is_named(session, params, field):
    client = session("fill")
    error = client.answer(client.request("textDocument/codeAction", params))["error"]
    assert error["code"] == INVALID_PARAMS
    assert field in error["message"]


def test_invalid_utf8_in_an_edit_loses_no_edit(session):
    client = session("echo", "a = 1\n")
    change = {"range": span(0, 0, 0), "text": "caf?\n"}
    params = {"textDocument": {"uri": client.URI, "version": 2}, "contentChanges": [change]}
    client.send_bytes(client.encode(method="textDocument/didChange", params=params).replace(b"caf?", b"caf\xe9"))
    [text] = client.texts(1, 5)
    assert "caf\\ufffd\\na = 1\\n" in text


@pytest.mark.parametrize(
    "answer",
    [{"result": {"applied": "yes"}}, {"result": []}, {}, {"error": 5}, {"error": {"code": 1, "message": "no"}}],
    ids=str,
)
def test_a_command_is_answered_when_the_client_answers_its_edit_with_anything(session, answer):
    client = session("fill")
    done = client.command("dg-lsp.completeBlock", position={"line": 0, "character": 0})
    client.send_bytes(client.encode(id=client.wait_request("workspace/applyEdit")["id"], **answer))
    assert "the editor rejected the change" in client.result(done)["reason"]


def test_a_cancelled_command_changes_nothing(session, steps):
    client = session("slow", "f\n")
    client.open("f\n", uri="file:///b.py")
    done = client.command("dg-lsp.completeBlock", position={"line": 0, "character": 1})
    client.wait_until(steps)
    client.cancel(done)
    assert client.is_cancelled(done)
    assert client.texts(0, 1, uri="file:///b.py") == ["ast"]  # after what the model's thread had begun
    assert client.received("workspace/applyEdit") == []
