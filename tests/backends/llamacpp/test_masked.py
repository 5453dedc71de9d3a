"""Models with a bidirectional prompt, compared with numpy's computation of the same weights."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tiny_masked
from margins import check_close, predict
from tiny_masked import MASK

from dg_lsp.backends.llamacpp import denoiser_for
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.settings import ModelSettings

PROMPT = token_ids(np.random.default_rng(1).integers(5, 200, 40))
GAPS = token_ids([20, 21, MASK, MASK, 22, MASK, 23])
FILLED = token_ids([31, 21, 32, MASK, 22, 33, 23])
ALL_MASKS = token_ids([MASK] * 3)
HALF = 1e-2
"""Keys and values are half-precision numbers where llama.cpp has a cache."""
SMALL = {"max_prompt_tokens": 40, "canvas_lengths": (8,)}


@pytest.mark.parametrize("architecture", [*tiny_masked.ARCHITECTURES, "qwen2"])
def test_exact_prompt_is_computed_as_trained(open_masked, architecture):
    tiny, denoiser = tiny_masked.masked(architecture), open_masked(architecture)
    atol = HALF if architecture == "qwen2" else 1e-4
    for prompt in (PROMPT, PROMPT[:1], PROMPT[:0]):
        assert [denoiser.prefill(0, prompt) for _ in range(2)] == [len(prompt)] * 2
        for canvas in (GAPS, ALL_MASKS, GAPS):
            tiny_masked.check(*predict(denoiser, canvas), tiny, prompt, canvas, denoiser.spec.banned_ids, atol)


@pytest.fixture
def open_per_request(open_masked):
    """Opens a model whose prompt is computed once for a request."""
    return partial(open_masked, prompt_attention="per_request")


@pytest.mark.parametrize("architecture", ["dream", "rnd1", "qwen2", "llada"])
def test_prompt_of_a_request_is_exact_in_the_first_step(open_per_request, architecture):
    tiny, denoiser = tiny_masked.masked(architecture), open_per_request(architecture)
    for prompt in (PROMPT, PROMPT[:2], PROMPT[:1], PROMPT[:0]):
        for canvas in (GAPS, FILLED, token_ids([20, MASK])):
            assert denoiser.prefill(0, prompt) == len(prompt)
            tiny_masked.check(*predict(denoiser, canvas), tiny, prompt, canvas, denoiser.spec.banned_ids, HALF)


def test_prompt_of_a_request_keeps_its_attention_to_the_first_canvas(open_masked, open_per_request):
    denoiser, exact = open_per_request("dream"), open_masked("dream")
    denoiser.prefill(0, PROMPT)
    exact.prefill(0, PROMPT)
    (first,), (second,) = predict(denoiser, GAPS), predict(denoiser, FILLED)
    check_close(first, *predict(denoiser, GAPS), HALF)
    check_close(second, *predict(denoiser, FILLED), HALF)
    assert second.confidence[3] != pytest.approx(predict(exact, FILLED)[0].confidence[3], abs=1e-4)


def test_steps_after_the_first_one_of_a_request_decode_their_canvases_only(open_per_request, monkeypatch):
    denoiser = open_per_request("llada")
    sizes = []
    context, decode = denoiser._context, denoiser._context.decode
    monkeypatch.setattr(context, "decode", lambda **how: sizes.append(context.batch.native.n_tokens) or decode(**how))
    for _ in range(2):
        denoiser.prefill(0, PROMPT)
        predict(denoiser, GAPS)
        predict(denoiser, GAPS, FILLED)
    assert sizes == [47, 14] * 2


@pytest.mark.usefixtures("is_alone")
def test_prompt_of_a_request_is_computed_again_after_its_eviction(open_masked, open_per_request):
    denoiser, exact = open_per_request("dream", context_length=256), open_masked("dream")
    for slot, prompt in enumerate([PROMPT, token_ids(np.tile(PROMPT, 3))]):
        denoiser.prefill(slot, prompt)
        exact.prefill(slot, prompt)
    num_used = []
    for slot, canvas in ((0, GAPS), (1, [MASK] * 100), (0, GAPS)):
        check_close(*predict(denoiser, canvas, slot=slot), *predict(exact, canvas, slot=slot), HALF)
        num_used.append(denoiser.footprint.cache_used)
    assert num_used == [39, 119, 158], "the long canvas has no room beside both prompts"


def test_context_has_room_for_a_canvas_that_grows(open_masked):
    plain = open_masked("dream", spec=SMALL)
    sampling = replace(plain.spec.sampling, expand_id=2, max_free=16)
    growing = open_masked("dream", spec={**SMALL, "sampling": sampling})
    assert (plain.footprint.cache_limit, growing.footprint.cache_limit) == (48, 64)
    growing.prefill(0, PROMPT)
    (prediction,) = predict(growing, [MASK] * 24)
    assert prediction.unexpanded_ids is not None
    assert 2 not in prediction.unexpanded_ids


def test_tokens_that_a_causal_pass_allows_do_not_limit_the_canvas_after_it(tiny_path, open_denoiser, opened):
    settings, spec = ModelSettings(threads=1, gpu_layers=0), replace(open_denoiser.mask, is_shifted=True)
    denoiser = opened(denoiser_for(LlamaModel(tiny_path, settings), spec, settings))
    first = []
    for allowed in (None, {0: np.array([20, 21], np.int32)}):
        denoiser.prefill(0, PROMPT[:-1])
        denoiser.extend(0, PROMPT[-1:], allowed)
        (prediction,) = predict(denoiser, np.full(8, open_denoiser.mask.sampling.mask_id, np.int32))
        first.append(prediction.confidence[0])
    assert first[1] == pytest.approx(first[0], abs=HALF)
