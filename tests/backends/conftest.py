"""Tiny random GGUFs with a byte-level vocabulary, and denoisers over them."""

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_masked
import tiny_vocabulary

from dg_lsp.backends.llamacpp import LlamaDenoiser, LlamaModel, denoiser, denoiser_for
from dg_lsp.backends.llamacpp.context import KvCache
from dg_lsp.backends.llamacpp.diffusiongemma.denoiser import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import MASS
from dg_lsp.backends.llamacpp.library import devices, library, runs_diffusiongemma
from dg_lsp.canvas.spec import FimTokens, MaskSampling, ModelSpec, UniformSampling
from dg_lsp.models.metadata import describe
from dg_lsp.runtime import COMMAND
from dg_lsp.settings import ModelSettings

TOKENS = ("<|mask|>", "<|end|>", "<|prefix|>", "<|suffix|>", "<|middle|>", *tiny_masked.TOKENS[5:])
SPEC = ModelSpec(
    name="tiny",
    vocab_size=len(TOKENS),
    sampling=MaskSampling(mask_id=0),
    end_ids=(1,),
    fim=FimTokens(prefix_id=2, suffix_id=3, middle_id=4),
    banned_ids=(0, 2, 3, 4),
    canvas_lengths=(8, 16, 32),
    max_prompt_tokens=256,
)


def runtime(**settings):
    return ModelSettings(**{"threads": 1, "gpu_layers": 0, **settings})


@pytest.fixture(params=[False])
def is_alone(request, monkeypatch):
    """Whether one slot at a time has its cells in a context; by default none is alone, as on a GPU."""
    monkeypatch.setattr(denoiser, "KvCache", lambda *arguments, **_: KvCache(*arguments, is_alone=request.param))
    return request.param


@pytest.fixture(scope="session")
def write_model(tmp_path_factory):
    """Writes the GGUF of a causal model; returns its path."""

    def make(*, trained_length=2048, **options):
        path = tmp_path_factory.mktemp("models") / "tiny.gguf"
        tiny = tiny_masked.make("qwen2", trained_length=trained_length)
        return tiny_masked.write(path, tiny, **{"name": "tiny", "tokens": TOKENS, "mask_id": None, **options})

    return make


@pytest.fixture(scope="session")
def tiny_path(write_model):
    return write_model()


@pytest.fixture
def opened():
    """`opened(resource)` closes a resource in the end."""
    with ExitStack() as stack:
        yield lambda resource: stack.enter_context(closing(resource))


@pytest.fixture
def open_vocabulary(tmp_path, opened):
    """`open_vocabulary(model, **texts)` writes a model of `tiny_vocabulary`; returns its spec and tokenizer."""

    def open_model(model, **texts):
        path = tiny_vocabulary.write(tmp_path / f"{model.filename}.gguf", model, **texts)
        weights = opened(LlamaModel(path, runtime()))
        specials = weights.tokenizer.specials()
        return describe(weights.metadata, weights.vocab_size, path.stem, specials), weights.tokenizer

    return open_model


@pytest.fixture
def full_precision(monkeypatch):
    """Keys and values in the cache of llama.cpp are 32-bit numbers."""
    make = library().api.llama_context_default_params

    def params():
        made = make()
        made.type_k = made.type_v = 0  # GGML_TYPE_F32
        return made

    monkeypatch.setattr(library().api, "llama_context_default_params", params)


@pytest.fixture
def open_denoiser(tiny_path, opened):
    """Opens denoisers with a cached causal prompt."""

    def open_model(spec=SPEC, *, path=tiny_path, **settings):
        chosen = runtime(**settings)
        return opened(LlamaDenoiser(LlamaModel(path, chosen), spec, chosen))

    open_model.mask = SPEC
    open_model.uniform = replace(SPEC, sampling=UniformSampling())
    return open_model


@pytest.fixture
def open_gemma(tiny_repacked, opened):
    """Opens a DiffusionGemma that keeps its predictions on the host, or on ggml's CPU device as on a GPU."""

    def open_model(*, on_device=False, path=tiny_repacked, spec=None, mass=MASS, **settings):
        if not runs_diffusiongemma():
            pytest.skip(f"the installed llama.cpp is not changed, or by an earlier version; run: {COMMAND}")
        chosen = runtime(**settings)
        model = LlamaModel(path, chosen)
        model.on_gpu = on_device
        device = next(device for device in devices() if device.kind == "cpu") if on_device else None
        described = replace(describe(model.metadata, model.vocab_size, "tiny"), **(spec or {}))
        return opened(SelfConditionedDenoiser(model, described, chosen, mass=mass, device=device))

    return open_model


@pytest.fixture
def open_masked(tmp_path, opened):
    """Opens the denoiser that a GGUF file or `tiny_masked.masked(model)` needs; `spec` changes the description."""

    def open_model(model, *, spec=None, **settings):
        path = model if isinstance(model, Path) else tmp_path / f"{model}.gguf"
        if not path.exists():
            tiny_masked.write(path, tiny_masked.masked(model), name="Open dCoder" if model == "qwen2" else "")
        chosen = runtime(**settings)
        weights = LlamaModel(path, chosen)
        described = describe(weights.metadata, weights.vocab_size, path.stem, weights.tokenizer.specials())
        return opened(denoiser_for(weights, replace(described, **(spec or {})), chosen))

    return open_model
