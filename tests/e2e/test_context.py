"""Code of other files in requests to the engine."""

import json

import pytest

ALWAYS = {"context": {"enabled": "always"}}


@pytest.fixture
def opened(session, tmp_path):
    def make(**options):
        client = session("echo", folder=tmp_path.as_uri(), **options)
        client.wait_log("ready after")
        client.main = (tmp_path / "main.py").as_uri()
        client.other = (tmp_path / "other.py").as_uri()
        client.open("total = clean(line)\n", uri=client.other)
        client.open("line = 1\n\ntotal = \n", uri=client.main)
        return client

    return make


def snippets(client, line=2, character=8):
    [text] = client.texts(line, character, uri=client.main)
    return [tuple(snippet) for snippet in json.loads(text)["extra"]]


def test_the_engine_receives_open_files_and_edits(opened, tmp_path):
    client = opened(**ALWAYS)
    assert [(source, text) for source, _, text in snippets(client)] == [("similar", "total = clean(line)\n")]
    hidden = (tmp_path / ".env.local").as_uri()
    client.open("total = 'hunter2'\n", uri=hidden)
    client.type(2, 0, 0, "clean = 'hunter2'\n", uri=hidden)
    client.type(2, 0, 0, "import sys\n", uri=client.other)
    client.type(2, 0, 0, "import os\n", uri=client.main)
    client.close_document(hidden)
    shown = snippets(client, 3)
    assert [source for source, *_ in shown] == ["similar", "edits"]
    assert all(str(tmp_path) not in path for _, path, _ in shown)
    assert "hunter2" not in json.dumps(client.messages)


def test_the_gitignore_of_a_folder_that_is_added_to_the_workspace_is_read(opened, tmp_path, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / ".gitignore").write_text("build/\n")
    client = opened(privacy={"exclude_gitignored": True})
    built = (other / "build/main.py").as_uri()
    client.open("total = \n", uri=built)
    assert len(client.texts(0, 8, uri=built)) == 1
    added, removed = ({"uri": folder.as_uri(), "name": folder.name} for folder in (other, tmp_path))
    client.notify("workspace/didChangeWorkspaceFolders", {"event": {"added": [added], "removed": [removed]}})
    assert client.texts(0, 8, uri=built) == []
