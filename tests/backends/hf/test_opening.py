"""Directories of checkpoints: what they say of themselves, where they go, whether they fit, what is wrong."""

import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from dg_lsp.backends.hf import devices, open_checkpoint
from dg_lsp.backends.hf.denoiser import limits_for
from dg_lsp.backends.hf.devices import Placement, check_fits, need, place
from dg_lsp.backends.hf.opening import weight_bytes
from dg_lsp.canvas.spec import PromptFormat, UniformSampling
from dg_lsp.cli import loading
from dg_lsp.errors import (
    BackendError,
    ModelBrokenError,
    ModelMemoryError,
    ModelNotFoundError,
    ModelUnsupportedError,
    SettingsError,
)
from dg_lsp.models.metadata import read_folder
from dg_lsp.settings import RuntimeSettings, Settings, parse_settings

CPU = RuntimeSettings(threads=1, device="cpu")


@pytest.fixture
def copied(tiny_checkpoint, tmp_path):
    """A checkpoint that a test may damage."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "copied")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


def test_a_checkpoint_describes_itself(tiny_checkpoint):
    checkpoint, spec = read_folder(tiny_checkpoint)
    assert (spec.name, spec.vocab_size, spec.prompt_format) == ("tiny-diffusiongemma", 512, PromptFormat.INSTRUCT)
    assert (spec.template, spec.end_ids, spec.canvas_lengths) == ("gemma4", (1, 106, 50), (16, 32))
    assert spec.self_conditioning is None and not spec.has_causal_head
    assert dataclasses.astuple(spec.sampling) == pytest.approx(dataclasses.astuple(UniformSampling()), rel=1e-6)
    assert {2, 105, 100, 511} < set(spec.banned_ids) and not {1, 106} & set(spec.banned_ids)
    assert {2, 1, 106} < checkpoint.special_ids
    assert checkpoint.stored_type == "float32"
    assert 4 * checkpoint.num_weights < checkpoint.size_bytes < 8 * checkpoint.num_weights  # a vision tower, too


def test_an_opened_checkpoint_says_what_transformers_says(tiny_checkpoint):
    from transformers import DiffusionGemmaForBlockDiffusion

    checkpoint, spec = read_folder(tiny_checkpoint)
    assert weight_bytes(checkpoint, Placement(torch.device("cpu"), torch.float32)) == 4 * checkpoint.num_weights
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(tiny_checkpoint, experts_implementation="eager")
    denoiser = open_checkpoint(checkpoint, spec, CPU)
    rng = np.random.default_rng(0)
    prompt, canvas = (rng.integers(110, 500, size).astype(np.int32) for size in (20, 16))
    denoiser.prefill(0, prompt)
    (found,) = denoiser.predict(0, [canvas], 0.8, rng)
    denoiser.close()
    with torch.inference_mode():
        cache = DynamicCache(config=model.config.get_text_config())
        model.model.encoder(input_ids=torch.tensor(prompt)[None], past_key_values=cache)
        logits = model(decoder_input_ids=torch.tensor(canvas)[None], past_key_values=cache).logits[0]
        logits[:, list(spec.banned_ids)] = float("-inf")
        probabilities = (logits / 0.8).softmax(-1)
    assert np.abs(found.entropy - torch.special.entr(probabilities).sum(-1).numpy()).max() < 0.02
    assert np.abs(found.confidence - probabilities.max(-1).values.numpy()).max() < 0.01


def test_an_engine_fills_with_a_checkpoint(tiny_checkpoint):
    from dg_lsp.context.document import Snapshot
    from dg_lsp.engine.request import FillRequest

    settings = Settings(model=str(tiny_checkpoint), runtime=CPU)
    facts = loading.load_model(settings).facts()
    assert facts["noise"] == "uniform" and "checkpoint of" in facts["description"]
    engine = loading.open_engine(settings)
    text = "def total(items):\n    return \n"
    result = engine.fill(FillRequest(Snapshot("a.py", 0, text), len(text) - 1, deadline_ms=2000))
    engine.close()
    assert result.model == "tiny-diffusiongemma" and result.steps > 0 and result.prompt_tokens > 50
    assert len(result.candidates) + len(result.rejections) >= 1


def broken(copied, what):
    if what == "cut short":
        shard = max(copied.glob("model-*.safetensors"), key=lambda path: path.stat().st_size)
        shard.write_bytes(shard.read_bytes()[:-100])
    elif what == "a shard is missing":
        next(copied.glob("model-*.safetensors")).unlink()
    elif what == "no tokenizer":
        (copied / "tokenizer.json").unlink()
    else:
        (copied / "config.json").write_text("{", encoding="utf-8")


@pytest.mark.parametrize("what", ["cut short", "a shard is missing", "no tokenizer", "no json"])
def test_a_broken_checkpoint_is_told(copied, what):
    broken(copied, what)
    with pytest.raises(ModelBrokenError, match=r"download|name the folder"):
        read_folder(copied)


def test_other_directories_are_told(copied, tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        read_folder(tmp_path)
    edit(copied / "config.json", model_type="gemma4")
    with pytest.raises(ModelUnsupportedError, match="gemma4"):
        read_folder(copied)
    edit(copied / "config.json", model_type="diffusion_gemma", text_config={})
    with pytest.raises(ModelUnsupportedError, match="download"):
        read_folder(copied)


def test_a_configuration_that_transformers_refuses_is_told(copied):
    config = json.loads((copied / "config.json").read_text())
    edit(copied / "config.json", text_config=config["text_config"] | {"sliding_window": "wide"})
    with pytest.raises(ModelBrokenError, match="download"):
        open_checkpoint(*read_folder(copied), CPU)


def test_a_model_that_does_not_fit_is_told_with_the_numbers(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(devices, "_free_bytes", lambda _: 3_000_000)
    with pytest.raises(ModelMemoryError, match=r"takes 0\.\d GB in float32 \(weights 0\.0, prompts .* 0\.0 GB free"):
        open_checkpoint(*read_folder(tiny_checkpoint), CPU)


def test_what_the_real_model_needs():
    """In bfloat16; what may be taken back past the window is held beside it."""
    from transformers import DiffusionGemmaTextConfig

    from dg_lsp.canvas.spec import ModelSpec

    config = DiffusionGemmaTextConfig(
        hidden_size=2816,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        sliding_window=1024,
    )
    sampling, lengths = UniformSampling(), (16, 256)
    spec = ModelSpec("real", 262_144, sampling, (1,), canvas_lengths=lengths, max_prompt_tokens=8192)
    placement = Placement(torch.device("cpu"), torch.bfloat16)
    found = need(50_500_000_000, config, spec, limits_for(spec, 1), placement)
    assert found.prompts == (8192 + 9216) * 20_480 + 2 * (1023 + 1024) * 204_800
    assert 1e9 < found.step < 2e9
    with pytest.raises(ModelMemoryError, match=r"weights 50\.5"):
        check_fits("real", found, placement)


def test_devices_and_number_formats(monkeypatch):
    wide = torch.float32
    assert place(CPU, wide) == Placement(torch.device("cpu"), wide)
    assert place(settings_with(dtype="bfloat16"), wide).name == "bfloat16"
    with pytest.raises(SettingsError, match=r"compute capability 9\.0"):
        place(settings_with(dtype="float8"), wide)
    with pytest.raises(SettingsError, match="torch sees 0 GPUs"):
        place(settings_with(device="cuda:1"), wide)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert place(RuntimeSettings(), wide) == Placement(torch.device("cuda", 0), torch.bfloat16)
    assert place(RuntimeSettings(gpu_layers=0), wide).device.type == "cpu"
    eight = place(RuntimeSettings(device="cuda:1", dtype="float8"), wide)
    assert (eight.device, eight.name) == (torch.device("cuda", 1), "float8")


def settings_with(**changes):
    return RuntimeSettings(**{"device": "cpu", **changes})


@pytest.mark.parametrize("runtime", [{"device": "tpu"}, {"device": "cuda:"}, {"dtype": "float4"}, {"compile": 1}])
def test_bad_settings_are_refused(runtime):
    with pytest.raises(SettingsError):
        parse_settings({"runtime": runtime})


def test_without_transformers_the_extra_is_named(tiny_checkpoint, monkeypatch):
    monkeypatch.delitem(sys.modules, "dg_lsp.backends.hf.opening", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BackendError, match=r"pip install 'dg-lsp\[hf\]'"):
        open_checkpoint(*read_folder(tiny_checkpoint), CPU)
