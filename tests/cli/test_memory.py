"""A context that does not fit into memory is an error message, not a killed process."""

import pytest


@pytest.mark.parametrize("command", [("fill", "a.py:1"), ("doctor",)], ids=lambda command: command[0])
def test_a_context_that_is_too_large_is_refused(dg_lsp, tmp_path, command):
    (tmp_path / "a.py").write_text("x = \n")
    (tmp_path / "dg-lsp.toml").write_text("[runtime]\ncontext_length = 1000000000\n")
    outcome = dg_lsp(*command)
    assert outcome.code == 3
    message = next(line for line in f"{outcome.err}\n{outcome.out}".splitlines() if "dg-mini.gguf needs" in line)
    assert "GB of memory with some to spare (prompts" in message
    assert "set context_length" in message
