from pathlib import Path
from unittest.mock import Mock

import pytest
from scripted import ScriptedDenoiser

from dg_lsp.cli import loading, setup
from dg_lsp.cli.app import COMMANDS
from dg_lsp.cli.options import ModelOptions, configure
from dg_lsp.daemon.endpoint import Endpoint
from dg_lsp.errors import BackendError
from dg_lsp.server import app
from dg_lsp.settings import Settings

BAD = """[completion]
deadlin_ms = 3
max_tokens = 0
debounce_ms = -1
lines = "single"
speculate = false
[model]
gpu_layers = 4
threads = "8"
num_slots = 2
[fill]
"""
PROBLEMS = (
    "unknown setting completion.deadlin_ms (did you mean completion.deadline_ms?)",
    "completion.max_tokens must be >= 1: 0",
    "completion.debounce_ms must be >= 0: -1.0",
    "model.threads must be a whole number, not '8'",
    "unknown setting fill",
)


def test_every_bad_key_is_reported_and_the_last_source_of_the_others_counts(tmp_path, user_settings, capsys):
    paths = (user_settings(BAD), tmp_path / "dg-lsp.toml")
    paths[1].write_text(BAD.replace("single", "auto"))
    settings = configure(ModelOptions(model="b.gguf", gpu_layers=0).tree)
    assert (settings.completion.lines, settings.completion.speculate) == ("auto", False)
    assert (settings.model.name, settings.model.gpu_layers, settings.model.num_slots) == ("b.gguf", 0, 2)
    assert capsys.readouterr().err.splitlines() == [
        f"dg-lsp: warning: {path}: {problem} (this key is ignored)" for path in paths for problem in PROBLEMS
    ]


ARGUMENTS = {
    **dict.fromkeys(("fill", "rewrite", "why"), "a.py:1"),
    **dict.fromkeys(("report", "models show", "models pull", "models rm", "models convert", "bench infill"), "gone"),
    "generate": "x",
    "chat": "--message hi",
    "serve": "--host 192.0.2.1",
    "doctor": "--model gone.gguf",
    "models build-runtime": "--from gone",
    "bench cut": ". -o cut.jsonl",
    "bench next-edit": ".",
    "bench replay": "gone.py",
}
"""Arguments for each command that end it soon."""


@pytest.mark.parametrize("command", [words for words in COMMANDS if words != "daemon run"])
def test_every_command_reports_each_bad_key_once(command, dg_lsp, script, user_settings, position, monkeypatch):
    monkeypatch.setattr(setup, "measure", Mock(side_effect=BackendError("the machine is not measured in this test")))
    monkeypatch.setattr(app, "serve_client", lambda *_: 0)
    monkeypatch.setattr(Endpoint, "start", lambda *_: None)
    user_settings(BAD)
    outcome = dg_lsp(*command.split(), *ARGUMENTS.get(command, "").split())
    for problem in PROBLEMS:
        assert (outcome.out + outcome.err).count(f"dg-lsp.toml: {problem} (this key is ignored)\n") == 1, outcome


@pytest.mark.parametrize("text", ["[privacy]\nexclude_pattern = ['*.sql']", "[privcy]", "exclude = 3", "model = "])
@pytest.mark.parametrize("is_own", [True, False])
def test_no_remote_server_is_used_while_files_may_be_excluded_in_vain(dg_lsp, user_settings, position, text, is_own):
    user_settings(text if is_own else "")
    Path("dg-lsp.toml").write_text("" if is_own else text)
    outcome = dg_lsp("fill", position, "--remote", "http://127.0.0.1:9")
    assert outcome.code == 2
    assert "remote.url is not used" in outcome.err


def test_a_model_whose_costs_cannot_be_measured_is_closed(monkeypatch):
    """A daemon goes on, and opens other models in this memory."""
    denoiser = ScriptedDenoiser("x")
    denoiser.predict = denoiser.prefill = Mock(side_effect=BackendError("the graph failed"))
    monkeypatch.setattr(loading, "open_local", lambda _: (None, denoiser))
    with pytest.raises(BackendError):
        loading.open_engine(Settings())
    assert denoiser.is_closed
