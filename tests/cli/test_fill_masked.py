"""`dg-lsp fill` with tiny random masked models: the text is noise, all else is real."""

import pytest
import tiny_masked


@pytest.fixture
def written(tmp_path, user_settings):
    """`written("dream")`: the path of a model of this architecture."""
    user_settings("[model]\nthreads = 1\ngpu_layers = 0\n[completion]\nmax_tokens = 8\nmin_confidence = 0\n")

    def write(architecture):
        return tiny_masked.write(tmp_path / f"{architecture}.gguf", tiny_masked.make(architecture, layers=1))

    return write


def test_a_model_whose_prompt_cannot_be_computed_once_for_a_request_is_refused(dg_lsp, written, position):
    outcome = dg_lsp("fill", position, "--model", written("llada-moe"), "--prompt-attention", "per_request")
    assert "set its prompt_attention (model.sampler) to exact" in outcome.error(3)


def test_gaps_share_a_canvas_with_frozen_code_between_them(dg_lsp, written, tmp_path):
    (tmp_path / "a.py").write_text("a=...\nb=...\n")
    outcome = dg_lsp("fill", "a.py", "--gaps", "--visual", "--json", "--model", written("dream"))
    assert outcome.code in (0, 1), outcome.err
    assert len(outcome.json["gaps"]) == 2
    rows = outcome.err.splitlines()
    assert len(rows) == outcome.json["steps"] >= 2
    assert all("↵b=" in row for row in rows)
