"""Models with a bidirectional prompt, compared with numpy's computation of the same weights."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_masked
from margins import check_close
from tiny_masked import MASK

from dg_lsp.backends.llamacpp import denoiser_for
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.errors import BackendError, RequestError
from dg_lsp.settings import ModelSettings

PROMPT = token_ids(np.random.default_rng(1).integers(5, 200, 40))
GAPS = token_ids([20, 21, MASK, MASK, 22, MASK, 23])
ALL_MASKS = token_ids([MASK] * 3)
HALF = 1e-2
"""Keys and values are half-precision numbers where llama.cpp has a cache."""
SMALL = {"max_prompt_tokens": 40, "canvas_lengths": (8,)}


def predict(denoiser, *canvases, slot=0, temperature=0.0):
    return denoiser.predict(slot, list(map(token_ids, canvases)), temperature, np.random.default_rng(0))


def watch_decodes(denoiser, monkeypatch):
    """Records the number of tokens of each decode."""
    sizes, decode = [], denoiser._context.decode

    def watched(**options):
        sizes.append(denoiser._context.batch.native.n_tokens)
        return decode(**options)

    monkeypatch.setattr(denoiser._context, "decode", watched)
    return sizes


@pytest.mark.parametrize("architecture", [*tiny_masked.ARCHITECTURES, "qwen2"])
def test_exact_prompt_is_computed_as_trained(masked_model, open_masked, architecture):
    tiny, path = masked_model(architecture)
    denoiser = open_masked(path)
    atol = HALF if architecture == "qwen2" else 1e-4
    for prompt in (PROMPT, PROMPT[:1], PROMPT[:0]):
        assert [denoiser.prefill(0, prompt) for _ in range(2)] == [len(prompt)] * 2
        for canvas in (GAPS, ALL_MASKS, GAPS):
            tiny_masked.check(*predict(denoiser, canvas), tiny, prompt, canvas, denoiser.spec.banned_ids, atol)


def test_exact_step_decodes_as_many_canvases_together_as_fit(masked_model, open_masked, monkeypatch):
    denoiser = open_masked(masked_model("dream")[1], spec=SMALL)
    sizes = watch_decodes(denoiser, monkeypatch)
    denoiser.prefill(0, PROMPT)
    assert len(predict(denoiser, *[[MASK] * 8] * 3)) == 3
    assert sizes == [48, 48, 48]
    denoiser.prefill(0, PROMPT[:4])
    assert len(predict(denoiser, *[[MASK] * 8] * 5)) == 5
    assert sizes[3:] == [48, 12]


@pytest.mark.parametrize("mode", ["cached", "exact"])
def test_canvas_without_a_mask_costs_nothing(masked_model, open_masked, open_denoiser, monkeypatch, mode):
    denoiser = open_denoiser() if mode == "cached" else open_masked(masked_model("dream")[1])
    denoiser.prefill(0, PROMPT[:0])
    sizes = watch_decodes(denoiser, monkeypatch)
    assert predict(denoiser, [20, 30])[0].argmax_ids.tolist() == [20, 30]
    assert sizes == []
    assert len(predict(denoiser, [20, 30], [MASK] * 8, [20, 30])) == 3
    assert sizes == [8]


def test_failed_step_is_an_error_and_the_next_one_works(masked_model, open_masked, monkeypatch):
    denoiser = open_masked(masked_model("dream")[1])
    denoiser.prefill(0, PROMPT)
    (before,) = predict(denoiser, GAPS)
    with monkeypatch.context() as patch:
        patch.setattr(denoiser._context, "decode", lambda **_: 1)
        with pytest.raises(BackendError, match="full"):
            predict(denoiser, GAPS)
    check_close(before, predict(denoiser, GAPS)[0], HALF)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(lambda d: d.prefill(0, token_ids([10] * 41)), id="long prompt"),
        pytest.param(lambda d: predict(d, [MASK] * 9), id="long canvas"),
        pytest.param(lambda d: predict(d, *[[MASK]] * 9), id="many canvases"),
    ],
)
def test_prompts_and_canvases_that_do_not_fit_are_refused(masked_model, open_masked, request_):
    denoiser = open_masked(masked_model("dream")[1], spec=SMALL)
    denoiser.prefill(0, PROMPT)
    with pytest.raises(RequestError):
        request_(denoiser)
    assert len(predict(denoiser, [MASK] * 8)) == 1


def test_context_has_room_for_a_canvas_that_grows(masked_model, open_masked):
    _, path = masked_model("dream")
    plain = open_masked(path, spec=SMALL)
    sampling = replace(plain.spec.sampling, expand_id=2, max_free=16)
    growing = open_masked(path, spec={**SMALL, "sampling": sampling})
    assert (plain.footprint.cache_limit, growing.footprint.cache_limit) == (48, 64)
    growing.prefill(0, PROMPT)
    (prediction,) = predict(growing, [MASK] * 24)
    assert prediction.unexpanded_ids is not None
    assert 2 not in prediction.unexpanded_ids


def test_tokens_that_a_causal_pass_allows_do_not_limit_the_canvas_after_it(tiny_path, open_denoiser, opened):
    settings, spec = ModelSettings(threads=1, gpu_layers=0), replace(open_denoiser.mask, is_shifted=True)
    denoiser = opened(denoiser_for(LlamaModel.load(tiny_path, settings), spec, settings))
    first = []
    for allowed in (None, {0: np.array([20, 21], np.int32)}):
        denoiser.prefill(0, PROMPT[:-1])
        denoiser.extend(0, PROMPT[-1:], allowed)
        (prediction,) = predict(denoiser, np.full(8, open_denoiser.mask.sampling.mask_id, np.int32))
        first.append(prediction.confidence[0])
    assert first[1] == pytest.approx(first[0], abs=HALF)
