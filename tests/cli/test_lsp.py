from pathlib import Path

import pytest

from dg_lsp.cli.servers import parse_address
from dg_lsp.errors import UsageError
from dg_lsp.server import app as server
from dg_lsp.settings import Settings, parse_settings


@pytest.fixture
def served(monkeypatch):
    calls = []
    monkeypatch.setattr(server, "serve_stdio", lambda *args: calls.append(("stdio", args)))
    monkeypatch.setattr(server, "serve_tcp", lambda *args: calls.append(("tcp", args)))
    return calls


@pytest.mark.parametrize("arguments", [[], ["--stdio"]])
def test_standard_input_and_output_are_the_default(dg_lsp, served, arguments):
    assert dg_lsp("lsp", *arguments).code == 0
    [(kind, (_, settings))] = served
    assert kind == "stdio"
    assert settings == Settings()


def test_tcp_listens_on_the_given_address(dg_lsp, served):
    assert dg_lsp("lsp", "--tcp", "127.0.0.1:8013").code == 0
    [(kind, (host, port, _, _))] = served
    assert (kind, host, port) == ("tcp", "127.0.0.1", 8013)


def test_options_of_the_command_line_override_the_clients_options(dg_lsp, served, script):
    dg_lsp("lsp", "--model", "mine.gguf", "--threads", 1)
    [(_, (open_engine, settings))] = served
    merged = parse_settings({"model": {"name": "theirs.gguf", "threads": 5, "num_slots": 2}}, settings)
    open_engine(merged)
    assert script.settings.model.name == "mine.gguf"
    assert script.settings.model.threads == 1
    assert script.settings.model.num_slots == 2


def test_the_server_starts_despite_an_invalid_settings_file(dg_lsp, served):
    Path("dg-lsp.toml").write_text("nonsense = 1\n")
    outcome = dg_lsp("lsp", "--threads", 1)
    assert outcome.code == 0
    assert outcome.out == ""
    assert outcome.err.startswith("dg-lsp: ")
    assert outcome.err.count("\n") == 1
    assert "nonsense" in outcome.err
    [(_, (_, settings))] = served
    assert settings == parse_settings({"model": {"threads": 1}})


@pytest.mark.parametrize("arguments", [["--stdio", "--tcp", "h:1"], ["--tcp", "8013"], ["--threads", "-1"]])
def test_wrong_usage_starts_no_server(dg_lsp, served, arguments):
    outcome = dg_lsp("lsp", *arguments)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert not served


@pytest.mark.parametrize(
    ("text", "address"),
    [("localhost:0", ("localhost", 0)), ("0.0.0.0:65535", ("0.0.0.0", 65535)), ("[::1]:80", ("::1", 80))],
)
def test_addresses_are_parsed(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ":", "host", "host:", ":80", "host:http", "host:65536", "host:-1", "host:" + "9" * 99]
)
def test_an_invalid_address_is_rejected(text):
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(text)
