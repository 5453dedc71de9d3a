"""Feeding back on one of ggml's devices; here its CPU, which computes the graphs as a GPU would."""

import numpy as np
import pytest

from dg_lsp.backends.llamacpp import device_feedback
from dg_lsp.backends.llamacpp import device_feedback as arena
from dg_lsp.backends.llamacpp.device_feedback import DeviceFeedback, GraphDevice, feedback_of
from dg_lsp.backends.llamacpp.reduce import Reducer
from dg_lsp.backends.llamacpp.self_conditioning import EmbeddingTable, HostFeedback, SelfConditioning
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.errors import BackendError
from dg_lsp.gguf import read_header

CPU_KIND = (0,)
VOCAB, WIDTH = 512, 64


@pytest.fixture
def table(tiny_repacked):
    made = EmbeddingTable(read_header(tiny_repacked), VOCAB, WIDTH, threads=1)
    yield made
    made.close()


@pytest.fixture
def network(tiny_repacked):
    side = tiny_repacked.with_name(tiny_repacked.stem + ".selfcond.gguf")
    return SelfConditioning(read_header(side), WIDTH, 1e-6)


@pytest.fixture
def closing():
    """Closes what a test makes."""
    made = []
    yield lambda each: made.append(each) or each
    for each in made:
        each.close()


def said(length, scale, seed=0):
    logits = scale * np.random.default_rng(seed).standard_normal((length, VOCAB)).astype(np.float32)
    reducer = Reducer(())
    reduced = reducer.reduce(logits, 0.8, np.random.default_rng(0))
    prediction = Prediction(reduced.argmax_ids, reduced.sampled_ids, reduced.confidence, reduced.entropy)
    return reducer.weights(length), prediction


@pytest.mark.parametrize("block", [4096, 100])
@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0])
def test_a_device_feeds_back_what_the_host_does(table, network, closing, monkeypatch, scale, block):
    monkeypatch.setattr(device_feedback, "_BLOCK_TOKENS", block)
    made = closing(feedback_of(table, network, mass=1.0, kinds=CPU_KIND))
    assert isinstance(made, DeviceFeedback)
    host = HostFeedback(table, network, mass=1.0)
    for length in (8, 3, 8):
        weights, prediction = said(length, scale)
        embedded = np.random.default_rng(length).standard_normal((length, WIDTH)).astype(np.float32)
        expected = host.condition(embedded, host.keep(weights, prediction))
        found = made.condition(embedded, made.keep(weights, prediction))
        assert np.abs(expected - network.condition(embedded, None)).max() > 0.3
        np.testing.assert_allclose(found, expected, atol=1e-2)


def test_without_such_a_device_the_host_does_it(table, network):
    assert isinstance(feedback_of(table, network, mass=0.99, kinds=()), HostFeedback)
    assert isinstance(feedback_of(table, network, mass=0.99, kinds=(99,)), HostFeedback)


def test_a_device_that_is_full_or_lacks_an_operation_is_left_alone(table, network, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(GraphDevice, "memory_free", property(lambda *_: 1000))
        assert isinstance(feedback_of(table, network, mass=0.99, kinds=CPU_KIND), HostFeedback)
    with monkeypatch.context() as patch:
        patch.setattr(arena.functions(), "ggml_backend_dev_supports_op", lambda *_: False)
        assert isinstance(feedback_of(table, network, mass=0.99, kinds=CPU_KIND), HostFeedback)


@pytest.mark.parametrize("method", ["sums", "condition"])
@pytest.mark.parametrize("problem", ["wrong", "failing"])
def test_a_device_that_disagrees_with_the_host_is_left_alone(table, network, monkeypatch, method, problem):
    right = getattr(DeviceFeedback, method)

    def other(self, *rows):
        if problem == "failing":
            raise BackendError("no")
        return right(self, *rows)[:, ::-1]

    monkeypatch.setattr(DeviceFeedback, method, other)
    assert isinstance(feedback_of(table, network, mass=0.99, kinds=CPU_KIND), HostFeedback)


def test_a_device_that_fails_says_what_to_do(table, network, closing, monkeypatch):
    made = closing(feedback_of(table, network, mass=1.0, kinds=CPU_KIND))
    monkeypatch.setattr(arena.functions(), "ggml_backend_graph_compute", lambda *_: -1)
    with pytest.raises(BackendError, match="gpu_layers = 0"):
        made.keep(*said(8, 1.0))
