"""Which steps run as a graph, what is compiled, and what happens where either fails. No GPU is needed."""

import logging

import numpy as np
import pytest
import torch

from dg_lsp.backends.transformers import network
from dg_lsp.backends.transformers.network import StepOptions, Stepper


@pytest.fixture
def graphs(monkeypatch):
    """Replaces CUDA graphs; lists captures and replays as `(what, canvas tokens)`."""
    seen = []

    class RecordedGraph:
        def __init__(self, run, example, _other):
            self._run = run
            seen.append(("capture", len(example.conditioning)))

        def replay(self, inputs):
            seen.append(("replay", len(inputs.conditioning)))
            return self._run(inputs)

    monkeypatch.setattr(network, "_Graph", RecordedGraph)
    return seen


def predict(denoiser, canvas, seed=0):
    (prediction,) = denoiser.predict(0, [canvas], 0.7, np.random.default_rng(seed))
    return prediction


def test_captured_steps_have_few_capacities(float64_models):
    def capacities(lengths, **options):
        stepper = Stepper(float64_models[1], 5000, None, StepOptions(**options))
        return [stepper.capacity(length) for length in lengths]

    assert capacities((0, 1, 512, 513, 2048, 4097), captures=True) == [512, 512, 512, 1024, 2048, 5000]
    assert capacities((0, 1, 513)) == [0, 1, 513]  # eager on the CPU


def test_a_shape_is_captured_at_its_second_use(open_denoiser, draw_ids, graphs):
    prompt, canvas = draw_ids(70), draw_ids(16)
    eager, graphed = open_denoiser(), open_denoiser(captures=True)
    for denoiser in (eager, graphed):
        denoiser.prefill(0, prompt)
    for seed in range(4):
        expected, found = predict(eager, canvas, seed), predict(graphed, canvas, seed)
        assert np.allclose(expected.entropy, found.entropy, atol=1e-5)
    assert graphs == [("capture", 16), *[("replay", 16)] * 3]
    graphed.prefill(0, prompt[:40])  # the same capacity
    predict(graphed, canvas)
    assert graphs[-2:] == [("replay", 16)] * 2


def test_the_least_recently_used_graph_is_dropped(open_denoiser, draw_ids, graphs, monkeypatch):
    monkeypatch.setattr(network, "_MAX_GRAPHS", 2)
    denoiser = open_denoiser(captures=True)
    for size in (8, 8, 16, 16, 8, 24, 24, 16):
        predict(denoiser, draw_ids(size))
    assert [size for what, size in graphs if what == "capture"] == [8, 16, 24, 16]


def compile_with(monkeypatch, backend):
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda part, **options: compiled(part, backend=backend, **options))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_each_kind_of_layer_is_compiled_once_for_all_shapes(open_denoiser, float32_models, draw_ids, monkeypatch):
    """Six layers of two kinds, and the reduction. Canvas lengths differ from all sizes of the model."""
    traced = []

    def trace(graph, inputs):
        traced.append(graph)
        return graph.forward

    compile_with(monkeypatch, trace)
    eager, compiled = open_denoiser(float32_models[1]), open_denoiser(float32_models[1], compiles=True)
    for length, size in ((60, 13), (5, 13), (200, 37), (24, 9)):
        prompt, canvas = draw_ids(length), draw_ids(size)
        for denoiser in (eager, compiled):
            denoiser.prefill(0, prompt)
        expected, found = predict(eager, canvas), predict(compiled, canvas)
        assert np.allclose(expected.entropy, found.entropy, atol=1e-4)
    assert len(traced) == 3


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_steps_run_eagerly_where_compiler_and_capture_fail(open_denoiser, draw_ids, monkeypatch, caplog):
    def fail(*arguments):
        raise RuntimeError("no compiler here")

    compile_with(monkeypatch, fail)
    monkeypatch.setattr(network, "_Graph", fail)
    prompt, canvas = draw_ids(30), draw_ids(16)
    eager, denoiser = open_denoiser(), open_denoiser(captures=True, compiles=True)
    with caplog.at_level(logging.WARNING):
        for one in (eager, denoiser):
            one.prefill(0, prompt)
        for seed in range(3):
            assert np.array_equal(predict(eager, canvas, seed).entropy, predict(denoiser, canvas, seed).entropy)
    assert [record.getMessage().partition(" failed")[0] for record in caplog.records] == [
        "torch.compile",
        "the capture of a CUDA graph",
    ]


def test_a_step_without_memory_does_not_fall_back(open_denoiser, draw_ids, monkeypatch):
    def fail(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(network, "_Graph", fail)
    denoiser, canvas = open_denoiser(captures=True), draw_ids(8)
    predict(denoiser, canvas)
    for _ in range(2):
        with pytest.raises(Exception, match="not enough memory for the denoising step"):
            predict(denoiser, canvas)
