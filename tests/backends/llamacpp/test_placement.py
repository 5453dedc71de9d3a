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
    ],
)
def test_a_model_is_split_only_where_it_does_not_fit_into_one_gpu(wanted, listed, needed, placement):
    assert choose_placement(wanted, listed, needed) == placement


@pytest.mark.parametrize(
    ("wanted", "listed"),
    [("gpu:2", PAIR), ("gpu:0,7", PAIR), ("gpu", ()), ("cuda:0", ())],
    ids=["number too high", "one of two numbers too high", "no GPU", "no GPU of CUDA"],
)
def test_a_gpu_that_is_not_there_is_an_error(wanted, listed):
    with pytest.raises(SettingsError, match=f"{wanted}, but llama.cpp lists {len(listed)} GPUs"):
        choose_placement(wanted, listed, GB)


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


def test_memory_is_compared_with_the_chosen_gpu_alone(monkeypatch):
    path = BUNDLED[0].path
    for module in ("model", "memory_estimate"):
        monkeypatch.setattr(f"dg_lsp.backends.llamacpp.{module}.gpus", lambda: (PAIR[1], Device("full", "gpu", 1, GB)))
    monkeypatch.setattr(model_module, "has_gpu", lambda: True)
    with pytest.raises(ModelMemoryError, match="full has 0 MB free"):
        LlamaModel(path, ModelSettings(device="gpu:1"))
    with pytest.raises(SettingsError, match="lists 2 GPUs"):
        LlamaModel(path, ModelSettings(device="gpu:2"))


@pytest.mark.parametrize("device", ["auto", "gpu", "gpu:0"])
def test_a_model_runs_on_the_processor_if_the_gpu_is_full_unless_a_gpu_is_wanted(monkeypatch, device):
    for module in ("model", "memory_estimate"):
        monkeypatch.setattr(f"dg_lsp.backends.llamacpp.{module}.gpus", lambda: (Device("full", "gpu", 1, GB),))
    monkeypatch.setattr(model_module, "has_gpu", lambda: True)
    with nullcontext() if device == "auto" else pytest.raises(ModelMemoryError, match="full has 0 MB free"):
        loaded = LlamaModel(BUNDLED[0].path, ModelSettings(device=device))
        assert (loaded.placement, loaded.on_gpu, loaded.gpu_share, loaded.weights.gpu) == (CPU, False, 0, 0)
        loaded.close()


def test_without_a_gpu_a_named_one_is_an_error_and_the_processor_is_not(monkeypatch):
    path = BUNDLED[0].path
    monkeypatch.setattr(model_module, "has_gpu", lambda: False)
    with pytest.raises(SettingsError, match="lists 0 GPUs"):
        LlamaModel(path, ModelSettings(device="gpu"))
    for settings in (ModelSettings(device="gpu", gpu_layers=0), ModelSettings(device="cpu"), ModelSettings()):
        loaded = LlamaModel(path, settings)
        assert (loaded.placement, loaded.where, loaded.on_gpu) == (CPU, "processor", False)
        loaded.close()
