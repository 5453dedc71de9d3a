"""Code of other files in requests to the engine."""

import json

import pytest

ALWAYS = {"context": {"enabled": "always"}}


@pytest.fixture
def opened(session, tmp_path):
    def make(**options):
        (tmp_path / "tools.py").write_text("def clean(text):\n    return text.strip()\n")
        client = session("echo", folder=tmp_path.as_uri(), **options)
        client.wait_log("ready after")
        client.main = (tmp_path / "main.py").as_uri()
        client.open("from tools import clean\n\ntotal = \n", uri=client.main)
        return client

    return make


def snippets(client, line=2, character=8, uri=None):
    [text] = client.texts(line, character, uri=uri or client.main)
    return [tuple(snippet) for snippet in json.loads(text)["extra"]]


def test_the_engine_receives_definitions_open_files_and_edits(opened, tmp_path):
    client = opened(**ALWAYS)
    assert [(source, text) for source, _, text in snippets(client)] == [("imports", "def clean(text): ...")]
    other, hidden = (tmp_path / "other.py").as_uri(), (tmp_path / ".env.local").as_uri()
    client.open("total = clean(line)\n", uri=other)
    client.open("total = 'hunter2'\n", uri=hidden)
    client.type(2, 0, 0, "clean = 'hunter2'\n", uri=hidden)
    client.type(2, 0, 0, "import sys\n", uri=other)
    client.type(2, 0, 0, "import os\n", uri=client.main)
    client.close_document(hidden)
    shown = snippets(client, 3)
    assert [source for source, *_ in shown] == ["imports", "open-files", "edits"]
    assert all(str(tmp_path) not in path for _, path, _ in shown)
    assert "hunter2" not in json.dumps(client.messages)


def test_a_model_that_was_not_trained_with_snippets_gets_none_unless_the_user_turns_them_on(opened):
    client = opened()
    assert snippets(client) == []
    client.configure(**ALWAYS)
    assert len(snippets(client, 1, 0)) == 1


def test_a_folder_added_to_the_workspace_is_indexed_and_its_gitignore_read(opened, tmp_path, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "shapes.py").write_text("def area(radius):\n    return 3 * radius**2\n")
    (other / ".gitignore").write_text("build/\n")
    client = opened(**ALWAYS, privacy={"exclude_gitignored": True})
    main, built = (other / "main.py").as_uri(), (other / "build/main.py").as_uri()
    for uri in (main, built):
        client.open("from shapes import area\n\ntotal = \n", uri=uri)
    area = "def area(radius): ..."
    assert area not in [text for *_, text in snippets(client, 1, 0, main)]
    added, removed = ({"uri": folder.as_uri(), "name": folder.name} for folder in (other, tmp_path))
    client.notify("workspace/didChangeWorkspaceFolders", {"event": {"added": [added], "removed": [removed]}})
    assert area in [text for *_, text in snippets(client, 2, 0, main)]
    assert client.texts(2, 8, uri=built) == []
