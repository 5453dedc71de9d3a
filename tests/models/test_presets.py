"""The records of models from a hub hold together."""

import re
from pathlib import Path

import pytest

from dg_lsp.models.presets import PRESETS
from dg_lsp.models.registry import AUTO, BUNDLED, DEFAULT

by_name = pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)


def test_names_are_different():
    names = [model.name for model in (*BUNDLED, *PRESETS)]
    assert len({*names, AUTO}) == len(names) + 1
    assert DEFAULT in names


def test_ranks_are_different_and_leave_baselines_out():
    ranks = [preset.rank for preset in PRESETS if preset.rank]
    assert len(set(ranks)) == len(ranks)
    assert not any(preset.rank for preset in PRESETS if preset.noise == "none" or preset.terms)


@by_name
def test_a_preset_says_where_it_is_from(preset):
    assert preset.wheels or re.fullmatch(r"[\w.-]+/[\w.-]+", preset.repository)
    assert re.fullmatch(r"main|[0-9a-f]{40}", preset.revision)
    assert re.fullmatch(r"|[0-9a-f]{64}", preset.sha256)
    assert preset.sources
    assert preset.licence
    assert preset.size > 1e8


@by_name
def test_what_has_to_be_done_next_is_a_command(preset):
    assert preset.is_checkpoint == (not any(pattern.endswith(".gguf") for pattern in preset.patterns))
    if preset.next_step:
        command = preset.command(preset.folder / "fetched.gguf")
        assert str(preset.folder / "fetched.gguf") in command
        assert str(preset.ready_path) in command
    # only one GGUF has a checksum of its own
    assert not (preset.sha256 and preset.is_checkpoint)


@by_name
def test_memory_is_weights_and_what_a_context_takes(preset):
    assert 1.5e9 < preset.memory_bytes - preset.size < 1.7e9


@by_name
def test_the_page_has_its_row(preset):
    page = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")
    size, memory = (f"{number / 1e9:.1f} GB" for number in (preset.size, preset.memory_bytes))
    cells = (f"`{preset.name}`", preset.note, preset.noise, preset.quantization, size, memory, preset.licence,
             f"`{preset.repository}`")  # fmt: skip
    assert f"| {' | '.join(cells)} |" in page.splitlines()


def test_the_page_lists_no_preset_that_is_gone():
    page = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([^`]+)` \|.*GB", page, re.MULTILINE) == [preset.name for preset in PRESETS]
