"""Families, presets, and models by name or path."""

import re
from pathlib import Path

import pytest

from dg_lsp.backends.llamacpp.quantize import FILE_TYPES
from dg_lsp.canvas.spec import PromptCut
from dg_lsp.gguf import read_header
from dg_lsp.models.metadata import describe
from dg_lsp.models.registry import AUTO, BASE, BUNDLED, FAMILIES, MINI, PRESETS, locate
from dg_lsp.settings import Settings

PAGE = Path(__file__).parents[2] / "docs/models.md"


def test_two_models_are_bundled_and_auto_is_the_default():
    assert Settings().model.name == AUTO
    for name, preset in zip((MINI, BASE), BUNDLED, strict=True):
        assert locate(name) == preset.path
        assert preset.path.stat().st_size == preset.size
        read_header(preset.path)
    assert sum(preset.size for preset in BUNDLED) < 90e6, "PyPI takes wheels of 100 MB"


def test_dg_base_completes_token_by_token_in_all_languages():
    values = read_header(locate(BASE)).values
    spec = describe({key: str(values[key].read()).lower() for key in values if key.startswith("dg.")}, 16_384, BASE)
    assert (spec.noise, spec.has_causal_head, spec.cut, spec.canvas_lengths) == ("none", True, PromptCut.TOKEN, ())
    assert spec.languages == ()


def test_a_path_is_used_as_it_is_and_a_known_name_has_priority(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "über model.gguf"
    file.write_bytes(b"GGUF")
    assert locate("~/über model.gguf") == file
    Path("dg-mini").write_bytes(b"GGUF")
    assert locate("dg-mini") == BUNDLED[0].path
    assert locate("./dg-mini") == Path("dg-mini")


# families and presets


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_is_consistent(family):
    assert family.sources
    assert family.end_ids or family.is_drafter or getattr(family.sampling, "block_length", 1), "the file has them"
    for lengths in (family.canvas_lengths, family.gap_lengths):
        assert list(lengths) == sorted(set(lengths))
    assert getattr(family.sampling, "mask_id", None) not in family.end_ids


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_is_consistent(preset):
    assert not any(pattern.endswith(".py") for pattern in preset.patterns)
    assert bool(preset.download_size) == (preset.is_checkpoint and preset.needs_conversion)
    assert preset.quantization in FILE_TYPES
    assert bool(preset.terms) == any(word in preset.licence for word in ("not open source", "unknown"))
    assert preset.wheels or re.fullmatch(r"[\w.-]+/[\w.-]+", preset.repository)
    assert re.fullmatch(r"main|[0-9a-f]{40}", preset.revision)
    assert re.fullmatch(r"|[0-9a-f]{64}", preset.sha256)
    assert preset.sources
    assert preset.licence
    assert preset.size > 9e7
    assert re.match(r"(published|measured|estimate)\b", preset.quality_source) or not preset.quality
    assert 0 <= preset.quality < 1
    assert 0 < preset.active <= 1
    assert 1.5e9 < preset.memory_bytes - preset.size < 1.7e9
    assert preset.is_checkpoint == (not any(pattern.endswith(".gguf") for pattern in preset.patterns))
    assert not (preset.sha256 and preset.is_checkpoint), "only a single file has a checksum"


def row_of(preset):
    size, memory = (f"{number / 1e9:.1f} GB" for number in (preset.size, preset.memory_bytes))
    origin = f"`{preset.repository}`" if preset.repository else "packages of a package index"
    noise = type(preset.family.sampling).__name__.removesuffix("Sampling").lower() if preset.family else "none"
    cells = (f"`{preset.name}`", preset.note, noise, preset.quantization, size, memory, preset.hardware,
             preset.licence, origin)  # fmt: skip
    return f"| {' | '.join(cells)} |"


def test_the_documentation_has_a_row_for_each_preset_and_one_for_its_quality():
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `[^`]+` \|.*GB.*", page, re.MULTILINE)
    assert rows == [row_of(preset) for preset in PRESETS]
    rated = [preset for preset in (*BUNDLED, *PRESETS) if preset.quality]
    rows = {f"| `{preset.name}` | {100 * preset.quality:g} % | {preset.quality_source} |" for preset in rated}
    assert rows <= {*page.splitlines()}
