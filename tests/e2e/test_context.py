"""Code of other files in requests to the engine."""

import json

import pytest

ALWAYS = {"context": {"enabled": "always"}}


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


def snippets(client, line=2, character=8):
    [item] = client.items(client.complete(line, character, uri=client.main))
    return [tuple(one) for one in json.loads(item["insertText"])["extra"]]


def test_the_engine_receives_definitions_open_files_edits_and_diagnostics(opened, tmp_path):
    client = opened()
    assert [(source, text) for source, _, text in snippets(client)] == [("imports", "def clean(text): ...")]
    other = (tmp_path / "other.py").as_uri()
    client.open("total = clean(line)\n", uri=other)
    place = {"line": 0, "character": 0}
    client.change(2, {"range": {"start": place, "end": place}, "text": "import sys\n"}, uri=other)
    client.change(2, {"range": {"start": place, "end": place}, "text": "import os\n"}, uri=client.main)
    where = {"start": {"line": 3, "character": 0}, "end": {"line": 3, "character": 5}}
    context = {"diagnostics": [{"range": where, "message": "undefined name"}]}
    params = {"textDocument": {"uri": client.main}, "range": where, "context": context}
    client.result(client.request("textDocument/codeAction", params))
    shown = snippets(client, 3)
    assert [source for source, *_ in shown] == ["imports", "open-files", "edits", "diagnostics"]
    assert all(str(tmp_path) not in path for _, path, _ in shown)
    assert shown[-1][2] == "total =: undefined name"


def test_a_model_that_was_not_trained_with_snippets_gets_none(opened):
    assert snippets(opened({})) == []


def test_snippets_can_be_turned_on_while_the_server_runs(opened):
    client = opened({})
    client.notify("workspace/didChangeConfiguration", {"settings": ALWAYS})
    assert len(snippets(client)) == 1


def test_text_of_files_with_secrets_is_never_used(opened, tmp_path):
    client = opened()
    hidden = (tmp_path / ".env.local").as_uri()
    client.open("total = 'hunter2'\n", uri=hidden)
    place = {"line": 0, "character": 0}
    client.change(2, {"range": {"start": place, "end": place}, "text": "clean = 'hunter2'\n"}, uri=hidden)
    client.change(2, {"range": {"start": place, "end": place}, "text": "\n"}, uri=client.main)
    client.notify("textDocument/didClose", {"textDocument": {"uri": hidden}})
    assert [source for source, *_ in snippets(client, 3)] == ["imports"]
    assert "hunter2" not in json.dumps(client.messages)


def test_a_folder_added_to_the_workspace_is_indexed_and_its_gitignore_read(opened, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "shapes.py").write_text("def area(radius):\n    return 3 * radius**2\n")
    (other / ".gitignore").write_text("build/\n")
    client = opened({**ALWAYS, "privacy": {"exclude_gitignored": True}})
    main, built = (other / "main.py").as_uri(), (other / "build/main.py").as_uri()
    for uri in (main, built):
        client.open("from shapes import area\n\ntotal = \n", uri=uri)

    def texts(uri, line):
        return [
            text
            for item in client.items(client.complete(line, 0, uri=uri))
            for *_, text in json.loads(item["insertText"])["extra"]
        ]

    assert "def area(radius): ..." not in texts(main, 1)
    folder = {"uri": other.as_uri(), "name": "other"}
    removed = {"uri": tmp_path.as_uri(), "name": "project"}
    client.notify("workspace/didChangeWorkspaceFolders", {"event": {"added": [folder], "removed": [removed]}})
    assert "def area(radius): ..." in texts(main, 2)
    assert client.items(client.complete(2, 8, uri=built)) == []
