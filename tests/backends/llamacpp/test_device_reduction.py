"""The reduction in llama.cpp's graph compared with the host's: a tiny random DiffusionGemma on ggml's CPU device."""

from dataclasses import replace

import numpy as np
import pytest

from dg_lsp.backends.llamacpp import LlamaModel
from dg_lsp.backends.llamacpp.diffusiongemma import denoiser as denoiser_module
from dg_lsp.backends.llamacpp.diffusiongemma.denoiser import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.diffusiongemma.device_reduction import GraphReduction, Mode, choose_reduction, functions
from dg_lsp.backends.llamacpp.diffusiongemma.runtime_check import supports_bidirectional
from dg_lsp.backends.llamacpp.diffusiongemma.self_conditioning import DeviceFeedback
from dg_lsp.backends.llamacpp.library import Device
from dg_lsp.canvas.layout import token_ids
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.diffusion.samplers import accept
from dg_lsp.errors import BackendError
from dg_lsp.models.metadata import describe
from dg_lsp.runtime import COMMAND
from dg_lsp.settings import ModelSettings

needs_runtime = pytest.mark.skipif(
    not supports_bidirectional() or functions() is None,
    reason=f"the installed llama.cpp is not changed, or by an earlier version; run: {COMMAND}",
)
CPU = ModelSettings(threads=2, gpu_layers=0)
in_graph = pytest.mark.parametrize(
    ("mode", "options"),
    [(Mode.ROWS, {}), (Mode.OPS, {}), (Mode.OPS, {"kinds": ("cpu",)})],
    ids=["by rows", "by operations", "by operations, sums on the device"],
)
ENTROPY_TOLERANCE = 1e-3


@pytest.fixture
def open_with(tiny_repacked, opened):
    """A denoiser with this reduction; with `kinds`, its feedback is on the CPU device as on a GPU."""

    def make(reduction, *, banned=None, **more):
        model = LlamaModel.load(tiny_repacked, CPU)
        model.on_gpu = "kinds" in more
        spec = describe(model.metadata, model.vocab_size, "tiny")
        spec = spec if banned is None else replace(spec, banned_ids=banned)
        denoiser = opened(SelfConditionedDenoiser(model, spec, CPU, reduction=reduction, **more))
        denoiser.prefill(0, token_ids(np.random.default_rng(3).integers(0, model.vocab_size, 20)))
        return denoiser

    return make


def canvas_of(length, seed=0):
    return token_ids(np.random.default_rng(seed).integers(0, 512, length))


def steps(denoiser, number, length, temperature=0.8, forced=None):
    """Predictions of steps that condition each other; the records of `forced`, another denoiser, replace its own."""
    rng, found = np.random.default_rng(1), []
    for step in range(number):
        if forced is not None:
            denoiser._records = {slot: dict(lanes) for slot, lanes in forced[step].items()}
        found += denoiser.predict(0, [canvas_of(length, step)], temperature, rng)
    return found


@needs_runtime
@in_graph
@pytest.mark.parametrize("temperature", [0.0, 0.4, 0.8, 2.5])
@pytest.mark.parametrize("banned", [(), (0, 3, 300, 511)])
def test_graph_computes_what_the_host_computes(open_with, mode, options, temperature, banned):
    host, graph = open_with(Mode.HOST, banned=banned, **options), open_with(mode, banned=banned, **options)
    rngs = np.random.default_rng(1), np.random.default_rng(1)
    canvases = [canvas_of(32), canvas_of(7, 1), canvas_of(64, 2)]
    expected, found = (one.predict(0, canvases, temperature, rng) for one, rng in zip((host, graph), rngs, strict=True))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(other.argmax_ids, one.argmax_ids)
        np.testing.assert_array_equal(other.sampled_ids, one.sampled_ids)  # the same numbers invert the same sums
        np.testing.assert_allclose(other.entropy, one.entropy, atol=ENTROPY_TOLERANCE)
        np.testing.assert_allclose(other.confidence, one.confidence, atol=1e-5)
        np.testing.assert_allclose(other.sampled_confidence, one.sampled_confidence, atol=1e-5)
        assert not np.isin(other.sampled_ids, banned).any()


