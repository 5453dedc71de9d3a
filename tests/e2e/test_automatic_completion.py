"""Requests that are answered with nothing or from the cache."""

import pytest

PATIENT = {"completion": {"deadline_ms": 60_000}}
SECRETS = "file:///project/.env.local"


@pytest.fixture
def filling(start):
    def make(**more):
        client = start("fill", **more.pop("env", {}))
        client.handshake(options={**PATIENT, **more})
        return client

    return make


def texts(client, *where, **more):
    return [item["insertText"] for item in client.items(client.complete(*where, **more))]


def test_files_with_secrets_are_never_completed_and_that_is_logged_once(filling):
    client = filling()
    client.open("API_KEY=\n", uri=SECRETS, language="properties")
    for kind in (client.AUTOMATIC, client.INVOKED):
        assert texts(client, 0, 8, uri=SECRETS, kind=kind) == []
    said = [one["message"] for one in client.told("window/logMessage") if SECRETS in one["message"]]
    assert len(said) == 1
    assert "secrets" in said[0]
    assert "API_KEY" not in said[0]


def test_languages_and_patterns_can_be_excluded(filling):
    client = filling(privacy={"exclude_languages": ["markdown"], "exclude_patterns": ["vendored/"]})
    client.open("", uri="file:///project/a.md", language="markdown")
    client.open("", uri="file:///project/vendored/a.py")
    client.open("", uri="file:///project/a.py")
    assert texts(client, 0, 0, uri="file:///project/a.md") == []
    assert texts(client, 0, 0, uri="file:///project/vendored/a.py") == []
    assert texts(client, 0, 0, uri="file:///project/a.py") == ["return total"]


def test_files_ignored_by_git_can_be_excluded(start, tmp_path):
    (tmp_path / ".gitignore").write_text("build/\n")
    built = (tmp_path / "build/a.py").as_uri()
    for gitignored, expected in ((False, ["return total"]), (True, [])):
        client = start("fill")
        options = {**PATIENT, "privacy": {"exclude_gitignored": gitignored}}
        client.handshake(options=options, folder=tmp_path.as_uri())
        client.open("", uri=built)
        assert texts(client, 0, 0, uri=built) == expected


def test_a_cursor_inside_a_word_gets_completions_only_on_request(filling):
    client = filling(env={"DG_TEST_FILL": "x"})
    client.open("total_of_everything = 1\n")
    assert texts(client, 0, 3) == []
    assert texts(client, 0, 3, kind=client.INVOKED) == ["x"]


def test_the_rest_of_a_typed_completion_is_shown_without_the_model(start, steps):
    client = start("slow")
    client.handshake(options=PATIENT)
    client.open("f\n")
    assert texts(client, 0, 1) == ["ast"]
    asked = len(steps())
    for version, typed in enumerate("as", 2):
        before = version - 1
        place = {"line": 0, "character": before}
        client.change(version, {"range": {"start": place, "end": place}, "text": typed})
        assert texts(client, 0, version) == ["ast"[before:]]
    assert steps()[asked:].count("f") == 0


def test_the_body_of_a_block_is_completed_after_its_first_line(filling):
    client = filling(env={"DG_TEST_FILL": "return a\n    # more"})
    client.open("def f(a):\n")
    [item] = client.items(client.complete(0, 9))
    assert item["insertText"].startswith("\n    return a")
    place = {"line": 0, "character": 9}
    assert item["range"] == {"start": place, "end": place}
    # the user types the beginning of the completion
    client.change(2, {"range": {"start": place, "end": place}, "text": "\n    re"})
    [rest] = client.items(client.complete(1, 6))
    assert rest["insertText"] == item["insertText"].removeprefix("\n    re")
