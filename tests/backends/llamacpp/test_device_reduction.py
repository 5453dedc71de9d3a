"""The reduction in llama.cpp's graph, on the host and on ggml's CPU device, compared with numpy's."""

from unittest.mock import Mock

import numpy as np
import pytest
from margins import entropy_of, predict, shares_of

from dg_lsp.backends.llamacpp import device_graph
from dg_lsp.backends.llamacpp.diffusiongemma import denoiser as denoiser_module
from dg_lsp.backends.llamacpp.diffusiongemma import self_conditioning
from dg_lsp.backends.llamacpp.diffusiongemma.device_reduction import GraphReduction
from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import DeviceFeedback
from dg_lsp.backends.llamacpp.reduction import Reducer
from dg_lsp.canvas.layout import Layout, token_ids
from dg_lsp.canvas.spec import UniformSampling
from dg_lsp.diffusion.denoiser import TopK
from dg_lsp.diffusion.samplers import denoise_together
from dg_lsp.errors import BackendError, RequestError

on_both = pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])


@pytest.fixture
def open_with(open_gemma, monkeypatch):
    """Opens a denoiser with a prompt; embeddings are decoded for a device in several blocks."""
    monkeypatch.setattr(self_conditioning, "_BLOCK_TOKENS", 100)

    def make(*, on_device=False, banned=None, threads=1):
        changes = {} if banned is None else {"banned_ids": banned}
        denoiser = open_gemma(on_device=on_device, spec=changes, threads=threads)
        denoiser.prefill(0, token_ids(np.random.default_rng(3).integers(0, denoiser.spec.vocab_size, 20)))
        return denoiser

    return make


def canvas_of(length, seed=0):
    return token_ids(np.random.default_rng(seed).integers(0, 512, length))


def joined(predictions, name):
    return np.concatenate([getattr(prediction, name) for prediction in predictions])


@on_both
@pytest.mark.parametrize("banned", [(), (0, 3, 300, 511)])
def test_graph_computes_what_numpy_computes_of_the_logits(open_with, on_device, banned):
    denoiser = open_with(on_device=on_device, banned=banned, threads=2)
    assert isinstance(denoiser._reduction.feedback, DeviceFeedback) == on_device
    for temperature in (0.0, 0.4, 0.8, 2.5):
        predictions = predict(denoiser, canvas_of(32), canvas_of(7, 1), canvas_of(64, 2), temperature=temperature)
        logits = denoiser._reduction.logits(range(103))
        expected = Reducer(banned).reduce(logits, temperature, np.random.default_rng(7))
        for name, tolerance in (("entropy", 1e-3), ("confidence", 1e-5), ("sampled_confidence", 1e-5)):
            np.testing.assert_allclose(joined(predictions, name), getattr(expected, name), atol=tolerance)
        for name in ("argmax_ids", "sampled_ids"):  # the same random numbers invert the same sums
            np.testing.assert_array_equal(joined(predictions, name), getattr(expected, name))
            assert not np.isin(joined(predictions, name), banned).any()


@on_both
def test_best_tokens_leave_the_graph(open_with, on_device):
    """Also more of them than without this option."""
    denoiser = open_with(on_device=on_device, banned=(0, 3))
    for top_k in (TopK(size, counts_tail) for size in (1, 20, 100) for counts_tail in (False, True)):
        (prediction,) = predict(denoiser, canvas_of(64), temperature=0.8, top_k=top_k)
        logits = denoiser._reduction.logits(range(64))
        whole, best = (shares_of(logits, 0.8, (0, 3), number) for number in (0, top_k.size))
        np.testing.assert_array_equal(prediction.argmax_ids, whole.argmax(axis=1))
        np.testing.assert_allclose(prediction.entropy, entropy_of(whole if top_k.counts_tail else best), atol=1e-3)
        np.testing.assert_allclose(prediction.confidence, whole.max(axis=1), atol=1e-5)
        drawn = (np.arange(64), prediction.sampled_ids)
        np.testing.assert_allclose(prediction.sampled_confidence, whole[drawn], atol=1e-5)
        assert (best[drawn] > 0).all()


