"""Families and presets: recognition by architecture and name, and consistent records."""

import re
from pathlib import Path

import pytest

from dg_lsp.canvas.spec import PromptFormat, UniformSampling
from dg_lsp.models.registry import AUTO, BUNDLED, DEFAULT, FAMILIES, PRESETS, find_family

each_preset = pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
PAGE = Path(__file__).parents[2] / "docs/models.md"


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


def test_masks_and_shifts_are_those_of_the_published_code():
    masks = {family.name: (family.mask_id, family.is_shifted) for family in FAMILIES}
    assert masks == {
        "dream": (151_666, True),
        "dreamon": (151_666, True),
        "open-dcoder": (151_665, True),
        "llada": (126_336, False),
        "llada-moe": (156_895, False),
        "rnd1": (151_669, True),
        "diffusiongemma": (None, False),
    }
    dreamon = find_family("dream", "dreamon")
    assert (dreamon.sampling.expand_id, dreamon.sampling.delete_id) == (151_667, 151_643)
    gemma = find_family("diffusion-gemma")
    assert gemma.sampling == UniformSampling(0.1, 0.8, 0.4, 48, 1, 0.005)
    assert (gemma.prompt_format, gemma.template, gemma.noise) == (PromptFormat.INSTRUCT, "gemma4", "uniform")


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
    cells = (f"`{preset.name}`", preset.note, preset.noise, preset.quantization, size, memory, preset.licence,
             f"`{preset.repository}`")  # fmt: skip
    assert f"| {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8").splitlines()


def test_the_documentation_has_only_rows_of_presets():
    rows = re.findall(r"^\| `([^`]+)` \|.*GB", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [preset.name for preset in PRESETS]
