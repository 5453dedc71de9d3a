"""Which shapes a step has, and what is done with those that come again."""

import numpy as np
import pytest
import torch

from dg_lsp.backends.hf import step
from dg_lsp.backends.hf.reduce import reduce
from dg_lsp.backends.hf.step import Stepper


@pytest.fixture
def captured(monkeypatch):
    """A stand-in for CUDA graphs: lists what was captured and what replayed."""
    seen = []

    class Recorded:
        def __init__(self, run, example, other):
            self._run, self._other = run, other
            seen.append(("captured", len(example.tokens.ids)))

        def replay(self, given):
            seen.append(("replayed", len(given.tokens.ids)))
            return step.StepOutput(*self._run(*given.tensors()))

    monkeypatch.setattr(step, "_Graph", Recorded)
    return seen


def ids(count):
    return np.random.default_rng(count).integers(110, 500, count).astype(np.int32)


def test_eager_steps_make_room_for_little_more_than_the_prompt():
    stepper = Stepper(None, None, reduce, None, prompt_limit=300)
    assert [stepper.capacity(length) for length in (0, 1, 64, 65, 299)] == [0, 64, 64, 128, 300]


def test_captured_steps_have_few_shapes():
    stepper = Stepper(None, None, reduce, None, prompt_limit=5000, captures=True)
    assert [stepper.capacity(length) for length in (0, 1, 512, 513, 2048, 4097)] == [512, 512, 512, 1024, 2048, 5000]


def test_a_shape_that_comes_again_is_captured_and_says_the_same(open_hf, captured):
    rng, prompt, canvas = np.random.default_rng(1), ids(70), ids(16)
    plain, graphed = open_hf(), open_hf(captures=True)
    for denoiser in (plain, graphed):
        denoiser.prefill(0, prompt)
    for number in range(4):
        (expected,) = plain.predict(0, [canvas], 0.7, np.random.default_rng(number))
        (found,) = graphed.predict(0, [canvas], 0.7, np.random.default_rng(number))
        assert np.array_equal(expected.sampled_ids, found.sampled_ids)
        assert np.allclose(expected.entropy, found.entropy, atol=1e-5)
    assert captured == [("captured", 16), *[("replayed", 16)] * 3]
    graphed.prefill(0, prompt[:40])  # another prompt of the same capacity: the same graph
    graphed.predict(0, [canvas], 0.7, rng)
    assert graphed.stepper.num_graphs == 1 and captured[-1] == ("replayed", 16)


def test_the_least_recently_used_graph_goes(open_hf, captured, monkeypatch):
    monkeypatch.setattr(step, "_MAX_GRAPHS", 2)
    rng, denoiser = np.random.default_rng(1), open_hf(captures=True)
    for size in (8, 8, 16, 16, 8, 24, 24, 16):
        denoiser.predict(0, [ids(size)], 0.7, rng)
    assert denoiser.stepper.num_graphs == 2
    assert [size for what, size in captured if what == "captured"] == [8, 16, 24, 16]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_one_compiled_graph_serves_every_prompt_length(open_hf, single, monkeypatch):
    """Traced whole, with no break and nothing read back: what a CUDA graph needs, too. Kernels are not made here."""
    traced = []

    def trace(graph, inputs):
        traced.append(len(inputs))
        return graph.forward

    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled(function, backend=trace, **options))
    plain, fast = open_hf(single[1]), open_hf(single[1], compiles=True)
    for length in (5, 24, 60, 200):
        said = []
        for denoiser in (plain, fast):
            denoiser.prefill(0, ids(length))
            said.append(denoiser.predict(0, [ids(16)], 0.7, np.random.default_rng(length))[0])
        assert np.allclose(said[0].entropy, said[1].entropy, atol=1e-4)
    assert len(traced) == 1
