"""Checkpoint directories: device, number format and memory; broken files."""

import dataclasses
import json
import os
import shutil
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from diffusiongemma_reference import Reference
from transformers import DiffusionGemmaTextConfig

from dg_lsp.backends.transformers import open_checkpoint
from dg_lsp.backends.transformers.denoiser import check_memory, choose_device
from dg_lsp.canvas.spec import ModelSpec, UniformSampling
from dg_lsp.diffusion.denoiser import DeviceMemory
from dg_lsp.errors import BackendError, ModelError, ModelMemoryError, ModelUnsupportedError, SettingsError
from dg_lsp.models.checkpoint import INDEX, read_checkpoint
from dg_lsp.models.metadata import read_folder
from dg_lsp.settings import ModelSettings

MODULE = "dg_lsp.backends.transformers.denoiser"
CPU = ModelSettings(threads=1, device="cpu")


@pytest.fixture
def copied(tiny_checkpoint, tmp_path):
    """A checkpoint that a test may damage."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "copied")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.02), ("bfloat16", 0.5)])
def test_an_opened_checkpoint_computes_the_probabilities_of_transformers(tiny_checkpoint, dtype, tolerance):
    checkpoint, spec = read_folder(tiny_checkpoint)
    reference = Reference.load(tiny_checkpoint, dtype=getattr(torch, dtype))
    denoiser = open_checkpoint(dataclasses.replace(checkpoint, stored_type=dtype), spec, CPU)
    rng = np.random.default_rng(0)
    prompt, canvas = (rng.integers(110, 500, size).astype(np.int32) for size in (20, 16))
    denoiser.prefill(0, prompt)
    (prediction,) = denoiser.predict(0, [canvas], 0.8, rng)
    itemsize = getattr(torch, dtype).itemsize
    assert denoiser.footprint.weights_bytes == pytest.approx(itemsize * checkpoint.num_weights, rel=0.01)
    denoiser.close()
    logits = reference.logits(reference.encoded(prompt), canvas)
    logits[:, list(spec.banned_ids)] = float("-inf")
    probabilities = (logits / 0.8).softmax(-1)
    assert np.abs(prediction.entropy - torch.special.entr(probabilities).sum(-1).numpy()).max() < tolerance
    assert np.abs(prediction.confidence - probabilities.max(-1).values.numpy()).max() < tolerance


DAMAGES = {
    "shard without its last numbers": lambda folder: os.truncate(
        shards(folder)[-1], shards(folder)[-1].stat().st_size - 9
    ),
    "shard without weights": lambda folder: os.truncate(shards(folder)[-1], 1000),
    "shard of five bytes": lambda folder: os.truncate(shards(folder)[-1], 5),
    "shard whose header is too long": lambda folder: replace_start(folder, b"\xff" * 8),
    "shard whose header is no JSON": lambda folder: replace_start(folder, b"\x08" + bytes(7) + b"{" * 8),
    "missing shard": lambda folder: shards(folder)[-1].unlink(),
    "no configuration": lambda folder: (folder / "config.json").unlink(),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "invalid JSON": lambda folder: (folder / "config.json").write_text("{", encoding="utf-8"),
    "JSON that is no object": lambda folder: (folder / "config.json").write_text("[]", encoding="utf-8"),
    "deep JSON": lambda folder: (folder / "config.json").write_text("[" * 100_000, encoding="utf-8"),
    "shards elsewhere": lambda folder: edit(folder / INDEX, weight_map={"lm_head.weight": "../model.safetensors"}),
    "shards of no file": lambda folder: edit(folder / INDEX, weight_map={"head": 9999 * "x" + ".safetensors"}),
    "shards in a format with code": lambda folder: edit(folder / INDEX, weight_map={"lm_head.weight": renamed(folder)}),
    "a pipe": lambda folder: ((folder / "tokenizer.json").unlink(), os.mkfifo(folder / "tokenizer.json")),
    "weights in a pipe": lambda folder: ((shard := shards(folder)[-1]).unlink(), os.mkfifo(shard)),
    "JSON of 64 GB": lambda folder: os.truncate(folder / "config.json", 1 << 36),
    "a chat template of 64 GB": lambda folder: (
        (folder / "chat_template.jinja").touch() or os.truncate(folder / "chat_template.jinja", 1 << 36)
    ),
    "no sizes": lambda folder: edit(folder / "config.json", text_config={}),
    "a size that transformers refuses": lambda folder: edit(
        folder / "config.json", text_config=sizes(folder) | {"sliding_window": "wide"}
    ),
}


def sizes(folder):
    return json.loads((folder / "config.json").read_text())["text_config"]


def renamed(folder):
    return shards(folder)[0].rename(folder / "model.bin").name


def replace_start(folder, start):
    with shards(folder)[-1].open("r+b") as file:
        file.write(start)


def shards(folder):
    return sorted(folder.glob("model-*.safetensors"), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_broken_checkpoint_is_reported(copied, damage):
    damage(copied)
    with pytest.raises(ModelError, match=r"download|name the folder"):
        open_checkpoint(*read_folder(copied), CPU)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_weights_that_are_not_finite_are_refused(copied, number):
    tensors = read_checkpoint(copied)
    norm = tensors["model.decoder.norm.weight"]
    with norm.path.open("r+b") as file:
        file.seek(norm.start)
        file.write(np.float32(number).tobytes())
    with pytest.raises(ModelError, match=r"norm\.weight is not finite; download"):
        open_checkpoint(*read_folder(copied), CPU)


def test_a_checkpoint_of_another_model_is_refused_with_the_command_that_converts_it(copied):
    edit(copied / "config.json", model_type="gemma4")
    with pytest.raises(ModelUnsupportedError, match=r"a gemma4 checkpoint.*dg-lsp models convert"):
        read_folder(copied)


def test_model_that_does_not_fit_into_memory_is_refused_before_it_is_loaded(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(f"{MODULE}.system_free", lambda: 3_000_000)
    with pytest.raises(ModelMemoryError, match=r"needs 0\.\d GB \(weights 0\.0, prompts .* 0\.0 GB free"):
        open_checkpoint(*read_folder(tiny_checkpoint), CPU)
    config = DiffusionGemmaTextConfig(  # of the real model
        hidden_size=2816,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_global_key_value_heads=2,
        sliding_window=1024,
    )
    spec = ModelSpec("real", 262_144, UniformSampling(), (1,), canvas_lengths=(16, 256), max_prompt_tokens=8192)
    with pytest.raises(ModelMemoryError, match=r"55\.3 GB \(weights 50\.5, prompts 3\.7, step 1\.1\), .* 0\.0 GB free"):
        check_memory(25_250_000_000, config, spec, 1, torch.bfloat16, torch.device("cpu"))


@pytest.mark.parametrize(
    ("num_gpus", "settings", "device", "problem"),
    [
        pytest.param(0, ModelSettings(), "cpu", "", id="no GPU"),
        pytest.param(2, CPU, "cpu", "", id="the CPU of the settings"),
        pytest.param(2, ModelSettings(gpu_layers=0), "cpu", "", id="no layers on a GPU"),
        pytest.param(2, ModelSettings(), "cuda:1", "", id="most free memory"),
        pytest.param(2, ModelSettings(device="gpu"), "cuda:1", "", id="a GPU with most free memory"),
        pytest.param(2, ModelSettings(device="gpu:0"), "cuda:0", "", id="the GPU of the settings"),
        pytest.param(2, ModelSettings(device="cuda:1"), "cuda:1", "", id="torch's name of it"),
        pytest.param(0, ModelSettings(device="cuda:1"), "", "torch finds 0 GPUs", id="no GPU of this number"),
        pytest.param(0, ModelSettings(device="gpu"), "", "torch finds 0 GPUs", id="no GPU at all"),
        pytest.param(2, ModelSettings(device="gpu:0,1"), "", "runs on one GPU", id="two GPUs"),
    ],
)
def test_the_device_is_that_of_the_settings_or_the_gpu_with_the_most_free_memory(
    monkeypatch, num_gpus, settings, device, problem
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(f"{MODULE}.gpu_memory", lambda device: DeviceMemory("GPU", 8 + device.index, 16))
    with pytest.raises(SettingsError, match=problem) if problem else nullcontext():
        assert choose_device(settings) == torch.device(device)


def test_without_transformers_the_error_names_the_extra(tiny_checkpoint, monkeypatch):
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BackendError, match=r"pip install '\.\[transformers\]'"):
        open_checkpoint(*read_folder(tiny_checkpoint), CPU)


def test_the_threads_of_a_checkpoint_are_measured_unless_they_are_set(tiny_checkpoint, opened, monkeypatch):
    """Only steps of one thread are run: with several, a step may take seconds on a busy machine."""
    monkeypatch.setattr(f"{MODULE}.threads_for", lambda wanted, step, **_options: wanted or step(1) or 2)
    for settings, threads in ((ModelSettings(device="cpu"), 2), (CPU, 1)):
        assert opened(open_checkpoint(*read_folder(tiny_checkpoint), settings)).threads == threads
