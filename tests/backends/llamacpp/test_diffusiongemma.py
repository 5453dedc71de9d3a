"""The denoiser that keeps its last prediction of a canvas, by lane."""

import shutil

import numpy as np
import pytest

from dg_lsp.backends.llamacpp import LlamaModel
from dg_lsp.backends.llamacpp.diffusiongemma import SelfConditionedDenoiser
from dg_lsp.canvas.layout import Canvas, token_ids
from dg_lsp.diffusion.loop import race
from dg_lsp.errors import ModelBrokenError, ModelNotFoundError, RequestError
from dg_lsp.models.metadata import describe
from dg_lsp.settings import ModelSettings

CPU = ModelSettings(threads=1, gpu_layers=0)
PROMPT = token_ids(range(110, 140))
CANVASES = [token_ids(np.random.default_rng(seed).integers(0, 512, 16)) for seed in range(3)]
ATOL = 2e-2


@pytest.fixture
def open_model(tiny_repacked, opened):
    def make(path=tiny_repacked):
        model = LlamaModel.load(path, CPU)
        try:
            spec = describe(model.metadata, model.vocab_size, "t")
            return opened(SelfConditionedDenoiser(model, spec, CPU, mass=1.0))
        except BaseException:
            model.close()
            raise

    return make


@pytest.fixture
def denoiser(open_model):
    return open_model()


def predict(denoiser, canvases, *, slot=0, lanes=()):
    return denoiser.predict(slot, canvases, 0.8, np.random.default_rng(0), lanes)


def entropies(denoiser, *passes):
    """Entropies of the last of some passes after a prefill; a pass is (canvases, lanes)."""
    denoiser.prefill(0, PROMPT[:0])
    denoiser.prefill(0, PROMPT)
    for canvases, lanes in passes:
        predictions = predict(denoiser, [CANVASES[i] for i in canvases], lanes=lanes)
    return [prediction.entropy for prediction in predictions]


def test_second_pass_is_conditioned_on_the_first_until_the_next_prefill(denoiser):
    first, again = entropies(denoiser, ([0], ())), entropies(denoiser, ([0], ()))
    second = entropies(denoiser, ([0], ()), ([0], ()))
    np.testing.assert_allclose(first, again, atol=1e-6)
    assert np.abs(second[0] - first[0]).max() > 0.05
    denoiser.prefill(0, PROMPT)
    np.testing.assert_allclose(predict(denoiser, CANVASES[:1])[0].entropy, first[0], atol=ATOL)


def test_canvas_is_conditioned_on_its_own_lane(denoiser):
    alone = entropies(denoiser, ([1], ()), ([1], ()))[0]
    raced = entropies(denoiser, ([0, 1, 2], ()), ([1], [1]))[0]
    other = entropies(denoiser, ([0, 1, 2], ()), ([1], [2]))[0]
    np.testing.assert_allclose(raced, alone, atol=ATOL)
    assert np.abs(other - alone).max() > 0.05


def test_lane_that_sits_out_a_pass_keeps_its_prediction(denoiser):
    together = entropies(denoiser, ([0, 1], ()), ([0, 1], ()))[1]
    later = entropies(denoiser, ([0, 1], ()), ([0], [0]), ([1], [1]))[0]
    np.testing.assert_allclose(later, together, atol=ATOL)


def test_slots_keep_their_predictions_separately(denoiser):
    alone = entropies(denoiser, ([0], ()), ([0], ()))[0]
    entropies(denoiser, ([0], ()))
    denoiser.prefill(1, PROMPT[:20])
    predict(denoiser, CANVASES[1:2], slot=1)
    np.testing.assert_allclose(predict(denoiser, CANVASES[:1])[0].entropy, alone, atol=ATOL)


def test_canvas_of_another_length_is_not_conditioned(denoiser):
    first = entropies(denoiser, ([0], ()))[0]
    denoiser.prefill(0, PROMPT)
    predict(denoiser, [CANVASES[1][:8]])
    np.testing.assert_allclose(predict(denoiser, CANVASES[:1])[0].entropy, first, atol=ATOL)


def test_bad_lanes_and_canvases_are_refused(denoiser):
    denoiser.prefill(0, PROMPT)
    for lanes in ([0], [0, 0], [0, 1, 2]):
        with pytest.raises(RequestError, match="lanes"):
            predict(denoiser, CANVASES[:2], lanes=lanes)
    for canvas in ([512], [1] * 10_000):
        with pytest.raises(RequestError):
            predict(denoiser, [token_ids(canvas)])


def test_race_keeps_frozen_tokens_never_draws_banned_ones_and_ends(denoiser):
    frozen = np.arange(16) < 5
    plans = [Canvas(PROMPT, canvas, frozen) for canvas in CANVASES[:2]]
    denoiser.prefill(0, PROMPT)
    states = list(race(denoiser, 0, plans, denoiser.spec.sampling, np.random.default_rng(3)))
    assert 1 < len(states) <= denoiser.spec.sampling.max_denoising_steps
    for plan, step in zip(plans, states[-1], strict=True):
        assert step.stop is not None
        np.testing.assert_array_equal(step.draft_ids[frozen], plan.canvas_ids[frozen])
        assert not np.isin(step.draft_ids[~frozen], denoiser.spec.banned_ids).any()


def test_side_file_must_be_the_models_own(tiny_repacked, tmp_path, open_model):
    model = shutil.copy(tiny_repacked, tmp_path / tiny_repacked.name)
    side = tiny_repacked.with_name(tiny_repacked.stem + ".selfcond.gguf")
    with pytest.raises(ModelNotFoundError, match=r"selfcond\.gguf is missing"):
        open_model(model)
    content = side.read_bytes()
    (tmp_path / side.name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelBrokenError, match=r"is not the file that tiny\.gguf was written with; convert"):
        open_model(model)
    (tmp_path / side.name).write_bytes(content)
    assert open_model(model)
