"""The denoiser that remembers what it said of a canvas, by lane."""

import shutil

import numpy as np
import pytest

from dg_lsp.backends.llamacpp import LlamaModel
from dg_lsp.backends.llamacpp.diffusiongemma import SelfConditionedDenoiser
from dg_lsp.canvas.layout import Canvas, token_ids
from dg_lsp.diffusion.loop import race
from dg_lsp.errors import ModelBrokenError, ModelNotFoundError, ModelUnsupportedError, RequestError
from dg_lsp.models.metadata import describe
from dg_lsp.settings import RuntimeSettings

CPU = RuntimeSettings(threads=1, gpu_layers=0)
PROMPT = token_ids(range(110, 140))
CANVASES = [token_ids(np.random.default_rng(seed).integers(0, 512, 16)) for seed in range(3)]


@pytest.fixture
def open_model(tiny_repacked):
    opened = []

    def make(path=tiny_repacked):
        model = LlamaModel.load(path, CPU)
        try:
            opened.append(
                SelfConditionedDenoiser(model, describe(model.metadata, model.vocab_size, "t"), CPU, mass=1.0)
            )
        except BaseException:
            model.close()
            raise
        return opened[-1]

    yield make
    for denoiser in opened:
        denoiser.close()


@pytest.fixture
def denoiser(open_model):
    return open_model()


def predict(denoiser, canvases, *, slot=0, lanes=()):
    return denoiser.predict(slot, canvases, 0.8, np.random.default_rng(0), lanes)


def entropies(denoiser, *passes):
    """Of the last of some passes after a new prompt; each is canvases and their lanes."""
    denoiser.prefill(0, PROMPT[:0])
    denoiser.prefill(0, PROMPT)
    for canvases, lanes in passes:
        predictions = predict(denoiser, [CANVASES[i] for i in canvases], lanes=lanes)
    return [prediction.entropy for prediction in predictions]


def test_a_second_pass_hears_the_first_and_a_new_prompt_hears_nothing(denoiser):
    first, again = entropies(denoiser, ([0], ())), entropies(denoiser, ([0], ()))
    second = entropies(denoiser, ([0], ()), ([0], ()))
    np.testing.assert_array_equal(first, again)
    assert np.abs(second[0] - first[0]).max() > 0.01
    denoiser.prefill(0, PROMPT)  # the same prompt is a new request all the same
    np.testing.assert_array_equal(predict(denoiser, CANVASES[:1])[0].entropy, first[0])


def test_a_canvas_hears_its_own_lane(denoiser):
    alone = entropies(denoiser, ([1], ()), ([1], ()))[0]
    raced = entropies(denoiser, ([0, 1, 2], ()), ([1], [1]))[0]
    other = entropies(denoiser, ([0, 1, 2], ()), ([1], [2]))[0]
    np.testing.assert_allclose(raced, alone, atol=2e-2)
    assert np.abs(other - alone).max() > 0.05


def test_a_lane_that_sits_out_a_pass_is_remembered(denoiser):
    together = entropies(denoiser, ([0, 1], ()), ([0, 1], ()))[1]
    later = entropies(denoiser, ([0, 1], ()), ([0], [0]), ([1], [1]))[0]
    np.testing.assert_allclose(later, together, atol=2e-2)


def test_slots_remember_apart(denoiser):
    alone = entropies(denoiser, ([0], ()), ([0], ()))[0]
    entropies(denoiser, ([0], ()))
    denoiser.prefill(1, PROMPT[:20])
    predict(denoiser, CANVASES[1:2], slot=1)
    np.testing.assert_allclose(predict(denoiser, CANVASES[:1])[0].entropy, alone, atol=2e-2)


def test_a_canvas_of_another_length_begins_anew(denoiser):
    first = entropies(denoiser, ([0], ()))[0]
    denoiser.prefill(0, PROMPT)
    predict(denoiser, [CANVASES[1][:8]])
    np.testing.assert_array_equal(predict(denoiser, CANVASES[:1])[0].entropy, first)


def test_lanes_and_canvases_are_as_many_and_different(denoiser):
    denoiser.prefill(0, PROMPT)
    for lanes in ([0], [0, 0], [0, 1, 2]):
        with pytest.raises(RequestError, match="lanes"):
            predict(denoiser, CANVASES[:2], lanes=lanes)
    with pytest.raises(RequestError):
        predict(denoiser, [token_ids([512])])
    with pytest.raises(RequestError):
        predict(denoiser, [token_ids([1] * 10_000)])


def test_the_loop_freezes_bans_and_stops(denoiser):
    """Two canvases raced: what is frozen stays, what is banned never comes, and it ends."""
    rng = np.random.default_rng(3)
    frozen = np.arange(16) < 5
    plans = [Canvas(PROMPT, canvas, frozen) for canvas in CANVASES[:2]]
    denoiser.prefill(0, PROMPT)
    states = list(race(denoiser, 0, plans, denoiser.spec.sampling, rng))
    assert 1 < len(states) <= denoiser.spec.sampling.max_denoising_steps
    for plan, step in zip(plans, states[-1], strict=True):
        assert step.stop is not None
        np.testing.assert_array_equal(step.draft_ids[frozen], plan.canvas_ids[frozen])
        assert not np.isin(step.draft_ids[~frozen], denoiser.spec.banned_ids).any()


def test_the_side_file_has_to_be_there_and_the_right_one(tiny_repacked, tmp_path, open_model):
    model = shutil.copy(tiny_repacked, tmp_path / tiny_repacked.name)
    side = tiny_repacked.with_name(tiny_repacked.stem + ".selfcond.gguf")
    with pytest.raises(ModelNotFoundError, match=r"selfcond\.gguf is missing"):
        open_model(model)
    content = side.read_bytes()
    (tmp_path / side.name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelBrokenError, match="repack"):
        open_model(model)
    (tmp_path / side.name).write_bytes(content)
    assert open_model(model)


def test_a_model_without_self_conditioning_is_refused(write_model, open_denoiser):
    model = LlamaModel.load(write_model(), CPU)
    with pytest.raises(ModelUnsupportedError, match="no self-conditioning"):
        SelfConditionedDenoiser(model, open_denoiser.uniform, CPU)
    model.close()
