"""`dg-lsp lsp` and `dg-lsp serve`: options and errors. The servers themselves: tests/e2e and tests/http."""

import os
from unittest.mock import Mock

import pytest

from dg_lsp.http import app as http
from dg_lsp.server import app as server
from dg_lsp.system import GPU_VARIABLES


@pytest.fixture
def language_server(monkeypatch):
    monkeypatch.setattr(server, "serve_client", serve := Mock(return_value=0))
    return serve


def test_on_a_terminal_the_server_reports_what_it_waits_for(dg_lsp, language_server, terminal):
    assert dg_lsp("lsp").err == ""
    terminal()
    outcome = dg_lsp("lsp")
    assert outcome.out == ""
    assert outcome.err.startswith("dg-lsp: waits for LSP messages of an editor on standard input; dg-lsp setup prints")


def test_tcp_listens_on_the_given_address_with_the_token_of_the_environment(dg_lsp, language_server, monkeypatch):
    assert dg_lsp("lsp", "--tcp", "127.0.0.1:8013").code == 0
    monkeypatch.setenv("DG_LSP_TOKEN", "a long secret that nobody guesses")
    assert dg_lsp("lsp", "--tcp", "127.0.0.1:0").code == 0
    given = [call.args[3:] for call in language_server.call_args_list]
    assert given == [(("127.0.0.1", 8013), ""), (("127.0.0.1", 0), "a long secret that nobody guesses")]
    assert "DG_LSP_TOKEN" not in os.environ
    monkeypatch.setenv("DG_LSP_TOKEN", "short")
    assert "DG_LSP_TOKEN" in dg_lsp("lsp", "--tcp", "127.0.0.1:0").error(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((f"--tcp {host}:0", "other machines") for host in ("0.0.0.0", "[::]", "192.0.2.1", "example.org")),
        ("--stdio --tcp h:1", "exclude each other"),
        *((f"--tcp {text}", "expected HOST:PORT") for text in (":", "host", "host:", ":80", "host:http", "host:65536")),
    ],
)
def test_wrong_usage_starts_no_server(dg_lsp, language_server, arguments, message):
    assert message in dg_lsp("lsp", *arguments.split()).error(2)
    assert not language_server.called


@pytest.fixture
def http_server(monkeypatch):
    calls = []
    monkeypatch.setattr(http, "HttpServer", lambda *args: calls.append(args) or Mock())
    monkeypatch.delenv("DG_LSP_API_KEY", raising=False)
    return calls


def test_options_reach_the_server(dg_lsp, http_server, script):
    options = ["--host", "0.0.0.0", "--port", 0, "--allow-host", "box", "--allow-origin", "https://a.example"]
    assert dg_lsp("serve", *options, "--model", "mine.gguf", "--threads", 1).code == 0
    [(address, open_scheduler, settings, rules)] = http_server
    assert address == ("0.0.0.0", 0)
    assert {"0.0.0.0", "box", "127.0.0.1"} <= set(rules.hosts)
    assert rules.origins == ("https://a.example",)
    open_scheduler(settings)
    assert (script.settings.model.name, script.settings.model.threads) == ("mine.gguf", 1)


def test_a_server_of_one_gpu_sees_no_other_one(dg_lsp, http_server, monkeypatch):
    for name in ("CUDA_DEVICE_ORDER", *GPU_VARIABLES):
        monkeypatch.setenv(name, "")
    assert dg_lsp("serve", "--gpu", 1).code == 0
    [(_, _, settings, _)] = http_server
    assert settings.model.device == "gpu"
    assert {os.environ[name] for name in GPU_VARIABLES} == {"1"}


def test_the_keys_are_in_the_environment_or_a_file(dg_lsp, http_server, monkeypatch, tmp_path):
    monkeypatch.setenv("DG_LSP_API_KEY", "from-environment")
    dg_lsp("serve")
    for content in ("\ufefffrom-file\n", "\nops k-1\n\n alice\tk-2 \n"):
        (tmp_path / "key").write_text(content)
        dg_lsp("serve", "--api-key-file", "key")
    keys = [dict(rules.keys) for *_, rules in http_server]
    assert keys == [{"client": "from-environment"}, {"client": "from-file"}, {"ops": "k-1", "alice": "k-2"}]
    assert next(iter(http_server[-1][-1].keys)) == "ops"


@pytest.mark.parametrize(
    "content", [None, "\n \n", b"\xff", "secret-1\nmore\n", "a secret-1\nb secret-1", "a secret-1\na secret-2", "a b c"]
)
def test_a_file_without_keys_is_an_error(dg_lsp, http_server, tmp_path, content):
    if content is not None:
        (tmp_path / "key").write_bytes(content if isinstance(content, bytes) else content.encode())
    message = dg_lsp("serve", "--api-key-file", "key").error(2)
    assert "key" in message
    assert "secret" not in message
    assert not http_server


def test_an_address_of_other_machines_requires_a_key(dg_lsp, monkeypatch):
    monkeypatch.delenv("DG_LSP_API_KEY", raising=False)
    assert "DG_LSP_API_KEY" in dg_lsp("serve", "--host", "0.0.0.0", "--port", 0).error(2)
