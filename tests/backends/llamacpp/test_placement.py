"""Which GPUs hold a model, with made-up devices."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from dg_lsp.backends.llamacpp import model as model_module
from dg_lsp.backends.llamacpp.library import Device, library
from dg_lsp.backends.llamacpp.memory_estimate import CPU, Placement, choose_placement
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.errors import ModelMemoryError, SettingsError
from dg_lsp.models.registry import BUNDLED
from dg_lsp.settings import ModelSettings

GB = 10**9
PAIR = (Device("RTX 3060", "gpu", 10 * GB, 12 * GB), Device("RTX 4090", "gpu", 30 * GB, 32 * GB))
SILENT = (Device("silent", "gpu", 0, 0),) * 2
SPLIT, REVERSED = Placement((0, 1), (10.0 * GB, 30.0 * GB)), Placement((1, 0), (30.0 * GB, 10.0 * GB))


@pytest.mark.parametrize(
    ("wanted", "listed", "needed", "placement"),
    [
        pytest.param("auto", PAIR, 5 * GB, Placement((1,)), id="into the larger GPU"),
        pytest.param("auto", PAIR, 29.5 * GB, SPLIT, id="no room for prompts that grow"),
        pytest.param("auto", PAIR, 35 * GB, SPLIT, id="too large for one GPU"),
        pytest.param("gpu", PAIR, 5 * GB, Placement((1,)), id="any GPU"),
        pytest.param("gpu:0", PAIR, 5 * GB, Placement((0,)), id="a GPU by its number"),
        pytest.param("cuda:0", PAIR, 35 * GB, Placement((0,)), id="a GPU of CUDA, even if it is too small"),
        pytest.param("gpu:1,0,1", PAIR, 5 * GB, REVERSED, id="GPUs in their order, each once"),
        pytest.param("cpu", PAIR, 5 * GB, CPU, id="no GPU"),
        pytest.param("auto", SILENT[:1], 5 * GB, Placement((0,)), id="a single GPU whatever it reports"),
        pytest.param("gpu:0,1", SILENT, GB, Placement((0, 1), (1.0, 1.0)), id="equal parts of silent GPUs"),
        pytest.param("auto", (), 5 * GB, CPU, id="a machine without a GPU"),
        pytest.param("gpu:2", PAIR, GB, None, id="number too high"),
        pytest.param("gpu:0,7", PAIR, GB, None, id="one of two numbers too high"),
        pytest.param("gpu", (), GB, None, id="no GPU where one is wanted"),
        pytest.param("cuda:0", (), GB, None, id="no GPU of CUDA"),
    ],
)
def test_a_model_is_split_only_if_no_gpu_holds_it_and_a_missing_gpu_is_an_error(wanted, listed, needed, placement):
    problem = f"{wanted}, but llama.cpp lists {len(listed)} GPUs"
    with nullcontext() if placement else pytest.raises(SettingsError, match=problem):
        assert choose_placement(wanted, listed, needed) == placement


def test_the_parameters_of_llama_cpp_follow_the_placement():
    api = library().api
    params = api.llama_model_default_params()
    choose_placement("gpu:1", PAIR, GB).apply(params, api)
    assert (params.split_mode, params.main_gpu, bool(params.tensor_split)) == (api.LLAMA_SPLIT_MODE_NONE, 1, False)
    CPU.apply(params, api)
    assert (params.split_mode, params.main_gpu) == (api.LLAMA_SPLIT_MODE_NONE, -1), "a context uses no GPU either"
    three = SimpleNamespace(
        LLAMA_SPLIT_MODE_LAYER=api.LLAMA_SPLIT_MODE_LAYER, LLAMA_SPLIT_MODE_NONE=0, llama_max_devices=lambda: 4
    )
    placement = choose_placement("gpu:0,2", (PAIR[0], *PAIR), GB)
    shares = placement.apply(params, three)
    assert list(shares) == pytest.approx([10 * GB, 0, 30 * GB, 0]), "llama.cpp splits in proportion to the free memory"
    assert (params.split_mode, bool(params.tensor_split)) == (api.LLAMA_SPLIT_MODE_LAYER, True)
    assert placement.describe((PAIR[0], *PAIR)) == "GPU 0: RTX 3060, GPU 2: RTX 4090"
    assert CPU.describe(()) == "processor"


FULL = Device("full", "gpu", 1, GB)


@pytest.mark.parametrize(
    ("listed", "settings", "error", "problem"),
    [
        pytest.param((PAIR[1], FULL), {"device": "gpu:1"}, ModelMemoryError, "full has 0 MB free", id="wanted, full"),
        pytest.param((FULL,), {"device": "gpu:0"}, ModelMemoryError, "full has 0 MB free", id="the only one, full"),
        pytest.param((FULL,), {"device": "gpu"}, ModelMemoryError, "full has 0 MB free", id="any is wanted, full"),
        pytest.param((FULL,), {"device": "auto"}, None, "", id="none is wanted, full"),
        pytest.param((PAIR[1], FULL), {"device": "gpu:2"}, SettingsError, "lists 2 GPUs", id="wanted, not there"),
        pytest.param((), {"device": "gpu"}, SettingsError, "lists 0 GPUs", id="wanted, none is there"),
        pytest.param((), {"device": "gpu", "gpu_layers": 0}, None, "", id="wanted for no layers"),
        pytest.param((), {"device": "cpu"}, None, "", id="the processor is wanted"),
        pytest.param((), {}, None, "", id="nothing is wanted"),
    ],
)
def test_a_model_runs_on_the_processor_if_no_gpu_has_room_unless_a_gpu_is_wanted(
    monkeypatch, listed, settings, error, problem
):
    for module in ("model", "memory_estimate"):
        monkeypatch.setattr(f"dg_lsp.backends.llamacpp.{module}.gpus", lambda: listed)
    monkeypatch.setattr(model_module, "has_gpu", lambda: bool(listed))
    with pytest.raises(error, match=problem) if error else nullcontext():
        loaded = LlamaModel(BUNDLED[0].path, ModelSettings(**settings))
        assert (loaded.placement, loaded.where, loaded.on_gpu) == (CPU, "processor", False)
        assert (loaded.gpu_share, loaded.weights.gpu) == (0, 0)
        loaded.close()
