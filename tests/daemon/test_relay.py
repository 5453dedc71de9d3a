"""A relay between a client that a test plays and servers that are not what they should be."""

import subprocess
import sys

import pytest
from relayed import TIMEOUT, Editor, Puppet

from dg_lsp.daemon import finding, relay
from dg_lsp.daemon.finding import Ways

REWRITE = {"command": "dg-lsp.rewrite", "arguments": [{}]}
CHILD = """
import sys
sys.path[:0] = {path!r}
from dg_lsp.daemon.upstream import framed, read_body
import json
while (body := read_body(sys.stdin.buffer)) is not None:
    message = json.loads(body)
    if "id" in message:
        sys.stdout.buffer.write(framed(json.dumps({{"id": message["id"], "result": "child"}}).encode()))
        sys.stdout.buffer.flush()
"""


@pytest.fixture
def ways(place, monkeypatch):
    monkeypatch.setattr(finding, "RETURN_SECONDS", 0.1)
    child = (sys.executable, "-c", CHILD.format(path=[path for path in sys.path if path]))
    return Ways(str(place.folder), {"settings": {}, "over": {}}, (), child)


@pytest.fixture
def meet(place, ways):
    """An editor whose session runs over a puppet."""
    made = []

    def make(**how):
        puppet = Puppet(place, **how)
        editor = Editor(ways)
        made.append((puppet, editor))
        return puppet, editor

    yield make
    for puppet, editor in made:
        editor.leave()
        puppet.die()


def shake(puppet, editor, **params):
    editor.say("initialize", params, id=0)
    assert puppet.wait("initialize")["id"] == 0
    puppet.say(id=0, result={})
    editor.answer(0)
    editor.say("initialized", {})


def test_messages_pass_as_they_are(meet):
    puppet, editor = meet()
    shake(puppet, editor)
    editor.say("textDocument/inlineCompletion", {"😋": "\ud800"}, id="a")
    assert puppet.wait("textDocument/inlineCompletion")["params"] == {"😋": "\ud800"}
    puppet.say(id="a", result={"items": [1]})
    assert editor.answer("a")["result"] == {"items": [1]}
    puppet.say(id=9, method="workspace/configuration", params={})
    editor.wait(lambda one: one.get("method") == "workspace/configuration")
    editor.say(id=9, result=[None])
    editor.say("custom", {})
    puppet.wait("custom")
    assert {"jsonrpc": "2.0", "id": 9, "result": [None]} in puppet.heard


def test_what_is_open_when_a_server_ends_is_answered_with_nothing(meet):
    puppet, editor = meet()
    shake(puppet, editor, initializationOptions={"editorInfo": {}})
    asked = {
        "textDocument/inlineCompletion": {"items": []},
        "textDocument/copilotInlineEdit": {"edits": []},
        "textDocument/codeAction": None,
    }
    for number, method in enumerate(asked):
        editor.say(method, {}, id=10 + number)
    editor.say("workspace/executeCommand", REWRITE, id=20)
    editor.say("unheard/of", {}, id=21)
    puppet.wait("unheard/of")
    puppet.say(id=5, method="workspace/applyEdit", params={})
    puppet.say(method="$/progress", params={"token": "t", "value": {"kind": "begin"}})
    puppet.say(method="$/progress", params={"token": "over", "value": {"kind": "begin"}})
    puppet.say(method="$/progress", params={"token": "over", "value": {"kind": "end"}})
    editor.wait(lambda one: one.get("method") == "$/progress" and one["params"]["token"] == "over")
    editor.heard.clear()
    puppet.die()
    assert [editor.answer(10 + number)["result"] for number in range(3)] == list(asked.values())
    assert editor.answer(20)["result"]["applied"] is False
    assert editor.answer(21)["error"]["code"] == -32803
    editor.wait(lambda one: one.get("method") == "window/showMessage")
    assert editor.wait(lambda one: one.get("method") == "didChangeStatus")["params"]["kind"] == "Warning"
    ended = [one["params"]["token"] for one in editor.heard if one.get("method") == "$/progress"]
    assert ended == ["t"]
    editor.logged("a server of its own")
    editor.say(id=5, result={"applied": True})  # to a server that is gone; the new one must not hear it
    editor.say("textDocument/inlineCompletion", {}, id=30)
    assert editor.answer(30)["result"] == "child"


