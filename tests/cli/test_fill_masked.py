"""`dg-lsp fill` with tiny random models of every masked architecture: the text is noise, all else is real."""

from dataclasses import replace

import attrs
import numpy as np
import pytest
import tiny_masked

from dg_lsp.canvas.spec import PromptFormat
from dg_lsp.cli import loading
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillRequest
from dg_lsp.models import presets
from dg_lsp.settings import CompletionSettings, ModelSettings, Settings

BEFORE = "def total(items):\n    result = 0\n    for item in items:\n        "
AFTER = "\n    return result\n"
CACHED = ("dream", "rnd1", "qwen2")
RUNTIME = ModelSettings(threads=1, gpu_layers=0)


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


@pytest.fixture
def engine_of():
    """Opens engines; closes them after the test."""
    opened = []

    def open_one(path, runtime=RUNTIME, **fill):
        fill = CompletionSettings(**{"check_syntax": False, "max_tokens": 8, "confidence_threshold": 0.2, **fill})
        model = attrs.evolve(runtime, name=str(path))
        opened.append(loading.open_engine(Settings(model=model, completion=fill)))
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.close()


def request(before=BEFORE, after=AFTER, **options):
    return FillRequest(Snapshot("file:///a.py", 0, before + after), len(before), deadline_ms=60_000, **options)


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


@pytest.mark.parametrize("architecture", CACHED)
def test_typing_decodes_again_what_nothing_is_kept_of_and_no_more(engine_of, written, architecture):
    path = written(architecture)
    cached, exact = engine_of(path, attrs.evolve(RUNTIME, prompt_attention="causal")), engine_of(path)
    for engine, most in ((cached, 16), (exact, 10_000)):
        first, second = engine.fill(request()), engine.fill(request(BEFORE + "r"))
        assert first.cached_tokens <= 1, "the prompt's last token is in no cache"
        assert 0 < second.prompt_tokens - second.cached_tokens <= most
        assert (second.cached_tokens > 0) == (engine is cached)


@pytest.mark.parametrize("prompt_format", [PromptFormat.PREFIX, PromptFormat.INFILL])
def test_other_formats_than_the_models_own_can_be_asked_for(engine_of, written, prompt_format):
    engine = engine_of(written("llada"), prompt_format=prompt_format.value)
    result = engine.fill(request())
    assert result.candidates or result.rejections
    assert result.steps > 1


def test_the_same_seed_gives_the_same_fill(engine_of, written):
    engine = engine_of(written("dream"))
    first, second = (engine.fill(request(seed=3)) for _ in range(2))
    assert (first.candidates, first.rejections, first.steps) == (second.candidates, second.rejections, second.steps)


@pytest.fixture
def dreamon(monkeypatch, tmp_path):
    """DreamOn with the tiny vocabulary's tokens, in which both are loud, so that they are said often."""
    family = replace(
        presets.DREAMON,
        sampling=replace(
            presets.DREAMON.sampling,
            mask_id=tiny_masked.MASK,
            expand_id=tiny_masked.EXPAND,
            delete_id=tiny_masked.DELETE,
            max_free=24,
        ),
        end_ids=(tiny_masked.DELETE,),
        gap_lengths=(4,),
    )
    monkeypatch.setattr(presets, "FAMILIES", (family,))
    tiny = tiny_masked.make("dream", layers=1)
    tiny.tensors["output.weight"][tiny_masked.EXPAND] *= 5
    tiny.tensors["output.weight"][tiny_masked.DELETE] *= 3
    return tiny_masked.write(tmp_path / "DreamOn-tiny.gguf", tiny, name="DreamOn v0 7B")


@pytest.mark.parametrize("attention", ["auto", "per_request", "causal"])
def test_dreamons_canvas_grows_and_shrinks(engine_of, dreamon, monkeypatch, attention):
    engine = engine_of(
        dreamon, attrs.evolve(RUNTIME, prompt_attention=attention), max_tokens=64, confidence_threshold=0.0
    )
    sampling = engine.spec.sampling
    assert (sampling.expand_id, sampling.delete_id) == (tiny_masked.EXPAND, tiny_masked.DELETE)
    assert tiny_masked.DELETE not in engine.spec.end_ids
    predict, holes = type(engine._model.denoiser).predict, []

    def watched(self, slot, canvases, *others):
        holes.append(int(np.count_nonzero(canvases[0] == tiny_masked.MASK)))
        assert not np.isin(canvases[0], [tiny_masked.EXPAND, tiny_masked.DELETE]).any()
        return predict(self, slot, canvases, *others)

    monkeypatch.setattr(type(engine._model.denoiser), "predict", watched)
    changes = set()
    for number in range(3):
        holes.clear()
        engine.fill(request(BEFORE + "x" * number))
        changes |= set(np.sign(np.diff(holes)).tolist())
        assert holes[0] == 4
        assert max(holes) <= sampling.max_free
    assert changes >= {1, -1}
