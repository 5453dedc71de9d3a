"""A model that does not fit into memory is reported in one line."""

import pytest


@pytest.mark.parametrize("command", [("fill", "a.py:1"), ("doctor",)], ids=lambda command: command[0])
def test_a_context_that_does_not_fit_into_memory_is_reported(dg_lsp, tmp_path, command):
    (tmp_path / "a.py").write_text("x = \n")
    (tmp_path / "dg-lsp.toml").write_text("[model]\ncontext_length = 1000000000\n")
    outcome = dg_lsp(*command)
    assert outcome.code == 3
    message = next(line for line in f"{outcome.err}\n{outcome.out}".splitlines() if "dg-mini.gguf needs" in line)
    assert "GB of memory including a reserve (prompts" in message
    assert "set context_length" in message
