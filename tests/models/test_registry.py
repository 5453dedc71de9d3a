"""Models by name or path, and the selection of `auto` by free memory."""

import os
from pathlib import Path

import pytest

from dg_lsp.errors import ModelNotFoundError
from dg_lsp.models import registry
from dg_lsp.models.registry import BUNDLED, PRESETS, BundledModel, gpu_memory, known_names, locate, select
from dg_lsp.settings import Settings


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


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ModelNotFoundError, match="is a directory"):
        locate(str(tmp_path))


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