@on_both
def test_draws_from_the_best_tokens_follow_their_probabilities(open_with, on_device):
    """A sample's place in the cumulative sum is uniform: 20 equal parts of all draws by the chi-square test."""
    denoiser, rng, places = open_with(on_device=on_device, banned=()), np.random.default_rng(2), []
    for step in range(40):
        denoiser.prefill(0, denoiser._cache.ids(0))  # no conditioning: the step is the same, the draw is not
        (prediction,) = denoiser.predict(0, [canvas_of(64, step % 4)], 0.8, rng, top_k=TopK(100))
        shares = shares_of(denoiser._reduction.logits(range(64)), 0.8, size=100)
        drawn = (np.arange(64), prediction.sampled_ids)
        assert (shares[drawn] > 0).all()
        places.append(shares.cumsum(axis=1)[drawn] - rng.random(64) * shares[drawn])
    counts = np.histogram(np.concatenate(places), 20, (0, 1))[0]
    chi_square = np.square(counts - counts.mean()).sum() / counts.mean()
    assert chi_square < 43.8  # of 19 degrees of freedom; exceeded by chance once in 1,000


def test_no_logits_and_no_embeddings_leave_a_device(open_with, monkeypatch):
    """Not of flat positions either, where the best tokens hold a small part of the probability."""
    denoiser = open_with(on_device=True)
    copied = []
    read = denoiser._reduction._read
    put = denoiser._context.batch.put
    monkeypatch.setattr(denoiser._reduction, "_read", lambda *where: copied.append(where[2]) or read(*where))
    monkeypatch.setattr(denoiser._context.batch, "put", lambda *what: copied.append(what[0].ndim) or put(*what))
    monkeypatch.setattr(denoiser._context, "logits", lambda *_: pytest.fail("copied"))
    for step in range(3):
        predict(denoiser, canvas_of(16, step), temperature=2.5)
    assert copied == [1, 6] * 3  # ids go there, six numbers of a position for the sampler come back


@pytest.mark.parametrize("num_frozen", [0, 8], ids=["nothing frozen", "head and tail frozen"])
@pytest.mark.parametrize("entropy_bound", [0.1, 40.0], ids=["one position accepted", "several positions accepted"])
def test_steps_between_two_looks_equal_single_steps(open_with, entropy_bound, num_frozen):
    """The device accepts, draws and renoises as the host does, up to the last bit."""
    denoiser = open_with(on_device=True)
    prompt = denoiser._cache.ids(0)
    layout = Layout(prompt, prompt[:num_frozen], prompt[:num_frozen])
    denoised = {}
    for stop_interval in (1, 2, 5, 16):
        denoiser.prefill(0, prompt)
        sampling = UniformSampling(
            entropy_bound=entropy_bound,
            max_denoising_steps=12,
            stability_threshold=0,
            confidence_threshold=5.65,
            stop_interval=stop_interval,
        )
        rng = np.random.default_rng(4)
        canvas = layout.canvas(16, denoiser.spec, rng, length=32)
        denoised[stop_interval] = [step for (step,) in denoise_together(denoiser, 0, [canvas], sampling, rng)]
    assert denoised[1][-1].is_over
    for steps in denoised.values():
        for step, expected in zip(steps, denoised[1], strict=True):
            assert (step.number, step.is_over) == (expected.number, expected.is_over)
            for name in ("canvas_ids", "draft_ids", "committed", "confidence"):
                np.testing.assert_array_equal(getattr(step, name), getattr(expected, name))


def test_more_predictions_than_a_device_keeps_are_an_error(open_with):
    denoiser = open_with(on_device=True)
    with pytest.raises(RequestError, match="send the prompt again"):
        for lane in range(100):
            predict(denoiser, canvas_of(64, lane), lanes=[lane])
    denoiser.prefill(0, canvas_of(5))
    assert len(predict(denoiser, canvas_of(64))) == 1


