"""What `auto` takes, by what is here and by how much memory there is."""

import pytest

from dg_lsp.models.presets import PRESETS
from dg_lsp.models.registry import MemoryPool, memory_pools, select

CPU = MemoryPool("the machine's memory", 64_000_000_000, is_gpu=False)


def card(gigabytes):
    return MemoryPool("RTX", int(gigabytes * 1e9), is_gpu=True)


def take(room, *here):
    found = [room, CPU] if room is not CPU else [CPU]
    return select(found, lambda preset: preset.name in here)


@pytest.mark.parametrize(
    ("room", "here", "name", "reason"),
    [
        pytest.param(CPU, ["dream-7b"], "dg-mini", "no GPU", id="a CPU takes the model made for it"),
        pytest.param(card(8), [], "dg-mini", "dg-lsp models pull dream-coder-7b", id="nothing was pulled"),
        pytest.param(card(8), ["dream-7b"], "dream-7b", "dream-coder-7b would fit", id="a better one could be"),
        pytest.param(card(8), ["dream-coder-7b", "dream-7b"], "dream-coder-7b", "8.0 GB free on RTX", id="the best"),
        pytest.param(card(8), ["diffusiongemma", "llada-8b"], "llada-8b", "it needs 6.5 GB", id="what fits"),
        pytest.param(card(24), ["diffusiongemma", "dream-7b"], "diffusiongemma", "18.4 GB", id="DiffusionGemma"),
        pytest.param(card(80), ["diffusiongemma"], "diffusiongemma", "diffusiongemma-q8 would fit", id="a finer one"),
        pytest.param(card(1), ["dream-7b"], "dg-mini", "no larger model fits into 1.0 GB", id="a small GPU"),
        pytest.param(card(80), ["qwen2.5-coder-1.5b"], "dg-mini", "is on this machine", id="a baseline is not taken"),
    ],
)
def test_the_best_that_is_here_and_fits(room, here, name, reason):
    selection = take(room, *here)
    assert selection.name == name
    assert reason in selection.reason


def test_what_is_the_best_already_asks_for_nothing():
    everything = [preset.name for preset in PRESETS]
    selection = take(card(80), *everything)
    assert selection.name == "diffusiongemma-q8"
    assert "pull" not in selection.reason


def test_cards_count_together_and_a_shared_one_has_the_machines_memory():
    found = memory_pools([("A", "gpu", 10), ("B", "gpu", 20), ("CPU", "cpu", 99)], 50)
    assert [(room.free, room.is_gpu) for room in found] == [(30, True), (50, False)]
    assert "2 GPUs" in found[0].name
    assert [(room.name, room.free) for room in memory_pools([("M4", "igpu", 80), ("P4", "gpu", 30)], 50)] == [
        ("M4", 50), ("P4", 30), ("the machine's memory", 50)]  # fmt: skip
    assert memory_pools([("says nothing", "igpu", 0)], 50)[0].free == 50
    assert not any(room.is_gpu for room in memory_pools([("CPU", "cpu", 99), ("BLAS", "accelerator", 0)], 50))
