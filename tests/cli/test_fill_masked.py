"""`dg-lsp fill` with tiny random models of every masked architecture: the text is noise, all else is real."""

import pytest
import tiny_masked

BEFORE = "def total(items):\n    result = 0\n    for item in items:\n        "
AFTER = "\n    return result\n"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")

    def path_of(architecture):
        path = folder / f"{architecture}.gguf"
        if not path.exists():
            name = "Open dCoder 0.5B" if architecture == "qwen2" else ""
            tiny_masked.write(path, tiny_masked.make(architecture, layers=1), name=name)
        return path

    return path_of


@pytest.mark.parametrize("architecture", [*tiny_masked.ARCHITECTURES, "qwen2"])
@pytest.mark.parametrize("attention", ["auto", "per_request"])
def test_a_gap_is_filled(dg_lsp, written, tmp_path, user_settings, architecture, attention):
    (tmp_path / "a.py").write_text(BEFORE + AFTER)
    user_settings(
        f"[model]\nthreads = 1\ngpu_layers = 0\n[completion]\nmax_tokens = 8\n"
        f"[model.sampler.{architecture}]\nprompt_attention = '{attention}'\n"
    )
    options = ("--json", "--sampler", "confidence_threshold=0.2")
    outcome = dg_lsp("fill", "a.py:4", "--model", written(architecture), *options)
    if (architecture, attention) == ("llada-moe", "per_request"):
        assert "set its prompt_attention (model.sampler) to exact" in outcome.error(3)
        return
    assert outcome.code in (0, 1), outcome.err
    answer = outcome.json
    assert (answer["model"], answer["decoder"]) == (architecture, "infill")
    assert answer["canvas_length"] in (16, 32, 64, 128)
    assert min(answer["prompt_tokens"], answer["steps"]) > 1
    assert answer["text"] or answer["rejected"]


def test_gaps_share_a_canvas_with_frozen_code_between_them(dg_lsp, written, tmp_path, user_settings):
    (tmp_path / "a.py").write_text("a=...\nb=...\n")
    user_settings("[model]\nthreads = 1\ngpu_layers = 0\n[completion]\nmax_tokens = 8\nmin_confidence = 0\n")
    outcome = dg_lsp("fill", "a.py", "--gaps", "--visual", "--json", "--model", written("dream"))
    assert outcome.code in (0, 1), outcome.err
    assert len(outcome.json["gaps"]) == 2
    rows = outcome.err.splitlines()
    assert len(rows) == outcome.json["steps"] >= 2
    assert all("↵b=" in row for row in rows)
