"""The reduction of logits, which steps are captured and compiled, failures, and the memory of the cache. No GPU needed.

`tests/backends/test_contract.py` has what all backends have in common.
"""

import logging

import numpy as np
import pytest
import torch

from dg_lsp.backends.transformers import network
from dg_lsp.backends.transformers.cache import RollbackSlidingLayer
from dg_lsp.backends.transformers.network import draw, reduce_logits, soft_cap
from dg_lsp.errors import BackendError

BANNED_IDS = torch.tensor([3, 7])


def raw_logits(rows=6, vocab_size=500, scale=20.0):
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0)) * scale


def test_values_are_those_of_the_capped_banned_tempered_distribution():
    raw = raw_logits()
    logits = soft_cap(raw, 30.0)
    assert logits.abs().max() <= 30
    logits[:, BANNED_IDS] = float("-inf")
    expected = torch.distributions.Categorical(logits=logits / 0.6)
    reduced = reduce_logits(raw, 30.0, BANNED_IDS, torch.tensor(0.6), torch.full((6,), 0.5))
    assert torch.equal(reduced.rows[0].long(), logits.argmax(-1))
    assert torch.allclose(reduced.rows[2], expected.probs.max(-1).values)
    entropy = -(expected.probs * torch.where(expected.probs > 0, expected.probs.log(), 0.0)).sum(-1)
    assert torch.allclose(reduced.rows[3], entropy, atol=1e-5)
    sampled = reduced.rows[1].long()
    assert (sampled != reduced.rows[0].long()).any()
    assert torch.allclose(reduced.rows[4], expected.probs[torch.arange(6), sampled])
    assert torch.allclose(reduced.probabilities, expected.probs, atol=1e-6)
    assert (reduced.probabilities[:, BANNED_IDS] == 0).all()


def test_probabilities_are_rounded_as_in_transformers():
    raw = raw_logits().to(torch.bfloat16)
    reduced = reduce_logits(raw, 30.0, BANNED_IDS[:0], torch.tensor(0.6), torch.full((6,), 0.5))
    logits = (torch.tanh(raw.float() / 30) * 30 / 0.6).to(torch.bfloat16)
    assert torch.equal(reduced.probabilities, logits.softmax(-1, dtype=torch.float32).to(torch.bfloat16))


@pytest.mark.parametrize("vocab_size", [1, 5, 127, 128, 129, 1000])
def test_draw_inverts_the_cumulative_sum(vocab_size):
    probabilities = torch.full((1, vocab_size), 1 / vocab_size)
    middles = (torch.arange(vocab_size) + 0.5) / vocab_size
    assert torch.equal(draw(probabilities.expand(vocab_size, -1), middles), torch.arange(vocab_size))
    assert draw(probabilities, torch.tensor([0.0])).item() == 0
    assert draw(probabilities, torch.tensor([1 - 1e-9], dtype=torch.float64)).item() == vocab_size - 1


def test_draw_never_returns_a_token_of_probability_0():
    probabilities = torch.zeros(3, 300)
    probabilities[:, 200] = 1.0
    assert draw(probabilities, torch.tensor([0.0, 0.5, 1 - 1e-9], dtype=torch.float64)).tolist() == [200] * 3


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


def test_shape_is_captured_at_its_second_use(open_denoiser, draw_ids, graphs):
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


def test_least_recently_used_graph_is_dropped(open_denoiser, draw_ids, graphs, monkeypatch):
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


@pytest.fixture
def warnings(caplog):
    """`warnings()` -> what failed, of the warnings so far."""
    with caplog.at_level(logging.WARNING):
        yield lambda: [record.getMessage().partition("; ")[0] for record in caplog.records]


def test_the_check_at_load_accepts_fast_steps_that_agree(open_denoiser, float32_models, draw_ids, graphs, warnings):
    denoiser, canvas = open_denoiser(float32_models[1], captures=True), draw_ids(16)
    denoiser.stepper.check()
    assert denoiser.stepper.is_fast
    assert graphs == [("capture", 16), ("replay", 16)]
    assert warnings() == []
    prompt, eager = draw_ids(40), open_denoiser(float32_models[1])
    for one in (denoiser, eager):
        one.prefill(0, prompt)
    assert np.allclose(predict(denoiser, canvas).entropy, predict(eager, canvas).entropy, atol=1e-4)


