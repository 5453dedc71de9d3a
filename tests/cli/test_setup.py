"""`dg-lsp models recommend` and `dg-lsp setup`, with made-up devices and a local hub."""

import dataclasses
import json
import re
import shlex
import sys
from types import SimpleNamespace

import presets
import pytest

from dg_lsp import system
from dg_lsp.cli import models, setup
from dg_lsp.cli.models import Pull
from dg_lsp.models import gpus, registry
from dg_lsp.models.gpus import Gpu
from dg_lsp.models.registry import BUNDLED, Preset

WEIGHTS = BUNDLED[0].path.read_bytes()
TINY = presets.make(len(WEIGHTS), quality=0.9, quality_source="estimate: for tests")
FILES = {"Tiny.gguf": WEIGHTS}
CARD = Gpu("nvidia", "RTX 4090", 24 << 30)
CPU = {"name": "EPYC", "kind": "cpu", "memory_free": 1 << 34, "memory_total": 1 << 34}
USED = {"name": "RTX 4090", "kind": "gpu", "memory_free": 23 << 30, "memory_total": 24 << 30}
CPU_SPEED = {"bytes_per_second": 20e9, "operations_per_second": 80e9}
GPU_SPEED = {"bytes_per_second": 800e9, "operations_per_second": 80e12}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """llama.cpp with a processor; `machine["gpu"] = ...` gives it a GPU."""
    listed = {"devices": [CPU], "cpu": CPU_SPEED, "gpu": None}
    monkeypatch.setattr(models, "run_llama_cpp", lambda *_: SimpleNamespace(stdout=json.dumps(listed)))
    return listed


@pytest.fixture
def card(monkeypatch, machine):
    """A card that llama.cpp cannot use until it is compiled."""
    monkeypatch.setattr(gpus, "find_gpus", lambda: (CARD,))
    built = []

    def build(backend):
        built.append(backend)
        machine.update(devices=[CPU, USED], gpu=GPU_SPEED)

    monkeypatch.setattr(models, "make_runtime", build)
    return built


@pytest.mark.parametrize("cpu_speed", [CPU_SPEED, None], ids=["measured by llama.cpp", "measured by us"])
def test_the_best_models_are_recommended_with_time_size_licence_and_command(dg_lsp, machine, monkeypatch, cpu_speed):
    machine["cpu"] = cpu_speed
    monkeypatch.setattr(system, "memory_bandwidth", lambda _: CPU_SPEED["bytes_per_second"])
    outcome = dg_lsp("models", "recommend")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.facts["machine memory bandwidth"] == "20.0 GB/s"
    assert outcome.facts["unused gpu"] == "none"
    assert outcome.facts["autoregressive command"] == "dg-lsp models pull qwen2.5-coder-0.5b-instruct"
    assert outcome.facts["diffusion command"] == "--model dg-mini"
    tree = dg_lsp("models", "recommend", "--json").json
    assert list(tree) == ["machine", "gpus", "unused_gpu", "autoregressive", "diffusion", "after_setup"]
    model = tree["autoregressive"]
    assert 0 < model["line_ms"] < model["first_line_ms"]
    assert (model["licence"], model["is_here"], tree["after_setup"]) == ("Apache-2.0", False, None)


def test_recommend_names_a_gpu_that_is_not_used_and_the_models_for_it(dg_lsp, card, machine):
    tree = dg_lsp("models", "recommend", "--json").json
    assert tree["unused_gpu"] == tree["gpus"][0] == dataclasses.asdict(CARD)
    assert tree["autoregressive"]["name"] == "qwen2.5-coder-0.5b-instruct"
    assert tree["after_setup"]["autoregressive"]["name"] == "qwen3-coder-30b"
    assert tree["after_setup"]["diffusion"]["name"].startswith(("diffusiongemma", "dreamon", "stable-diffcoder"))
    assert "RTX 4090 (25.8 GB) IS NOT USED: this llama.cpp was built without cuda; run dg-lsp setup" in (
        dg_lsp("models", "recommend").err
    )
    machine.update(devices=[CPU, USED], gpu=GPU_SPEED)
    tree = dg_lsp("models", "recommend", "--json").json
    assert (tree["unused_gpu"], tree["autoregressive"]["device"]) == (None, "RTX 4090")
    assert tree["machine"]["gpus"][0]["bandwidth"] == 800e9


def test_a_model_that_does_not_fit_on_the_disk_is_not_recommended(dg_lsp, monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "PRESETS", (dataclasses.replace(TINY, size=10**16),))
    monkeypatch.setattr(Preset, "memory_bytes", 1)
    assert dg_lsp("models", "recommend", "--json").json["autoregressive"]["name"] == "dg-base"


