"""The bundled model, rewritten as another architecture, computes the same."""

import dataclasses
import sys

import numpy as np
import pytest

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.masked import ExactDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.bench.gguf_models import Sentinels, write_as_rnd1
from dg_lsp.canvas.layout import token_ids
from dg_lsp.cli import loading
from dg_lsp.errors import UsageError
from dg_lsp.settings import ModelSettings, Settings

RUNTIME = ModelSettings(threads=1, gpu_layers=0, num_slots=1)


@pytest.fixture(scope="module")
def bundled():
    model = loading.load_model(Settings(model=RUNTIME))
    denoiser = LlamaDenoiser(model.weights, model.spec, RUNTIME)
    yield model, denoiser
    denoiser.close()


def test_a_rewritten_model_computes_the_same(bundled, tmp_path):
    model, denoiser = bundled
    names = write_as_rnd1(model.path, tmp_path / "rnd1.gguf", model.spec)
    assert names == Sentinels("<|prefix|>", "<|suffix|>", "<|middle|>", "<|eom|>")
    rewritten = LlamaModel.load(tmp_path / "rnd1.gguf", RUNTIME)
    assert rewritten.metadata["general.architecture"] == "rnd1"
    spec = dataclasses.replace(model.spec, max_prompt_tokens=64)
    other = ExactDenoiser(rewritten, spec, RUNTIME)
    rng = np.random.default_rng(0)
    prompt = denoiser.tokenizer.encode("def area(w, h):\n    return ")
    np.testing.assert_array_equal(other.tokenizer.encode("def area(w, h):\n    return "), prompt)
    canvas = np.full(16, model.spec.sampling.mask_id, np.int32)
    # in llama.cpp's own diffusion the prompt sees the canvas: for us both are one canvas after an empty prompt
    denoiser.prefill(0, token_ids([]))
    (ours,) = denoiser.predict(0, [token_ids(np.concatenate([prompt, canvas]))], 0.0, rng)
    other.prefill(0, prompt)
    (theirs,) = other.predict(0, [token_ids(canvas)], 0.0, rng)
    other.close()
    # other kernels compute the layers: the argmax of a near tie may differ
    assert np.count_nonzero(theirs.argmax_ids == ours.argmax_ids[len(prompt) :]) >= 14
    np.testing.assert_allclose(theirs.confidence, ours.confidence[len(prompt) :], atol=3e-2)
    assert len(np.unique(ours.confidence)) > 8


def test_only_qwen3_models_are_rewritten(bundled, tmp_path):
    model, _ = bundled
    path = tmp_path / "rnd1.gguf"
    write_as_rnd1(model.path, path, model.spec)
    with pytest.raises(UsageError, match="use dg-mini"):
        write_as_rnd1(path, tmp_path / "again.gguf", model.spec)


def test_without_gguf_the_error_names_the_package(bundled, tmp_path, monkeypatch):
    model, _ = bundled
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match=r"pip install 'dg-lsp\[dev\]'"):
        write_as_rnd1(model.path, tmp_path / "rnd1.gguf", model.spec)
