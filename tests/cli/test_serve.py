import pytest

from dg_lsp.http import app
from dg_lsp.http.app import Address
from dg_lsp.http.auth import LOOPBACK
from dg_lsp.settings import Settings


@pytest.fixture
def served(monkeypatch):
    """The arguments of each server that was made."""
    calls = []

    class Server:
        def __init__(self, *args):
            calls.append(args)

        def run(self):
            pass

    monkeypatch.setattr(app, "HttpServer", Server)
    monkeypatch.delenv("DG_LSP_API_KEY", raising=False)
    return calls


def test_the_default_is_loopback_without_a_key(dg_lsp, served):
    assert dg_lsp("serve").code == 0
    [(address, _, settings, rules)] = served
    assert address == Address("127.0.0.1", 8012)
    assert settings == Settings()
    assert (rules.api_key, rules.origins) == ("", ())
    assert set(rules.hosts) == set(LOOPBACK)


def test_options_reach_the_server(dg_lsp, served, script):
    options = ["--host", "0.0.0.0", "--port", 0, "--allow-host", "box", "--allow-origin", "https://a.example"]
    assert dg_lsp("serve", *options, "--model", "mine.gguf", "--threads", 1).code == 0
    [(address, open_worker, settings, rules)] = served
    assert address == Address("0.0.0.0", 0)
    assert {"0.0.0.0", "box", "127.0.0.1"} <= set(rules.hosts)
    assert rules.origins == ("https://a.example",)
    open_worker(settings)
    assert (script.settings.model.name, script.settings.model.threads) == ("mine.gguf", 1)


def test_the_key_is_in_the_environment_or_a_file(dg_lsp, served, monkeypatch, tmp_path):
    monkeypatch.setenv("DG_LSP_API_KEY", "from-environment")
    dg_lsp("serve")
    (tmp_path / "key").write_text("from-file\nmore\n")
    dg_lsp("serve", "--api-key-file", "key")
    assert [rules.api_key for *_, rules in served] == ["from-environment", "from-file"]


@pytest.mark.parametrize("content", [None, "", "\nkey\n", b"\xff"])
def test_a_file_without_a_key_is_an_error(dg_lsp, served, tmp_path, content):
    if content is not None:
        (tmp_path / "key").write_bytes(content if isinstance(content, bytes) else content.encode())
    outcome = dg_lsp("serve", "--api-key-file", "key")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "key" in outcome.err
    assert not served


def test_an_address_of_other_machines_requires_a_key(dg_lsp, monkeypatch):
    monkeypatch.delenv("DG_LSP_API_KEY", raising=False)
    outcome = dg_lsp("serve", "--host", "0.0.0.0", "--port", 0)
    assert outcome.code == 2
    assert "DG_LSP_API_KEY" in outcome.err


def test_other_commands_do_not_import_fastapi():
    import subprocess
    import sys

    code = "import sys, dg_lsp.cli.app; print([name for name in ('fastapi', 'pydantic') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
