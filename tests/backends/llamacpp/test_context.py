"""A context that has grown keeps the slots and computes the same as a context that was large at once."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from margins import check_close

from dg_lsp.backends.llamacpp import context, memory_estimate
from dg_lsp.canvas.layout import concat, token_ids
from dg_lsp.errors import BackendError, ModelMemoryError

LARGE = 2048
KINDS = ("cached", "conditioned", "per_request", "exact")
rng = np.random.default_rng(3)
PROMPTS = [token_ids(rng.integers(110, 250, size)) for size in (300, 200, 310, 120)]
LONG = token_ids(rng.integers(110, 250, 700))
ATOL = 1e-2
"""The position of a prompt in the cache changes the order of sums."""


pytestmark = pytest.mark.parametrize("is_alone", [False, True], indirect=True)


@pytest.fixture(autouse=True)
def small_first(monkeypatch, is_alone):
    monkeypatch.setattr(memory_estimate, "FIRST_TOKENS", 64)
    monkeypatch.setattr(memory_estimate, "_UBATCH", 256)


@pytest.fixture
def open_kind(open_denoiser, open_gemma, open_masked):
    def make(kind="cached", **settings):
        changes = {"max_prompt_tokens": 800, "canvas_lengths": (8, 16, 32)}
        if kind == "cached":
            return open_denoiser(replace(open_denoiser.mask, **changes), **settings)
        if kind == "conditioned":
            return open_gemma(spec=changes, mass=1.0, **settings)
        return open_masked("dream", spec=changes, prompt_attention=kind, **settings)

    return make


def cells(denoiser):
    return denoiser.footprint.cache_cells


def predict(denoiser, slot, seed):
    canvases = np.random.default_rng(seed).integers(110, 250, (2, 16))
    if (mask := getattr(denoiser.spec.sampling, "mask_id", None)) is not None:
        canvases[:, ::2] = mask
    return denoiser.predict(slot, list(map(token_ids, canvases)), 0.0, np.random.default_rng(seed))


def check_same(predictions, expected):
    for pair in zip(predictions, expected, strict=True):
        check_close(*pair, ATOL)


@pytest.mark.parametrize("kind", KINDS)
def test_grown_context_predicts_what_a_large_one_predicts(open_kind, kind):
    small, large = open_kind(kind), open_kind(kind, context_length=LARGE)
    sizes = [cells(small)]
    assert sizes[0] < cells(large)
    for slot, prompt in enumerate(PROMPTS):
        assert small.prefill(slot, prompt) == large.prefill(slot, prompt)
        check_same(predict(small, slot, slot), predict(large, slot, slot))
        sizes.append(cells(small))
    for denoiser in (small, large):
        denoiser.prefill(1, LONG)
    check_same(predict(small, 1, 1), predict(large, 1, 1))
    sizes.append(cells(small))
    for slot in (0, 3, 2):
        assert small.prefill(slot, PROMPTS[slot]) == large.prefill(slot, PROMPTS[slot])
        check_same(predict(small, slot, slot), predict(large, slot, slot))
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


@pytest.mark.parametrize("where", ["estimate", "llama.cpp"])
def test_without_memory_slots_are_evicted_and_too_long_prompts_are_refused(open_kind, monkeypatch, where):
    denoiser, large = open_kind(), open_kind(context_length=LARGE)
    size = cells(denoiser)
    for slot in (0, 1):
        denoiser.prefill(slot, PROMPTS[1])
    before = predict(denoiser, 0, 0)
    with monkeypatch.context() as patch:
        if where == "estimate":
            patch.setattr(memory_estimate, "check_fits", Mock(side_effect=ModelMemoryError("made up")))
        else:
            api = denoiser._context._api
            init = api.llama_init_from_model
            patch.setattr(
                api, "llama_init_from_model", lambda m, params: init(m, params) if params.n_ctx <= size else None
            )
        with pytest.raises(ModelMemoryError):
            denoiser.prefill(1, LONG)
        assert cells(denoiser) == size
        check_same(predict(denoiser, 0, 0), before)
        assert denoiser.prefill(0, PROMPTS[1]) == 0
        assert denoiser.prefill(2, PROMPTS[0]) == len(PROMPTS[0])
        check_same(predict(denoiser, 0, 0), before)
        assert denoiser.prefill(1, PROMPTS[1]) > 0, "the least recently used slot was evicted"
    denoiser.prefill(1, LONG)
    large.prefill(1, LONG)
    check_same(predict(denoiser, 1, 5), predict(large, 1, 5))


@pytest.mark.parametrize(
    ("function", "result", "advice"),
    [("llama_init_from_model", None, "free some memory"), ("llama_state_seq_set_data", 0, "context_length")],
    ids=["no memory for any context", "state cannot be restored"],
)
def test_cache_that_is_lost_during_growth_starts_empty(open_kind, monkeypatch, function, result, advice):
    denoiser = open_kind()
    denoiser.prefill(0, PROMPTS[0])
    before = predict(denoiser, 0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(denoiser._context._api, function, lambda *_: result)
        with pytest.raises(BackendError, match=advice):
            denoiser.prefill(0, concat(PROMPTS[0], LONG))
    assert denoiser.prefill(0, PROMPTS[0]) == len(PROMPTS[0])
    check_same(predict(denoiser, 0, 0), before)
    assert denoiser.prefill(1, LONG) == len(LONG)


@pytest.mark.parametrize("most", [0, context.MAX_COPIED])
def test_a_prompt_that_was_copied_out_and_cannot_be_copied_back_is_decoded_again(
    open_kind, monkeypatch, is_alone, most
):
    denoiser = open_kind()
    monkeypatch.setattr(context, "MAX_COPIED", most)
    for slot in (0, 1):
        denoiser.prefill(slot, PROMPTS[1])
    with monkeypatch.context() as patch:
        patch.setattr(denoiser._context._api, "llama_state_seq_set_data", lambda *_: 0)
        assert denoiser.prefill(0, PROMPTS[1]) == (len(PROMPTS[1]) if is_alone and most else 0)
    check_same(predict(denoiser, 0, 0), predict(denoiser, 1, 0))


def test_a_long_conversation_that_stays_in_the_context_leaves_room_for_a_prompt_that_comes_back(
    open_kind, monkeypatch, is_alone
):
    denoiser = open_kind(context_length=1024)
    denoiser.prefill(0, PROMPTS[0])
    before = predict(denoiser, 0, 0)
    denoiser.prefill(1, LONG)
    monkeypatch.setattr(context, "MAX_COPIED", 0)
    denoiser.prefill(1, concat(LONG, LONG[:90]))
    assert denoiser.prefill(0, PROMPTS[0]) == (0 if is_alone else len(PROMPTS[0]))
    check_same(predict(denoiser, 0, 0), before)
    assert denoiser.prefill(1, LONG) == len(LONG), "there was no room for both"


def test_context_does_not_grow_beyond_the_limit_of_its_budget(open_kind):
    denoiser = open_kind(num_slots=1)
    limit = denoiser.footprint.cache_limit
    for size in (limit // 2 + 1, denoiser._budget.prompt_limit):  # the second size makes the context double
        denoiser.prefill(0, np.resize(LONG, size))
    assert limit / 2 < cells(denoiser) <= limit
