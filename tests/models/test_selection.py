"""The ranking of models on a machine, and the selection of `auto` and `auto-diffusion`."""

import dataclasses

import pytest

from dg_lsp.models.registry import AUTO, AUTO_DIFFUSION, BASE, BUNDLED, MINI, PRESETS
from dg_lsp.models.selection import ComputeDevice, Machine, Selection, rank_models, select

LAPTOP = Machine(2, 18e9, (), 16 * 10**9, 10**12)


def with_gpu(gigabytes, bandwidth=0.0):
    return dataclasses.replace(LAPTOP, gpus=(ComputeDevice("RTX", "gpu", int(gigabytes * 1e9), bandwidth),))


def with_memory(gigabytes):
    return dataclasses.replace(LAPTOP, free_memory=int(gigabytes * 1e9))


@pytest.mark.parametrize(
    ("machine", "name", "here", "selected", "reason"),
    [
        (LAPTOP, AUTO, "", "dg-base", "84 ms; better would be qwen2.5-coder-0.5b-instruct ("),
        (LAPTOP, AUTO, "qwen2.5-coder-1.5b", "dg-base", "better would be qwen2.5-coder-0.5b"),
        (LAPTOP, AUTO, "qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b", "requests and rewrites by instruction,"),
        (LAPTOP, AUTO, "dreamon-7b", "dg-base", "on CPU"),
        (LAPTOP, AUTO_DIFFUSION, "qwen2.5-coder-0.5b", "dg-mini", "the best diffusion model here"),
        (with_gpu(8), AUTO, "qwen2.5-coder-7b-q4 dream-coder-7b", "qwen2.5-coder-7b-q4", "on RTX"),
        (with_gpu(8), AUTO_DIFFUSION, "qwen2.5-coder-7b-q4 dream-coder-7b", "dream-coder-7b", "better would be"),
        (with_gpu(24, 9e11), AUTO, "qwen2.5-coder-7b", "qwen2.5-coder-7b", "better would be qwen3-coder-30b"),
        (with_memory(0.1), AUTO, "qwen2.5-coder-0.5b", "dg-base", "no larger model fits"),
        (with_memory(3), AUTO, "qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b", "useful edits in 100 requests"),
    ],
)
def test_auto_selects_the_best_model_that_is_here_and_names_a_better_one(machine, name, here, selected, reason):
    bundled = Selection(MINI, "") if name == AUTO_DIFFUSION else Selection(BASE, "84 ms")
    selection = select(machine, lambda preset: preset.name in here.split(), name, bundled)
    assert selection.name == selected
    assert reason in selection.reason


def test_the_estimate_agrees_with_a_measured_processor():
    """docs/log.md: 37 ms a token by a Qwen2.5 0.5B and 82 by a 1.5B in Q8_0 on two cores."""
    ranked = {model.name: model for model in rank_models(LAPTOP, (*BUNDLED, *PRESETS))}
    assert ranked["qwen2.5-coder-0.5b"].line_ms == pytest.approx(37 * (2.3 + 9), rel=0.25)
    assert ranked["qwen2.5-coder-1.5b"].line_ms == pytest.approx(82 * (2.3 + 9), rel=0.25)
    assert ranked["dg-mini"].line_ms < 30


def test_no_model_that_is_worse_on_the_same_cases_is_recommended_before_dg_base():
    """docs/log/2026-11.md: of 192 lines dg-base completes 49, smollm2-135m 46 and gemma3-270m 48, both more slowly."""
    machine = Machine(2, 4e9, (), 2 * 10**9, 10**11, 7.4)
    assert rank_models(machine, (*BUNDLED, *PRESETS))[0].name == "dg-base"


@pytest.mark.parametrize(
    ("gpus", "name", "memory"),
    [
        ((("A", "gpu", 10), ("B", "gpu", 20)), "2 GPUs (A, ...)", 30),
        ((("Iris", "igpu", 80), ("P4", "gpu", 30)), "P4", 30),
        ((("M4", "igpu", 80),), "M4", 50),
        ((("unknown size", "igpu", 0),), "unknown size", 50),
    ],
)
def test_gpus_are_counted_together_and_a_shared_gpu_has_the_machines_memory(gpus, name, memory):
    gpu = dataclasses.replace(LAPTOP, gpus=tuple(ComputeDevice(*device) for device in gpus), free_memory=50).gpu
    assert (gpu.name, gpu.free_memory) == (name, memory)
