"""Which GPUs hold a model, with made-up devices."""

import ctypes
import itertools
from contextlib import nullcontext
from dataclasses import replace

import pytest

from dg_lsp.backends.llamacpp import library as library_module
from dg_lsp.backends.llamacpp import model as model_module
from dg_lsp.backends.llamacpp.library import Device, gpus, library
from dg_lsp.backends.llamacpp.memory_estimate import choose_gpus
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.errors import ModelError, ModelMemoryError, SettingsError
from dg_lsp.models.registry import BUNDLED
from dg_lsp.settings import ModelSettings

GB = 10**9
PAIR = (Device("RTX 3060", "gpu", 10 * GB, 12 * GB), Device("RTX 4090", "gpu", 30 * GB, 32 * GB))
SILENT = (Device("silent", "gpu", 0, 0),) * 2
SPLIT, REVERSED = (0, 1), (1, 0)


@pytest.mark.parametrize(
    ("wanted", "listed", "needed", "chosen"),
    [
        pytest.param("auto", PAIR, 5 * GB, (1,), id="into the larger GPU"),
        pytest.param("auto", PAIR, 29.5 * GB, SPLIT, id="no room for prompts that grow"),
        pytest.param("auto", PAIR, 35 * GB, SPLIT, id="too large for one GPU"),
        pytest.param("gpu", PAIR, 5 * GB, (1,), id="any GPU"),
        pytest.param("gpu:0", PAIR, 5 * GB, (0,), id="a GPU by its number"),
        pytest.param("cuda:0", PAIR, 35 * GB, (0,), id="a GPU of CUDA, even if it is too small"),
        pytest.param("gpu:1,0,1", PAIR, 5 * GB, REVERSED, id="GPUs in their order, each once"),
        pytest.param("cpu", PAIR, 5 * GB, (), id="no GPU"),
        pytest.param("auto", SILENT[:1], 5 * GB, (0,), id="a single GPU whatever it reports"),
        pytest.param("gpu:0,1", SILENT, GB, (0, 1), id="equal parts of silent GPUs"),
        pytest.param("auto", (), 5 * GB, (), id="a machine without a GPU"),
    ],
)
def test_a_model_is_split_only_if_no_gpu_holds_it(wanted, listed, needed, chosen):
    assert choose_gpus(wanted, listed, needed) == chosen


@pytest.mark.parametrize(
    ("kinds", "used"),
    [(["cpu", "igpu", "gpu", "gpu"], [2, 3]), (["igpu", "cpu"], [0]), (["cpu", "accelerator"], [])],
    ids=["cards are used alone", "GPU of the processor", "no GPU"],
)
def test_cards_are_used_or_a_gpu_that_shares_the_machines_memory(monkeypatch, kinds, used):
    listed = [Device(f"device {number}", kind, 100, 1000) for number, kind in enumerate(kinds)]
    monkeypatch.setattr(library_module, "devices", lambda: tuple(listed))
    assert gpus() == tuple(listed[number] for number in used)


def test_llama_cpp_gets_the_gpus_in_their_order_or_none(monkeypatch):
    """Layers are split in proportion to the free memory, which is llama.cpp's default."""
    api = library().api
    cards = tuple(replace(card, number=number) for number, card in enumerate((*PAIR, PAIR[0]), 7))
    monkeypatch.setattr(Device, "native", property(lambda device: device.number))
    monkeypatch.setattr(model_module, "gpus", lambda: cards)
    monkeypatch.setattr(model_module, "has_gpu", lambda: True)
    handles = []

    def load(_path, params):
        listed = (ctypes.c_void_p * 3).from_address(params.devices)
        handles.append([*itertools.takewhile(bool, listed)])

    monkeypatch.setattr(api, "llama_model_load_from_file", load)
    for device in ("gpu:2,0", "auto", "cpu"):
        with pytest.raises(ModelError, match="cannot be loaded"):
            LlamaModel(BUNDLED[0].path, ModelSettings(device=device))
    assert handles == [[9, 7], [8], []]


FULL = Device("full", "gpu", 1, GB)


@pytest.mark.parametrize(
    ("listed", "settings", "error", "problem"),
    [
        pytest.param((PAIR[1], FULL), {"device": "gpu:1"}, ModelMemoryError, "full has 0 MB free", id="wanted, full"),
        pytest.param((FULL,), {"device": "gpu:0"}, ModelMemoryError, "full has 0 MB free", id="the only one, full"),
        pytest.param((FULL,), {"device": "gpu"}, ModelMemoryError, "full has 0 MB free", id="any is wanted, full"),
        pytest.param((FULL,), {"device": "auto"}, None, "", id="none is wanted, full"),
        pytest.param((PAIR[1], FULL), {"device": "gpu:0,2"}, SettingsError, "lists 2 GPUs", id="wanted, not there"),
        pytest.param((), {"device": "gpu"}, SettingsError, "lists 0 GPUs", id="wanted, none is there"),
        pytest.param((), {"device": "gpu", "gpu_layers": 0}, None, "", id="wanted for no layers"),
        pytest.param((), {"device": "cpu"}, None, "", id="the processor is wanted"),
        pytest.param((), {}, None, "", id="nothing is wanted"),
    ],
)
def test_a_model_runs_on_the_processor_if_no_gpu_has_room_unless_a_gpu_is_wanted(
    monkeypatch, listed, settings, error, problem
):
    monkeypatch.setattr(model_module, "gpus", lambda: listed)
    monkeypatch.setattr(model_module, "has_gpu", lambda: bool(listed))
    with pytest.raises(error, match=problem) if error else nullcontext():
        loaded = LlamaModel(BUNDLED[0].path, ModelSettings(**settings))
        assert (loaded.gpu_numbers, loaded.where, loaded.on_gpu) == ((), "processor", False)
        assert (loaded.gpu_share, loaded.weights.gpu) == (0, 0)
        loaded.close()
