import pytest

from dg_lsp.http import listening
from dg_lsp.http.gate import LOOPBACK
from dg_lsp.http.listening import Address
from dg_lsp.settings import Settings


@pytest.fixture
def served(monkeypatch):
    """What servers were made with."""
    calls = []

    class Listening:
        def __init__(self, *args):
            calls.append(args)

        def run(self):
            return 0

    monkeypatch.setattr(listening, "Listening", Listening)
    monkeypatch.delenv("DG_LSP_API_KEY", raising=False)
    return calls


def test_loopback_without_a_key_is_the_default(dg_lsp, served):
    assert dg_lsp("serve").code == 0
    [(address, _, settings, rules)] = served
    assert address == Address("127.0.0.1", 8012)
    assert settings == Settings()
    assert (rules.api_key, rules.origins) == ("", ())
    assert set(rules.hosts) == set(LOOPBACK)


def test_options_reach_the_server(dg_lsp, served, script):
    options = ["--host", "0.0.0.0", "--port", 0, "--allow-host", "box", "--allow-origin", "https://a.example"]
    assert dg_lsp("serve", *options, "--model", "mine.gguf", "--threads", 1).code == 0
    [(address, open_engine, settings, rules)] = served
    assert address == Address("0.0.0.0", 0)
    assert {"0.0.0.0", "box", "127.0.0.1"} <= set(rules.hosts)
    assert rules.origins == ("https://a.example",)
    open_engine(settings)
    assert (script.settings.model, script.settings.runtime.threads) == ("mine.gguf", 1)


def test_the_key_comes_from_the_environment_or_a_file(dg_lsp, served, monkeypatch, tmp_path):
    monkeypatch.setenv("DG_LSP_API_KEY", "from-environment")
    dg_lsp("serve")
    (tmp_path / "key").write_text("from-file\nmore\n")
    dg_lsp("serve", "--api-key-file", "key")
    assert [rules.api_key for *_, rules in served] == ["from-environment", "from-file"]


@pytest.mark.parametrize("content", [None, "", "\nkey\n", b"\xff"])
def test_a_file_without_a_key_is_told(dg_lsp, served, tmp_path, content):
    if content is not None:
        (tmp_path / "key").write_bytes(content if isinstance(content, bytes) else content.encode())
    outcome = dg_lsp("serve", "--api-key-file", "key")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "key" in outcome.err
    assert not served


def test_other_machines_are_let_in_with_a_key_only(dg_lsp, monkeypatch):
    monkeypatch.delenv("DG_LSP_API_KEY", raising=False)
    outcome = dg_lsp("serve", "--host", "0.0.0.0", "--port", 0)
    assert outcome.code == 2
    assert "DG_LSP_API_KEY" in outcome.err