@needs_runtime
@in_graph
def test_graph_accepts_the_positions_that_the_host_accepts(open_with, mode, options):
    host, graph, records = open_with(Mode.HOST, **options), open_with(mode, **options), []
    expected, rng = [], np.random.default_rng(1)
    for step in range(40):
        records.append({slot: dict(lanes) for slot, lanes in host._records.items()})
        expected += host.predict(0, [canvas_of(32, step)], 0.8, rng)
    found = steps(graph, 40, 32, forced=records)
    pairs = list(zip(expected, found, strict=True))
    for one, other in pairs:
        np.testing.assert_allclose(other.entropy, one.entropy, atol=ENTROPY_TOLERANCE)
    for bound in (0.1, 1.0, 10.0):
        same = [accept(one.entropy, bound) == accept(other.entropy, bound) for one, other in pairs]
        assert np.mean(same) >= 0.999
    assert np.mean([one.argmax_ids == other.argmax_ids for one, other in pairs]) == 1.0


@needs_runtime
@in_graph
def test_samples_follow_the_whole_distribution(open_with, mode, options):
    """A sample's place in the cumulative sum is uniform: 20 equal parts of 10,240 draws by the chi-square test."""
    denoiser, rng, places = open_with(mode, banned=(), **options), np.random.default_rng(2), []
    for step in range(160):
        denoiser.prefill(0, denoiser._cache.ids(0))  # no conditioning: the step is the same, the draw is not
        (found,) = denoiser.predict(0, [canvas_of(64, step % 4)], 0.8, rng)
        weights = np.exp(denoiser._reduction.logits(range(64)).astype(np.float64) / 0.8)
        shares = (weights / weights.sum(axis=1, keepdims=True)).cumsum(axis=1)
        rows = np.arange(64)
        before = np.where(found.sampled_ids > 0, shares[rows, found.sampled_ids - 1], 0.0)
        places.append(before + rng.random(64) * (shares[rows, found.sampled_ids] - before))
    counts = np.histogram(np.concatenate(places), 20, (0, 1))[0]
    assert counts.sum() == 10_240
    assert np.square(counts - 512).sum() / 512 < 43.8  # of 19 degrees of freedom; exceeded by chance once in 1,000


@needs_runtime
@in_graph
def test_no_logits_are_copied_to_the_host(open_with, mode, options, monkeypatch):
    denoiser = open_with(mode, **options)
    monkeypatch.setattr(denoiser._context, "logits", lambda *_: pytest.fail("copied"))
    assert len(steps(denoiser, 3, 16)) == 3


@needs_runtime
def test_no_row_of_logits_leaves_a_device_that_sums_the_embeddings(open_with, monkeypatch):
    """Not of flat positions either, where the best tokens hold a small part of the probability."""
    denoiser, widths = open_with(Mode.OPS, kinds=("cpu",)), []
    read = denoiser._reduction._read
    monkeypatch.setattr(denoiser._reduction, "_read", lambda *where: widths.append(where[2]) or read(*where))
    steps(denoiser, 3, 16, temperature=2.5)
    assert widths == [6, 64] * 3  # numbers for the sampler, then an embedding


@needs_runtime
def test_other_models_of_the_process_get_their_logits(open_with):
    host, graph = open_with(Mode.HOST), open_with(Mode.ROWS)
    alone = steps(open_with(Mode.HOST), 2, 16)
    found = []
    rng = np.random.default_rng(1)
    for step in range(2):
        graph.predict(0, [canvas_of(16)], 0.8, np.random.default_rng(0))
        graph.prefill(0, canvas_of(9, step))
        found += host.predict(0, [canvas_of(16, step)], 0.8, rng)
    for one, other in zip(alone, found, strict=True):
        np.testing.assert_array_equal(one.entropy, other.entropy)


@needs_runtime
@in_graph
def test_feedback_holds_the_mass_at_every_position(open_with, mode, options, tiny_repacked):
    """The mean embeddings that are fed back are those of all tokens but for the hundredth that is left out."""
    denoiser = open_with(mode, **options)
    assert isinstance(denoiser._feedback, DeviceFeedback) == bool(options)
    for temperature in (0.05, 0.3, 0.8):  # from a few tokens that hold the mass to more than leave the device
        (prediction,) = denoiser.predict(0, [canvas_of(32)], temperature, np.random.default_rng(0))
        logits = denoiser._reduction.logits(range(32)).astype(np.float64)
        logits[:, list(denoiser.spec.banned_ids)] = -1e9
        shares = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
        shares /= shares.sum(axis=1, keepdims=True)
        embeddings = denoiser._table.rows(np.arange(512, dtype=np.int32)) * denoiser._table.scale
        soft = (shares @ embeddings).astype(np.float32)
        exact = denoiser._network.condition(embeddings[:32], soft)
        found = denoiser._feedback.condition(embeddings[:32], denoiser._records[0][0])
        assert np.abs(exact - denoiser._network.condition(embeddings[:32], None)).max() > 0.3
        assert np.sqrt(np.square(found - exact).mean()) < 0.02 * np.sqrt(np.square(exact).mean())
        np.testing.assert_allclose(prediction.confidence, shares.max(axis=1), atol=1e-4)


