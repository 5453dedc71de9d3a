"""Self-conditioning on a device of ggml: the CPU computes the same graphs as a GPU."""

from dataclasses import replace

import numpy as np
import pytest

from dg_lsp.backends.llamacpp import device_graph
from dg_lsp.backends.llamacpp.device_graph import GPU_KINDS, GraphDevice
from dg_lsp.backends.llamacpp.diffusiongemma import self_conditioning
from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import (
    DeviceFeedback,
    EmbeddingTable,
    HostFeedback,
    SelfConditioning,
    choose_feedback,
)
from dg_lsp.backends.llamacpp.library import Device
from dg_lsp.backends.llamacpp.reduction import Reducer
from dg_lsp.errors import BackendError
from dg_lsp.gguf import read_header

CPU = ("cpu",)
VOCAB, WIDTH = 512, 64


@pytest.fixture
def table(tiny_repacked, opened):
    return opened(EmbeddingTable(read_header(tiny_repacked), VOCAB, WIDTH, threads=1))


@pytest.fixture
def network(tiny_repacked):
    side = tiny_repacked.with_name(tiny_repacked.stem + ".selfcond.gguf")
    return SelfConditioning(read_header(side), WIDTH, 1e-6)


@pytest.fixture
def choose(table, network, opened):
    return lambda kinds=CPU: opened(choose_feedback(table, network, mass=1.0, kinds=kinds))


def reduced(length, scale):
    """Weights and prediction of random logits."""
    logits = scale * np.random.default_rng(0).standard_normal((length, VOCAB)).astype(np.float32)
    reducer = Reducer(())
    prediction = reducer.reduce(logits, 0.8, np.random.default_rng(0))
    return reducer.weights(length), prediction


@pytest.mark.parametrize("block", [4096, 100])
@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0])
def test_device_computes_what_the_host_computes(table, network, choose, monkeypatch, scale, block):
    monkeypatch.setattr(self_conditioning, "_BLOCK_TOKENS", block)
    device, host = choose(), HostFeedback(table, network, mass=1.0)
    assert isinstance(device, DeviceFeedback)
    for length in (8, 3, 8):
        weights, prediction = reduced(length, scale)
        embedded = np.random.default_rng(length).standard_normal((length, WIDTH)).astype(np.float32)
        expected = host.condition(embedded, host.record(weights, prediction))
        assert np.abs(expected - network.condition(embedded, None)).max() > 0.3
        found = device.condition(embedded, device.record(weights, prediction))
        np.testing.assert_allclose(found, expected, atol=1e-2)


def fail(*_):
    raise BackendError("made up")


def mirrored(method):
    compute = getattr(DeviceFeedback, method)
    return lambda *arguments: compute(*arguments)[:, ::-1]


OPEN = GraphDevice.open
PROBLEMS = {
    "no device of these kinds": lambda: (GraphDevice, "open", lambda *_: None),
    "full memory": lambda: (GraphDevice, "open", lambda *where: replace(OPEN(*where), memory_free=1000)),
    "missing operation": lambda: (device_graph.functions(), "backend_dev_supports_op", lambda *_: False),
    "failing sums": lambda: (DeviceFeedback, "sums", fail),
    "wrong sums": lambda: (DeviceFeedback, "sums", mirrored("sums")),
    "failing network": lambda: (DeviceFeedback, "condition", fail),
    "wrong network": lambda: (DeviceFeedback, "condition", mirrored("condition")),
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_host_is_used_if_the_device_cannot_compute_the_same(choose, monkeypatch, problem):
    monkeypatch.setattr(*problem())
    assert isinstance(choose(), HostFeedback)


def test_failing_device_is_an_error_with_advice(choose, monkeypatch):
    feedback = choose()
    monkeypatch.setattr(device_graph.functions(), "backend_graph_compute", lambda *_: -1)
    with pytest.raises(BackendError, match="gpu_layers = 0"):
        feedback.record(*reduced(8, 1.0))


@pytest.mark.parametrize(
    ("listed", "number", "opened_device"),
    [
        (["cpu", "igpu", "gpu", "gpu"], 0, 2),
        (["cpu", "igpu", "gpu", "gpu"], 1, 3),
        (["igpu", "cpu"], 0, 0),
        (["gpu", "cpu"], 1, None),
        (["cpu"], 0, None),
    ],
)
def test_device_has_the_number_that_llama_cpp_has_for_it(monkeypatch, listed, number, opened_device):
    made = [Device(f"device {index}", kind, 100 + index, 1000) for index, kind in enumerate(listed)]
    monkeypatch.setattr(device_graph, "devices", lambda: tuple(made))
    monkeypatch.setattr(device_graph.functions(), "backend_dev_get", lambda index: index)
    monkeypatch.setattr(device_graph.functions(), "backend_dev_init", lambda *_: "backend")
    found = GraphDevice.open(GPU_KINDS, number)
    facts = None if found is None else (found.native, found.memory_free)
    assert facts == (None if opened_device is None else (opened_device, 100 + opened_device))
