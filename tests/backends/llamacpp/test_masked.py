"""Models with a bidirectional prompt, compared with numpy's computation of the same weights."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_masked
from margins import check_close
from tiny_masked import MASK

from dg_lsp.backends.llamacpp import denoiser_for
from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.masked import CausalDenoiser, ExactDenoiser, PerRequestDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.errors import BackendError, RequestError
from dg_lsp.settings import PROMPT_ATTENTIONS, ModelSettings

PROMPT = token_ids(np.random.default_rng(1).integers(5, 200, 40))
GAPS = token_ids([20, 21, MASK, MASK, 22, MASK, 23])
FILLED = token_ids([31, 21, 32, MASK, 22, 33, 23])
ALL_MASKS = token_ids([MASK] * 3)
HALF = 1e-2
"""Keys and values are half-precision numbers where llama.cpp has a cache."""
MODES = {"exact": ExactDenoiser, "per_request": PerRequestDenoiser, "causal": CausalDenoiser}
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
    denoiser = open_masked(path, "exact")
    atol = HALF if architecture == "qwen2" else 1e-4
    for prompt in (PROMPT, PROMPT[:1], PROMPT[:0]):
        assert [denoiser.prefill(0, prompt) for _ in range(2)] == [len(prompt)] * 2
        for canvas in (GAPS, ALL_MASKS, GAPS):
            tiny_masked.check(*predict(denoiser, canvas), tiny, prompt, canvas, denoiser.spec.banned_ids, atol)


@pytest.mark.parametrize("architecture", ["dream", "rnd1", "qwen2"])
def test_causal_prompt_is_causal_except_its_last_token(masked_model, open_masked, architecture):
    tiny, path = masked_model(architecture)
    denoiser = open_masked(path, "causal")
    for prompt in (PROMPT, PROMPT[:1], PROMPT[:0], PROMPT[:9]):
        denoiser.prefill(0, prompt)
        canvases = (GAPS, ALL_MASKS, token_ids([20, MASK]), token_ids([MASK] * 60))
        for canvas, prediction in zip(canvases, predict(denoiser, *canvases), strict=True):
            num_causal = max(0, len(prompt) - 1)
            tiny_masked.check(prediction, tiny, prompt, canvas, denoiser.spec.banned_ids, HALF, num_causal)


@pytest.mark.parametrize("architecture", ["dream", "rnd1", "qwen2", "llada"])
def test_per_request_prompt_is_exact_in_the_first_step(masked_model, open_masked, architecture):
    tiny, path = masked_model(architecture)
    denoiser = open_masked(path, "per_request")
    for prompt in (PROMPT, PROMPT[:2], PROMPT[:1], PROMPT[:0]):
        for canvas in (GAPS, FILLED, token_ids([20, MASK])):
            assert denoiser.prefill(0, prompt) == len(prompt)
            tiny_masked.check(*predict(denoiser, canvas), tiny, prompt, canvas, denoiser.spec.banned_ids, HALF)


def test_per_request_prompt_keeps_the_attention_to_the_first_canvas(masked_model, open_masked):
    _, path = masked_model("dream")
    denoiser, exact = open_masked(path, "per_request"), open_masked(path, "exact")
    for each in (denoiser, exact):
        each.prefill(0, PROMPT)
    (first,), (later,) = predict(denoiser, GAPS), predict(denoiser, FILLED)
    check_close(first, predict(denoiser, GAPS)[0], HALF)
    check_close(later, predict(denoiser, FILLED)[0], HALF)
    assert later.confidence[3] != pytest.approx(predict(exact, FILLED)[0].confidence[3], abs=1e-4)


def test_causal_prompt_decodes_only_typed_tokens(masked_model, open_masked):
    denoiser = open_masked(masked_model("dream")[1], "causal")
    assert denoiser.prefill(0, PROMPT[:30]) == 29, "every step decodes the last token"
    assert denoiser.prefill(0, PROMPT[:30]) == 0
    assert denoiser.prefill(0, PROMPT[:31]) == 1
    assert denoiser.prefill(0, PROMPT[:20]) == 0
    assert denoiser.prefill(0, token_ids([*PROMPT[:18], 77, 78])) == 1


@pytest.mark.parametrize(("architecture", "num_ahead"), [("dream", 1), ("llada", 0)])
def test_per_request_step_decodes_its_canvases_only(masked_model, open_masked, monkeypatch, architecture, num_ahead):
    denoiser = open_masked(masked_model(architecture)[1], "per_request")
    sizes = watch_decodes(denoiser, monkeypatch)
    denoiser.prefill(0, PROMPT)
    for canvases in ([GAPS], [GAPS, FILLED], [FILLED], [[20, 30]]):
        predict(denoiser, *canvases)
    assert sizes == [47, 2 * (7 + num_ahead), 7 + num_ahead]
    denoiser.prefill(0, PROMPT)
    predict(denoiser, [20, 30], GAPS, FILLED)
    assert sizes[3:] == [47, 7 + num_ahead], "the first open canvas is computed with the prompt"


def test_exact_step_decodes_as_many_canvases_together_as_fit(masked_model, open_masked, monkeypatch):
    denoiser = open_masked(masked_model("dream")[1], "exact", spec=SMALL)
    sizes = watch_decodes(denoiser, monkeypatch)
    denoiser.prefill(0, PROMPT)
    assert len(predict(denoiser, *[[MASK] * 8] * 3)) == 3
    assert sizes == [48, 48, 48]
    denoiser.prefill(0, PROMPT[:4])
    assert len(predict(denoiser, *[[MASK] * 8] * 5)) == 5
    assert sizes[3:] == [48, 12]


@pytest.mark.parametrize("mode", ["cached", *MODES])
def test_canvas_without_a_mask_costs_nothing(masked_model, open_masked, open_denoiser, monkeypatch, mode):
    denoiser = open_denoiser() if mode == "cached" else open_masked(masked_model("dream")[1], mode)
    denoiser.prefill(0, PROMPT[:0])
    sizes = watch_decodes(denoiser, monkeypatch)
    assert predict(denoiser, [20, 30])[0].argmax_ids.tolist() == [20, 30]
    assert sizes == []
    assert len(predict(denoiser, [20, 30], [MASK] * 8, [20, 30])) == 3
    assert sizes == [8]


@pytest.mark.parametrize("mode", MODES)
def test_failed_step_is_an_error_and_the_next_one_works(masked_model, open_masked, monkeypatch, mode):
    denoiser = open_masked(masked_model("dream")[1], mode)
    denoiser.prefill(0, PROMPT)
    (before,) = predict(denoiser, GAPS)
    denoiser.prefill(0, PROMPT)
    with monkeypatch.context() as patch:
        patch.setattr(denoiser._context, "decode", lambda **_: 1)
        with pytest.raises(BackendError, match="full"):
            predict(denoiser, GAPS)
    check_close(before, predict(denoiser, GAPS)[0], HALF)


@pytest.mark.parametrize(
    ("mode", "request_"),
    [
        pytest.param("exact", lambda d: d.prefill(0, token_ids([10] * 41)), id="exact: long prompt"),
        pytest.param("exact", lambda d: predict(d, [MASK] * 9), id="exact: long canvas"),
        pytest.param("exact", lambda d: predict(d, *[[MASK]] * 9), id="exact: many canvases"),
        pytest.param("per_request", lambda d: predict(d, [MASK] * 20), id="per_request: long canvas"),
        pytest.param("causal", lambda d: predict(d, *[[MASK] * 64] * 8), id="causal: long canvases"),
    ],
)
def test_prompts_and_canvases_that_do_not_fit_are_refused(masked_model, open_masked, mode, request_):
    denoiser = open_masked(masked_model("dream")[1], mode, spec=SMALL)
    denoiser.prefill(0, PROMPT)
    with pytest.raises(RequestError):
        request_(denoiser)
    assert len(predict(denoiser, [MASK] * 8)) == 1


def test_evicted_per_request_prompt_is_computed_again(masked_model, open_masked):
    _, path = masked_model("dream")
    denoiser, exact = open_masked(path, "per_request", context_length=256), open_masked(path, "exact")
    long = token_ids(np.tile(PROMPT, 3))
    for each in (denoiser, exact):
        each.prefill(0, PROMPT)
        each.prefill(1, long)
    check_close(*predict(denoiser, GAPS), *predict(exact, GAPS), HALF)
    check_close(*predict(denoiser, [MASK] * 100, slot=1), *predict(exact, [MASK] * 100, slot=1), HALF)
    assert denoiser.footprint.cache_used < 120, "there was no room for both prompts"
    check_close(*predict(denoiser, GAPS), *predict(exact, GAPS), HALF)


def test_context_has_room_for_a_canvas_that_grows(masked_model, open_masked):
    _, path = masked_model("dream")
    plain = open_masked(path, "exact", spec=SMALL)
    sampling = replace(plain.spec.sampling, expand_id=2, max_free=16)
    growing = open_masked(path, "exact", spec={**SMALL, "sampling": sampling})
    assert (plain.footprint.cache_limit, growing.footprint.cache_limit) == (48, 64)
    growing.prefill(0, PROMPT)
    (prediction,) = predict(growing, [MASK] * 24)
    assert prediction.unexpanded_ids is not None
    assert 2 not in prediction.unexpanded_ids


def test_prompt_is_exact_unless_the_setting_names_another_mode(masked_model, open_masked):
    _, path = masked_model("dream")
    found = {mode: type(open_masked(path, mode)) for mode in PROMPT_ATTENTIONS}
    assert found == {**MODES, "auto": ExactDenoiser}


@pytest.mark.parametrize("mode", PROMPT_ATTENTIONS)
def test_model_trained_with_a_causal_prompt_is_always_cached(tiny_path, open_denoiser, opened, mode):
    settings = ModelSettings(threads=1, gpu_layers=0, prompt_attention=mode)
    denoiser = opened(denoiser_for(LlamaModel.load(tiny_path, settings), open_denoiser.mask, settings))
    assert type(denoiser) is LlamaDenoiser


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
