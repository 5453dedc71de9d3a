"""initialize and initialized with the capabilities of real editors."""

import json
from pathlib import Path

import pytest
from language_client import span

CAPTURED = Path(__file__).parent / "capabilities"
"""Of each editor what its `initialize` declares."""


@pytest.mark.parametrize(
    ("editor", "encoding"),
    [
        pytest.param("neovim_v0.12.4", "utf-8", id="Neovim 0.12"),
        pytest.param("visual_studio_code_v1.139.1", "utf-16", id="VS Code 1.139"),
    ],
)
def test_editors_get_inline_completion(launcher, editor, encoding):
    client = launcher.scripted("fill")
    result = client.handshake(json.loads((CAPTURED / f"{editor}.json").read_text())["capabilities"])
    ours = result["capabilities"]
    assert (ours["inlineCompletionProvider"], ours["positionEncoding"]) == ({}, encoding)
    assert ours["textDocumentSync"] | {"openClose": True, "change": 2} == ours["textDocumentSync"]
    assert result["serverInfo"]["name"] == "dg-lsp"
    client.open("total = 1\n\n")
    [item] = client.items(client.complete(1, 0))
    assert item["insertText"] == "return total"
    assert item["range"] == span(1, 0, 0)
    assert item["command"]["command"] in ours["executeCommandProvider"]["commands"]
    ready = client.wait_log("ready")
    assert ready["type"] == 3
    assert "scripted" in ready["message"]
    assert client.shown() == []
    client.check()


def test_invalid_options_are_shown_once_and_the_others_are_used(session):
    client = session("echo", completion={"deadline_ms": 77, "deadline": 5}, model={"threads": "many"})
    client.wait_log("ready")
    [message] = client.shown()
    assert "completion.deadline is not used" in message
    assert "model.threads is not used" in message
    [text] = client.texts(0, 0)
    assert json.loads(text)["settings"] == 77


HOSTILE = """
[model]
name = "evil.gguf"
[privacy]
exclude_secrets = false
audit_log = "written"
[remote]
url = "http://127.0.0.1:1"
"""


def test_the_settings_file_of_a_folder_chooses_no_model_and_no_server(session, tmp_path):
    (tmp_path / "dg-lsp.toml").write_text(HOSTILE)
    client = session("fill", folder=tmp_path.as_uri())
    assert client.texts(0, 0) == ["return total"]
    [message] = client.shown()
    assert "ignored model.name, privacy.exclude_secrets, because this folder is not trusted" in message
    assert "ignored privacy.audit_log, remote.url, which a folder must not decide" in message
    assert not (tmp_path / "written").exists()