def test_a_server_that_falls_silent_is_given_up(meet, monkeypatch):
    monkeypatch.setattr(relay, "SILENCE", 0.3)
    puppet, editor = meet()
    shake(puppet, editor)
    editor.say("textDocument/inlineCompletion", {}, id=1)
    assert editor.answer(1)["result"] == {"items": []}
    assert puppet.wait("dg-lsp/document")["params"] == {"uri": ""}
    editor.logged("a server of its own")


def test_a_server_that_only_takes_long_is_not(meet, monkeypatch):
    monkeypatch.setattr(relay, "SILENCE", 0.3)
    puppet, editor = meet()
    shake(puppet, editor)
    editor.say("workspace/executeCommand", REWRITE, id=1)
    for _ in range(2):
        ping = puppet.wait("dg-lsp/document")
        puppet.heard.clear()
        puppet.say(id=ping["id"], result=None)
    puppet.say(id=1, result="late")
    assert editor.answer(1)["result"] == "late"


def test_a_long_session_is_kept_as_a_text(meet, monkeypatch):
    monkeypatch.setattr("dg_lsp.daemon.journal.LONGEST", 2)
    puppet, editor = meet()
    shake(puppet, editor)
    editor.say("textDocument/didOpen", {"textDocument": {"uri": "u", "languageId": "python", "version": 1, "text": ""}})
    for version in range(2, 5):
        change = {"range": {}, "text": "x"}
        editor.say(
            "textDocument/didChange", {"textDocument": {"uri": "u", "version": version}, "contentChanges": [change]}
        )
    asked = puppet.wait("dg-lsp/document")
    puppet.say(id=asked["id"], result={"uri": "u", "version": 4, "text": "xxx"})
    puppet.say(method="heard", params={})
    editor.wait(lambda one: one.get("method") == "heard")
    assert not [one for one in editor.heard if one.get("id") == asked["id"]]


def test_a_refusal_is_logged_and_a_child_serves(meet):
    puppet, editor = meet(hello={"refused": "the daemon is dg-lsp 7"})
    editor.say("initialize", {}, id=0)
    assert editor.answer(0)["result"] == "child"
    editor.logged("the daemon is dg-lsp 7; this editor has a server of its own")
    assert puppet.heard == []


def test_a_daemon_that_is_back_is_used_again(place, ways, monkeypatch):
    monkeypatch.setattr(relay, "LOOK_SECONDS", 0.1)
    editor = Editor(ways)
    editor.say("initialize", {"a": 1}, id=0)
    editor.answer(0)
    editor.say("initialized", {})
    puppet = Puppet(place)
    assert puppet.wait("initialize")["params"] == {"a": 1}
    puppet.wait("initialized")
    editor.logged("a server has taken over")
    editor.say("shutdown", None, id=1)
    puppet.wait("shutdown")
    puppet.say(id=1, result=None)
    editor.answer(1)
    editor.say("exit")
    editor.threads[0].join(TIMEOUT)
    assert editor.codes == [0]
    puppet.wait("exit")
    editor.leave()
    puppet.die()


def test_nothing_can_be_started(place, ways):
    editor = Editor(Ways(ways.folder, ways.hello, (), (str(place.folder / "no-such-program"),)))
    editor.logged("no server can be started")
    editor.say("textDocument/inlineCompletion", {}, id=1)
    assert editor.answer(1)["result"] == {"items": []}
    assert editor.leave() == 1


def test_a_relay_imports_next_to_nothing():
    code = "import sys, dg_lsp.daemon.relay; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT)
    loaded = set(done.stdout.split())
    assert "dg_lsp.daemon.journal" in loaded
    assert not loaded & {
        "numpy",
        "asyncio",
        "pygls",
        "lsprotocol",
        "attrs",
        "cattrs",
        "typer",
        "psutil",
        "dg_lsp.settings",
    }
