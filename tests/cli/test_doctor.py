import pytest
import tiny_masked

from dg_lsp.backends import llamacpp
from dg_lsp.backends.llamacpp.library import Device
from dg_lsp.models import gpus
from dg_lsp.models.registry import BUNDLED

KEYS = [
    *("software", "settings_files", "devices", "gpus", "runtime", "model", "rewrite_model", "threads", "costs"),
    *("decoders", "fill", "memory_bytes", "warnings", "problems"),
]
ON_ONE_CORE = ("--gpu-layers", 0, "--threads", 1)


def test_json_is_one_object_with_the_documented_keys(dg_lsp):
    outcome = dg_lsp("doctor", "--json", *ON_ONE_CORE)
    assert outcome.code == 0
    tree = outcome.json
    assert list(tree) == KEYS
    assert (tree["problems"], tree["warnings"], tree["threads"]) == ([], [], 1)
    named = {key: tree["model"][key] for key in ("name", "fim_family", "fim_order", "languages")}
    assert named == {"name": "dg-mini", "fim_family": "dg-mini", "fim_order": "suffix-first", "languages": ["python"]}
    assert tree["model"]["description"] == "qwen3 5.0M Q8_0"
    assert tree["model"]["context_tokens"] == 2048, "for which it was trained"
    assert tree["model"]["full_cache_bytes"] > tree["model"]["weights_and_cache_bytes"]
    assert tree["model"]["size_bytes"] == pytest.approx(BUNDLED[0].path.stat().st_size, rel=0.3)
    assert tree["devices"]
    assert tree["runtime"]["kind"] in ("stock", "overlay")
    assert list(tree["costs"]) == ["causal", "canvas"]
    assert all(ms > 0 for passes in tree["costs"].values() for ms in passes.values())
    assert list(tree["decoders"]) == ["line-end", "whole-line", "block", "text"]
    assert min(tree["fill"]["steps"], tree["fill"]["timings_ms"]["load"], tree["memory_bytes"]) > 0


def test_a_gpu_that_llama_cpp_cannot_use_is_a_warning(dg_lsp, monkeypatch):
    monkeypatch.setattr(gpus, "find_gpus", lambda: (gpus.Gpu("amd", "Radeon RX 7900", 24 << 30),))
    cpu = Device("EPYC", "cpu", 1, 1)
    monkeypatch.setattr(llamacpp, "devices", lambda: (cpu,))
    outcome = dg_lsp("doctor", *ON_ONE_CORE)
    assert outcome.code == 0
    assert "warning: Radeon RX 7900 (25.8 GB) IS NOT USED: this llama.cpp was built without hip; run" in outcome.out
    monkeypatch.setattr(llamacpp, "devices", lambda: (cpu, Device("Radeon", "gpu", 1, 1)))
    outcome = dg_lsp("doctor", *ON_ONE_CORE)
    assert "warning" not in outcome.out
    assert outcome.facts.keys() >= {"software python", "runtime kind", "threads", "costs causal", "fill steps"}
    assert outcome.out.endswith("no problems found\n")


def test_a_model_that_does_not_see_the_text_after_the_cursor_is_a_warning(dg_lsp, tmp_path):
    path = tmp_path / "plain.gguf"
    tiny_masked.write(path, tiny_masked.make("qwen2"), name="plain", mask_id=None)
    outcome = dg_lsp("doctor", "--model", path, *ON_ONE_CORE)
    assert outcome.code == 0
    [line] = [line for line in outcome.out.splitlines() if line.startswith("warning: ")]
    assert "plain has no fill-in-the-middle tokens" in line
    assert "dg-lsp models list" in line
    shown = dg_lsp("models", "show", path)
    assert shown.err == f"dg-lsp: {line}\n"
    assert shown.facts["prompt format"] == "prefix"


def test_a_problem_is_reported_with_its_solution_and_exit_code_3(dg_lsp):
    outcome = dg_lsp("doctor", "--model", "gone.gguf")
    assert (outcome.code, outcome.err) == (3, "")
    assert "software pygls" in outcome.facts
    problem = outcome.out.splitlines()[-1].removeprefix("problem: ")
    assert "gone.gguf" in problem
    assert "dg-mini" in problem
    outcome = dg_lsp("doctor", "--model", "gone.gguf", "--json")
    assert (outcome.code, outcome.err, outcome.json["problems"]) == (3, "", [problem])
    assert outcome.json["model"] is outcome.json["fill"] is None


def test_the_model_of_rewrites_is_loaded_beside_the_other_one(dg_lsp, user_settings, tmp_path):
    instructed = tmp_path / "instructed.gguf"
    tiny_masked.write(instructed, tiny_masked.make("qwen2"), name="instructed", mask_id=None)
    user_settings(f"rewrite.model = '{instructed}'")
    outcome = dg_lsp("doctor", "--json")
    tree = outcome.json
    assert outcome.code == 0, outcome.out
    assert (tree["model"]["name"], tree["rewrite_model"]["name"]) == ("dg-mini", "instructed")
    assert min(tree[kind]["weights_and_cache_bytes"] for kind in ("model", "rewrite_model")) > 100_000
    [warning] = tree["warnings"]
    assert "follows no instructions" in warning
    user_settings(f"rewrite.model = '{tmp_path / 'nowhere.gguf'}'")
    outcome = dg_lsp("doctor")
    assert outcome.code == 3
    assert "nowhere.gguf" in outcome.out.rpartition("problem: ")[2]