def test_setup_goes_from_the_question_to_a_fill_and_the_settings_of_editors(dg_lsp, hub):
    assert "pass --yes" in dg_lsp("setup").err
    assert hub.requests == []
    outcome = dg_lsp("setup", "--yes")
    assert outcome.code == 0, outcome.err
    assert "tiny: download 6 MB" in outcome.out
    assert "return -> " in outcome.err
    assert registry.is_tested(TINY)
    assert '"dg-lsp.model.name": "tiny"' in outcome.out
    assert 'model = { name = "tiny" },' in outcome.out
    program = json.loads(outcome.out.split('"dg-lsp.server.path": ')[1].split(",\n")[0])
    assert f'cmd = {{ "{program}", "lsp", "--stdio" }}' in outcome.out
    hub.requests.clear()
    again = dg_lsp("setup", "--yes")
    assert (again.code, hub.requests) == (0, [])
    assert "tiny is on this machine already" in again.out
    assert "return -> " in again.err


@pytest.mark.skipif(sys.platform == "win32", reason="its paths have backslashes and other quotes")
def test_the_settings_of_editors_have_the_path_of_the_program_as_it_is(monkeypatch, tmp_path):
    program = tmp_path / "Jürgen's programs/dg-lsp"
    program.parent.mkdir()
    program.touch()
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    lines = setup.editor_settings("tiny", setup.measure().present[0]).splitlines()
    assert f'    cmd = {{ "{program}", "lsp", "--stdio" }},' in lines
    assert shlex.split(lines[-1].removeprefix("on the command line: "))[0] == str(program)


def test_the_question_can_be_answered_with_no(dg_lsp, hub, terminal):
    terminal("n\n")
    outcome = dg_lsp("setup")
    assert outcome.code == 0
    assert "nothing was changed" in outcome.out
    assert '"dg-lsp.model.name": "auto"' in outcome.out
    assert 'model = { name = "auto" }' in outcome.out
    terminal("")  # Ctrl-D
    outcome = dg_lsp("setup")
    assert outcome.code == 130
    assert outcome.err.endswith("dg-lsp: interrupted\n")
    assert hub.requests == []


def test_setup_where_no_model_fits_into_memory_is_exit_code_3(dg_lsp, monkeypatch):
    monkeypatch.setattr(system, "system_free", lambda: 10**6)
    outcome = dg_lsp("setup", "--yes")
    assert outcome.code == 3
    assert outcome.err.startswith("dg-lsp: no model fits into the 1 MB of free memory: close other programs")


def test_setup_sets_a_deadline_that_the_model_keeps_by_its_own_estimate(dg_lsp, hub, machine):
    machine["cpu"] = {**CPU_SPEED, "operations_per_second": 5e8}
    first_ms = dg_lsp("models", "recommend", "--json").json["autoregressive"]["first_line_ms"]
    outcome = dg_lsp("setup", "--yes")
    deadline_ms = float(re.search(r'"dg-lsp.completion.deadline_ms": (\d+),', outcome.out)[1])
    assert 1000 < first_ms <= deadline_ms < first_ms + 500
    assert f"completion = {{ deadline_ms = {deadline_ms:g} }}" in outcome.out
    machine["cpu"] = CPU_SPEED
    assert '"dg-lsp.completion.deadline_ms": 1000,' in dg_lsp("setup", "--yes").out


def test_setup_gets_llama_cpp_for_the_gpu_before_the_model(dg_lsp, card, monkeypatch):
    pulled = []
    monkeypatch.setattr(Pull, "run", lambda pull: pulled.append(pull.preset.name))
    outcome = dg_lsp("setup", "--yes")
    assert (outcome.code, card) == (0, ["cuda"])
    assert pulled == [setup.measure().present[0].name]
    assert pulled[0] != "qwen2.5-coder-0.5b"
    assert "compiled here for cuda" in outcome.out
    assert f'"dg-lsp.model.name": "{pulled[0]}"' in outcome.out


def test_setup_goes_on_without_a_gpu_that_the_new_llama_cpp_does_not_list(dg_lsp, card, monkeypatch):
    monkeypatch.setattr(models, "make_runtime", lambda **_: None)
    monkeypatch.setattr(registry, "PRESETS", ())
    outcome = dg_lsp("setup", "--yes")
    assert outcome.code == 0
    assert "warning: RTX 4090 (25.8 GB) IS NOT USED" in outcome.err
    assert "check the driver" in outcome.err
    assert '"dg-lsp.model.name": "auto"' in outcome.out


def test_the_devices_come_from_a_child_process(monkeypatch):
    monkeypatch.undo()
    assert {device["kind"] for device in json.loads(models.run_llama_cpp("device_graph").stdout)["devices"]} >= {"cpu"}
