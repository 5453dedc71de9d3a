"""Code from elsewhere through the real protocol: what reaches the engine, and what never does."""

import json

import pytest

ALWAYS = {"context": {"when": "always"}}


@pytest.fixture
def opened(start, tmp_path):
    def make(options=ALWAYS):
        (tmp_path / "tools.py").write_text("def clean(text):\n    return text.strip()\n")
        client = start("echo")
        client.handshake(options=options, folder=tmp_path.as_uri())
        client.wait_log("ready after")
        client.main = (tmp_path / "main.py").as_uri()
        client.open("from tools import clean\n\ntotal = \n", uri=client.main)
        return client

    return make


def extra(client, line=2, character=8):
    [item] = client.items(client.complete(line, character, uri=client.main))
    return [tuple(one) for one in json.loads(item["insertText"])["extra"]]


def test_definitions_open_files_edits_and_diagnostics(opened, tmp_path):
    client = opened()
    assert [(source, text) for source, _, text in extra(client)] == [("imports", "def clean(text): ...")]
    other = (tmp_path / "other.py").as_uri()
    client.open("total = clean(line)\n", uri=other)
    place = {"line": 0, "character": 0}
    client.change(2, {"range": {"start": place, "end": place}, "text": "import sys\n"}, uri=other)
    client.change(2, {"range": {"start": place, "end": place}, "text": "import os\n"}, uri=client.main)
    where = {"start": {"line": 3, "character": 0}, "end": {"line": 3, "character": 5}}
    context = {"diagnostics": [{"range": where, "message": "undefined name"}]}
    asked = {"textDocument": {"uri": client.main}, "range": where, "context": context}
    client.result(client.request("textDocument/codeAction", asked))
    shown = extra(client, 3)
    assert [source for source, *_ in shown] == ["imports", "open-files", "edits", "diagnostics"]
    assert all(str(tmp_path) not in path for _, path, _ in shown)
    assert shown[-1][2] == "total =: undefined name"


def test_the_bundled_kind_of_model_gets_none_unless_told(opened):
    assert extra(opened({})) == []


def test_settings_may_change_while_the_server_runs(opened):
    client = opened({})
    client.notify("workspace/didChangeConfiguration", {"settings": ALWAYS})
    assert len(extra(client)) == 1


def test_secrets_never_reach_it(opened, tmp_path):
    client = opened()
    hidden = (tmp_path / ".env.local").as_uri()
    client.open("total = 'hunter2'\n", uri=hidden)
    place = {"line": 0, "character": 0}
    client.change(2, {"range": {"start": place, "end": place}, "text": "clean = 'hunter2'\n"}, uri=hidden)
    client.change(2, {"range": {"start": place, "end": place}, "text": "\n"}, uri=client.main)
    client.notify("textDocument/didClose", {"textDocument": {"uri": hidden}})
    assert [source for source, *_ in extra(client, 3)] == ["imports"]
    assert "hunter2" not in json.dumps(client.messages)