@pytest.mark.parametrize("by", [0.05, float("nan")])
def test_the_check_at_load_gives_up_steps_that_compute_other_numbers(
    open_denoiser, float32_models, draw_ids, graphs, warnings, monkeypatch, by
):
    class WrongGraph(network._Graph):
        def replay(self, inputs):
            rows, conditioning = super().replay(inputs)
            return rows * (1 + by), conditioning

    monkeypatch.setattr(network, "_Graph", WrongGraph)
    denoiser = open_denoiser(float32_models[1], captures=True)
    denoiser.stepper.check()
    assert not denoiser.stepper.is_fast
    [warning] = warnings()
    assert warning.startswith("the capture of a CUDA graph computes other numbers")
    prompt, canvas, eager = draw_ids(40), draw_ids(16), open_denoiser(float32_models[1])
    for one in (denoiser, eager):
        one.prefill(0, prompt)
    for seed in range(3):
        assert np.array_equal(predict(denoiser, canvas, seed).entropy, predict(eager, canvas, seed).entropy)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_compiler_that_is_wrong_is_given_up_and_graphs_stay(
    open_denoiser, float32_models, graphs, warnings, monkeypatch
):
    def wrong(graph, inputs):
        return lambda *arguments: [value * 1.5 for value in graph.forward(*arguments)]

    compile_with(monkeypatch, wrong)
    denoiser = open_denoiser(float32_models[1], captures=True, compiles=True)
    denoiser.stepper.check()
    assert denoiser.stepper.is_fast
    [warning] = warnings()
    assert warning.startswith("torch.compile ")
    assert graphs[-1] == ("replay", 16)


def test_the_check_at_load_survives_a_capture_that_fails(open_denoiser, float32_models, warnings, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(network, "_Graph", fail)
    denoiser = open_denoiser(float32_models[1], captures=True)
    denoiser.stepper.check()
    assert not denoiser.stepper.is_fast
    assert warnings() == ["the capture of a CUDA graph failed (operation not permitted when stream is capturing)"]


def test_step_without_memory_does_not_fall_back(open_denoiser, draw_ids, monkeypatch):
    def fail(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(network, "_Graph", fail)
    denoiser, canvas = open_denoiser(captures=True), draw_ids(8)
    predict(denoiser, canvas)
    for _ in range(2):
        with pytest.raises(Exception, match="not enough memory for the denoising step"):
            predict(denoiser, canvas)


def test_failed_prefill_empties_the_slot(open_denoiser, draw_ids, float64_models, monkeypatch):
    denoiser, prompt = open_denoiser(), draw_ids(40)
    denoiser.prefill(0, prompt)
    before = predict(denoiser, prompt[:8])
    denoiser.prefill(0, prompt[:10])

    def fail(prefix, ids):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(float64_models[1], "encode", fail)
        with pytest.raises(BackendError, match="not enough memory for the prefill"):
            denoiser.prefill(0, prompt)
    assert denoiser.prefill(0, prompt) == 40
    assert np.allclose(before.entropy, predict(denoiser, prompt[:8]).entropy, atol=1e-5)


def test_sliding_layer_keeps_only_the_tokens_of_its_limit_in_memory():
    layer = RollbackSlidingLayer(sliding_window=24, rollback=10)
    for length in (5, 100, 1, 300):
        states = torch.zeros(1, 2, length, 16)
        layer.update(states, states)
        num_kept = min(layer.get_seq_length(), 33)
        assert layer.keys.shape == (1, 2, num_kept, 16)
        assert layer.keys.untyped_storage().nbytes() == 4 * layer.keys.numel()


def test_nan_logits_are_an_error(open_denoiser, draw_ids):
    denoiser = open_denoiser(reduce=lambda raw, *arguments: reduce_logits(raw * float("nan"), *arguments))
    denoiser.prefill(0, draw_ids(4))
    with pytest.raises(BackendError, match="NaN"):
        predict(denoiser, draw_ids(8))
