"""Which bundled model `auto` takes: by times that are written into the record, and once by a start of dg-base."""

import json

import pytest

from dg_lsp.cli import loading
from dg_lsp.models import registry, selection
from dg_lsp.models.registry import BASE, MINI
from dg_lsp.models.selection import default_model as choose
from dg_lsp.models.selection import measured_model
from dg_lsp.settings import ModelSettings, Settings

RUNTIME = ModelSettings(threads=1, gpu_layers=0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty data folder, on a machine with 8 GB of free memory."""
    monkeypatch.delenv("DG_LSP_AUTO_MODEL")
    monkeypatch.setattr(selection, "system_free", lambda: 8 * 10**9)
    return tmp_path / "data"


@pytest.mark.parametrize(("ms", "name"), [(84, BASE), (300, BASE), (301, MINI)])
def test_the_measured_time_of_a_line_decides_and_is_remembered(ms, name, folder):
    assert choose(RUNTIME).name == BASE, "it is tried first"
    assert measured_model(RUNTIME, ms) == choose(RUNTIME)
    assert choose(RUNTIME).name == name
    assert f"{ms} ms here, " in choose(RUNTIME).reason
    assert choose(ModelSettings(threads=2)).reason.startswith("how long"), "other settings, another time"
    assert len(json.loads((folder / "line-times.json").read_text())) == 1


def test_the_fastest_start_counts():
    measured_model(RUNTIME, 120)
    assert measured_model(RUNTIME, 900).name == BASE, "the machine was busy"
    selection.forget_times()
    assert measured_model(RUNTIME, 900).name == MINI


def test_little_memory_a_missing_file_and_the_variable_decide_before_the_time(monkeypatch):
    measured_model(RUNTIME, 84)
    with monkeypatch.context() as little:
        little.setattr(selection, "system_free", lambda: 6 * 10**8)
        assert choose(RUNTIME).reason == "dg-base needs 1 GB of free memory, 600 MB are free"
        assert choose(RUNTIME).name == MINI
    with monkeypatch.context() as gone:
        gone.setattr(registry.Preset, "path", registry.Path("/gone"))
        assert choose(RUNTIME).name == MINI
        assert "is missing from this installation" in choose(RUNTIME).reason
    monkeypatch.setenv("DG_LSP_AUTO_MODEL", "other.gguf")
    assert choose(RUNTIME).name == measured_model(RUNTIME, 900).name == "other.gguf"
    monkeypatch.setenv("DG_LSP_AUTO_MODEL", "")
    selection.forget_times()
    assert measured_model(RUNTIME, 900).name == MINI, "an empty variable names no model"


def test_a_start_measures_dg_base_and_loads_dg_mini_where_it_is_too_slow(dg_lsp, monkeypatch, position):
    monkeypatch.setattr(selection, "MAX_LINE_MS", 0.1)
    fill = dg_lsp("fill", position, "--gpu-layers", 0, "--threads", 1, "--json")
    assert fill.json["model"] == "dg-mini"
    assert fill.err.startswith("dg-lsp: auto selects dg-mini: a line by dg-base takes ")
    assert len(fill.err.splitlines()) == 1
    monkeypatch.setattr(selection, "MAX_LINE_MS", 1e6)
    model, engine = loading.open_measured(Settings(model=RUNTIME))
    engine.close()
    assert model.spec.name == BASE