@needs_runtime
def test_host_is_used_from_the_step_on_at_which_the_device_fails(open_with, monkeypatch):
    denoiser, expected = open_with(Mode.ROWS), steps(open_with(Mode.HOST), 1, 16)
    monkeypatch.setattr(denoiser._reduction, "_read", lambda *_: (_ for _ in ()).throw(BackendError("made up")))
    denoiser.predict(0, [canvas_of(16)], 0.0, np.random.default_rng(0))
    assert denoiser._reduction.mode is Mode.HOST
    denoiser.prefill(0, denoiser._cache.ids(0))
    np.testing.assert_array_equal(steps(denoiser, 1, 16)[0].entropy, expected[0].entropy)


@needs_runtime
def test_earlier_runtime_reduces_on_the_host(open_with, monkeypatch):
    monkeypatch.setattr(denoiser_module, "functions", lambda: None)
    for reduction in (None, Mode.ROWS):
        denoiser = open_with(reduction)
        assert denoiser._reduction.mode is Mode.HOST
        assert len(steps(denoiser, 1, 16)) == 1


@needs_runtime
def test_choice_is_made_at_load_among_those_of_the_device(open_with, monkeypatch):
    tried = []
    monkeypatch.setattr(denoiser_module, "choose_reduction", lambda _, others, **__: tried.append(others) or others[-1])
    assert isinstance(open_with(None)._reduction, GraphReduction)
    for free in (10**9, 10**6, 0):  # 0: unknown
        monkeypatch.setattr(denoiser_module, "gpus", lambda free=free: (Device("made up", "gpu", free, 2 * 10**9),))
        open_with(None, kinds=("cpu",))
    both = [Mode.OPS, Mode.ROWS]
    assert [[each.mode for each in others] for others in tried] == [[Mode.ROWS], both, [Mode.ROWS], both]


@needs_runtime
def test_table_on_the_device_counts_as_its_memory(open_with):
    on_host, on_device = open_with(Mode.OPS), open_with(Mode.OPS, kinds=("cpu",))
    more = on_device.footprint.gpu_estimate - on_host.footprint.gpu_estimate
    assert more >= 2 * 512 * 64  # half precision


# the choice


class FakeReduction:
    """Takes `seconds` of a fake clock, predicts `entropy` (None fails), and feeds back `embedding`."""

    def __init__(self, seconds, entropy=1.0, embedding=2.0):
        self.seconds, self.entropy, self.embedding = seconds, entropy, embedding


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([], 0),
        ([FakeReduction(2.0)], 1),
        ([FakeReduction(9.0)], 0),
        ([FakeReduction(5.0)], 0),
        ([FakeReduction(3.0), FakeReduction(2.0), FakeReduction(4.0)], 2),
        ([FakeReduction(2.0, entropy=1.5), FakeReduction(3.0)], 2),
        ([FakeReduction(2.0, entropy=None), FakeReduction(9.0)], 0),
        ([FakeReduction(2.0, entropy=float("nan"))], 0),
        ([FakeReduction(2.0, embedding=1.5), FakeReduction(3.0)], 2),
        ([FakeReduction(2.0, embedding=float("nan"))], 0),
    ],
)
def test_fastest_reduction_that_agrees_with_the_host_is_chosen(others, chosen):
    now = 0.0

    def run(reduction):
        nonlocal now
        now += reduction.seconds
        if reduction.entropy is None:
            raise BackendError("no memory")
        ids, floats = token_ids([1]), np.array([reduction.entropy], np.float32)
        return Prediction(ids, ids, np.full(1, 0.5, np.float32), floats, floats)

    def next_input(reduction):
        return np.full((1, 4), reduction.embedding, np.float32)

    everyone = [FakeReduction(5.0), *others]
    assert choose_reduction(everyone[0], others, run, next_input, lambda: now) is everyone[chosen]
