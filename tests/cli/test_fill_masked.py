"""`dg-lsp fill` with tiny random models of every masked architecture: the text is noise, all else is real."""

import attrs
import pytest
import tiny_masked

from dg_lsp.cli import loading

BEFORE = "def total(items):\n    result = 0\n    for item in items:\n        "
AFTER = "\n    return result\n"
CACHED = ("dream", "rnd1", "qwen2")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Files by architecture."""
    folder = tmp_path_factory.mktemp("masked")

    def path_of(architecture, name=""):
        path = folder / f"{name or architecture}.gguf"
        if not path.exists():
            calls_itself = name or ("Open dCoder 0.5B" if architecture == "qwen2" else "")
            tiny_masked.write(path, tiny_masked.make(architecture, layers=1), name=calls_itself)
        return path

    return path_of


@pytest.mark.parametrize("architecture", [*tiny_masked.ARCHITECTURES, "qwen2"])
@pytest.mark.parametrize("attention", ["auto", "per_request", "causal"])
def test_a_hole_is_filled(dg_lsp, written, tmp_path, monkeypatch, architecture, attention):
    def open_engine(settings, opens=loading.open_engine):
        completion = attrs.evolve(settings.completion, check_syntax=False, confidence_threshold=0.2)
        return opens(attrs.evolve(settings, completion=completion))

    monkeypatch.setattr(loading, "open_engine", open_engine)
    (tmp_path / "a.py").write_text(BEFORE + AFTER)
    (tmp_path / "dg-lsp.toml").write_text(
        f"[model]\nprompt_attention = '{attention}'\nthreads = 1\ngpu_layers = 0\n[completion]\nmax_tokens = 8\n"
    )
    path = written(architecture)
    outcome = dg_lsp("fill", "a.py:4", "--model", path, "--json")
    if (attention == "causal" and architecture not in CACHED) or (
        attention == "per_request" and architecture == "llada-moe"
    ):
        assert outcome.code == 3
        assert outcome.err.count("\n") == 1
        assert "set model.prompt_attention to " in outcome.err
        return
    assert outcome.code in (0, 1), outcome.err
    answer = outcome.json
    assert answer["model"] == architecture
    assert answer["decoder"] == "infill"
    assert answer["canvas_length"] in (16, 32, 64, 128)
    assert answer["prompt_tokens"] > 0
    assert answer["steps"] > 1
    assert answer["text"] or answer["rejected"]
    assert (tmp_path / "a.py").read_text() == BEFORE + AFTER
