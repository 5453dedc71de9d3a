"""The bundled model under another architecture's name computes the same."""

import dataclasses
import sys

import numpy as np
import pytest
from margins import check_close

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.masked import ExactDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.bench.twin import Sentinels, relabel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.cli import loading
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.errors import UsageError
from dg_lsp.settings import RuntimeSettings, Settings

TEXT = "class Shelf:\n    def __init__(self, name, size):\n        self.name = name\n        self.size = size\n"
RUNTIME = RuntimeSettings(threads=1, gpu_layers=0, num_slots=1)


@pytest.fixture(scope="module")
def bundled():
    model = loading.load_model(Settings(runtime=RUNTIME))
    denoiser = LlamaDenoiser(model.weights, model.spec, RUNTIME)
    yield model, denoiser
    denoiser.close()


def test_a_relabelled_model_computes_what_the_model_computes(bundled, tmp_path):
    model, denoiser = bundled
    names = relabel(model.path, tmp_path / "rnd1.gguf", model.spec)
    assert names == Sentinels("<|prefix|>", "<|suffix|>", "<|middle|>", "<|eom|>")
    relabelled = LlamaModel.load(tmp_path / "rnd1.gguf", RUNTIME)
    assert relabelled.metadata["general.architecture"] == "rnd1"
    spec = dataclasses.replace(model.spec, max_prompt_tokens=64)
    other = ExactDenoiser(relabelled, spec, RUNTIME)
    rng = np.random.default_rng(0)
    prompt = denoiser.tokenizer.encode("def area(w, h):\n    return ")
    np.testing.assert_array_equal(other.tokenizer.encode("def area(w, h):\n    return "), prompt)
    canvas = denoiser.tokenizer.encode(TEXT).copy()
    canvas[1::3] = model.spec.sampling.mask_id
    # as llama.cpp's own diffusion has it, the prompt sees the canvas: for us both are one canvas after nothing
    denoiser.prefill(0, token_ids([]))
    (ours,) = denoiser.predict(0, [token_ids(np.concatenate([prompt, canvas]))], 0.0, rng)
    other.prefill(0, prompt)
    (theirs,) = other.predict(0, [token_ids(canvas)], 0.0, rng)
    other.close()
    # the layers are computed by other kernels: a near tie may fall the other way
    rows = slice(len(prompt), None)
    ours = Prediction(ours.argmax_ids[rows], ours.sampled_ids[rows], ours.confidence[rows], ours.entropy[rows])
    check_close(ours, theirs, 3e-2)
    assert np.count_nonzero((ours.confidence > 0.6) & (ours.confidence < 1)) > 4


def test_only_a_model_of_our_own_architecture_is_relabelled(bundled, tmp_path):
    model, _ = bundled
    path = tmp_path / "rnd1.gguf"
    relabel(model.path, path, model.spec)
    with pytest.raises(UsageError, match="use dg-mini"):
        relabel(path, tmp_path / "again.gguf", model.spec)


def test_without_gguf_it_says_what_to_install(bundled, tmp_path, monkeypatch):
    model, _ = bundled
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match=r"pip install 'dg-lsp\[dev\]'"):
        relabel(model.path, tmp_path / "rnd1.gguf", model.spec)
