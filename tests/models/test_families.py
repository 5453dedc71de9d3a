"""A file that says nothing of itself is recognised by its architecture and its name."""

import pytest

from dg_lsp.canvas.spec import PromptFormat, UniformSampling
from dg_lsp.models.presets import FAMILIES, find_family


@pytest.mark.parametrize(
    ("architecture", "name", "family"),
    [
        pytest.param("dream", "Dream v0 Instruct 7B", "dream", id="dream"),
        pytest.param("dream", "", "dream", id="dream without a name"),
        pytest.param("dream", "DiffuCoder 7B cpGRPO", "dream", id="DiffuCoder is asked as Dream"),
        pytest.param("dream", "DreamOn v0 7B", "dreamon", id="DreamOn has two tokens more"),
        pytest.param("dream", "dreamon_v0.Q8_0", "dreamon", id="a file's own name does as well"),
        pytest.param("llada", "LLaDA 8B Instruct", "llada", id="llada"),
        pytest.param("llada-moe", "anything", "llada-moe", id="llada-moe"),
        pytest.param("rnd1", "RND1 Base 0910", "rnd1", id="rnd1"),
        pytest.param("qwen2", "Open DCoder 0.5B", "open-dcoder", id="a qwen2 file by its name"),
        pytest.param("diffusion-gemma", "", "diffusiongemma", id="diffusion-gemma"),
    ],
)
def test_a_family_is_found_by_architecture_and_name(architecture, name, family):
    found = find_family(architecture, name)
    assert found is not None
    assert (found.name, found.architecture) == (family, architecture)


@pytest.mark.parametrize(("architecture", "name"), [("qwen2", "Qwen2.5 Coder 0.5B"), ("qwen2", ""), ("llama", "llada")])
def test_causal_models_belong_to_none(architecture, name):
    assert find_family(architecture, name) is None


def test_facts_that_were_read_in_the_authors_code():
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
def test_a_family_is_fit_to_be_asked(family):
    assert family.sources
    assert family.end_ids
    assert list(family.canvas_lengths) == sorted(set(family.canvas_lengths))
    assert list(family.gap_lengths) == sorted(set(family.gap_lengths))
    assert bool(family.gap_lengths) == (family.prompt_format is PromptFormat.PINNED)
    assert family.mask_id not in family.end_ids