def test_other_models_of_the_process_get_their_logits(open_with, open_denoiser):
    denoiser, predictions = open_denoiser(), []
    denoiser.prefill(0, canvas_of(9) % denoiser.spec.vocab_size)
    for reduced in (None, open_with(), open_with(on_device=True)):
        if reduced is not None:
            predict(reduced, canvas_of(16), temperature=0.8)
        predictions += predict(denoiser, [denoiser.spec.sampling.mask_id] * 16, temperature=0.8)
    for prediction in predictions[1:]:
        np.testing.assert_array_equal(prediction.entropy, predictions[0].entropy)


@on_both
def test_feedback_holds_the_mass_at_every_position(open_with, on_device):
    """The mean embeddings that are fed back are those of all tokens but for the hundredth that is left out."""
    denoiser = open_with(on_device=on_device)
    embeddings = denoiser._table.rows(np.arange(512, dtype=np.int32)) * denoiser._table.scale
    canvas = canvas_of(32)
    for temperature in (0.05, 0.3, 0.8):  # from a few tokens that hold the mass to more than leave the device
        denoiser.prefill(0, denoiser._cache.ids(0))
        (prediction,) = predict(denoiser, canvas, temperature=temperature)
        shares = shares_of(denoiser._reduction.logits(range(32)), temperature, denoiser.spec.banned_ids)
        exact = denoiser._network.condition(embeddings[canvas], (shares @ embeddings).astype(np.float32))
        predict(denoiser, canvas, temperature=temperature)
        conditioned = denoiser._reduction.layer_inputs(32, 64)
        assert np.abs(exact - denoiser._network.condition(embeddings[canvas], None)).max() > 0.3
        assert np.sqrt(np.square(conditioned - exact).mean()) < 0.02 * np.sqrt(np.square(exact).mean())
        np.testing.assert_allclose(prediction.confidence, shares.max(axis=1), atol=1e-4)


def test_host_feeds_the_best_tokens_back(open_with):
    denoiser = open_with()
    predict(denoiser, canvas_of(32), temperature=0.8, top_k=TopK(5))
    shares = shares_of(denoiser._reduction.logits(range(32)), 0.8, denoiser.spec.banned_ids, 5)
    record = denoiser._records[0][0]
    np.testing.assert_allclose(record.shares, shares[:, record.ids], atol=1e-5)


LAYER_INPUTS = GraphReduction.layer_inputs
INPUTS = DeviceFeedback.inputs
PROBLEMS = {
    "failing driver": lambda: (device_graph.functions(), "backend_dev_init", lambda *_: None),
    "full memory": lambda: (self_conditioning, "_SPARE_BYTES", 1 << 50),
    "failing step": lambda: (DeviceFeedback, "inputs", Mock(side_effect=BackendError("made up"))),
    "wrong inputs": lambda: (DeviceFeedback, "inputs", lambda *arguments: INPUTS(*arguments)[::-1].copy()),
    "numbers that are none": lambda: (GraphReduction, "layer_inputs", lambda *rows: LAYER_INPUTS(*rows) * np.nan),
    "another prediction": lambda: (denoiser_module, "agrees", lambda *_: False),
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_host_is_used_if_the_device_cannot_compute_the_same(open_with, monkeypatch, problem):
    monkeypatch.setattr(*problem())
    denoiser = open_with(on_device=True)
    assert not isinstance(denoiser._reduction.feedback, DeviceFeedback)
    assert len(predict(denoiser, canvas_of(8))) == 1


def test_step_that_the_installed_llama_cpp_computes_is_an_error(open_with, monkeypatch):
    denoiser = open_with()
    monkeypatch.setattr(denoiser._reduction._native, "dg_reduction_read", lambda *_: 0)
    with pytest.raises(BackendError, match="--backend cpu"):
        predict(denoiser, canvas_of(8))
