"""`dg-lsp fill` with tiny random models of every masked architecture: the text is noise, all else is real."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import tiny_masked
from tiny_masked import DELETE, EXPAND, MASK

from dg_lsp.cli import loading
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest
from dg_lsp.models import registry
from dg_lsp.models.registry import find_family
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings

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


@pytest.mark.parametrize("attention", ["auto", "per_request"])
def test_the_canvas_of_dreamon_grows_and_shrinks(monkeypatch, tmp_path, attention):
    """It has the tokens of the tiny vocabulary; expansion and deletion are frequent."""
    family = find_family("dream", "dreamon")
    sampling = replace(family.sampling, mask_id=MASK, expand_id=EXPAND, delete_id=DELETE, max_free=24)
    family = replace(family, sampling=sampling, end_ids=(DELETE,), gap_lengths=(4,))
    monkeypatch.setattr(registry, "FAMILIES", (family,))
    tiny = tiny_masked.make("dream", layers=1)
    tiny.tensors["output.weight"][EXPAND] *= 5
    tiny.tensors["output.weight"][DELETE] *= 3
    path = tiny_masked.write(tmp_path / "DreamOn-tiny.gguf", tiny, name="DreamOn v0 7B")
    model = ModelSettings(name=str(path), threads=1, gpu_layers=0, prompt_attention=attention)
    settings = Settings(model=model, completion=CompletionSettings(max_tokens=64, deadline_ms=60_000))
    changes = set()
    with closing(loading.open_engine(settings)) as engine:
        for number in range(3):
            before = BEFORE + "x" * number
            request = FillRequest(Snapshot("file:///a.py", before + AFTER), len(before))
            frames = (step.frame() for step in request.run(engine, float("inf")))
            lengths = [len(frame.cells) for frame in frames]
            changes |= set(np.sign(np.diff(lengths)).tolist())
            assert max(lengths) <= engine.spec.sampling.max_free
    assert changes >= {1, -1}


@pytest.mark.parametrize("architecture", [*tiny_masked.ARCHITECTURES, "qwen2"])
def test_gaps_share_a_canvas_with_frozen_code_between_them(dg_lsp, written, tmp_path, user_settings, architecture):
    (tmp_path / "a.py").write_text("a=...\nb=...\n")
    user_settings("[model]\nthreads = 1\ngpu_layers = 0\n[completion]\nmax_tokens = 8\nmin_confidence = 0\n")
    outcome = dg_lsp("fill", "a.py", "--gaps", "--visual", "--json", "--model", written(architecture))
    assert outcome.code in (0, 1), outcome.err
    assert len(outcome.json["gaps"]) == 2
    rows = outcome.err.splitlines()
    assert len(rows) == outcome.json["steps"] >= 2
    assert all("↵b=" in row for row in rows)
