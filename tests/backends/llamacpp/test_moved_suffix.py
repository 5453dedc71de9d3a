"""Prompts whose suffix follows the prefix: a typed character moves the suffix's cells instead of decoding them."""

from dataclasses import replace

import numpy as np
import pytest
from margins import check_close

from dg_lsp.backends.llamacpp import LlamaDenoiser, LlamaModel, context, memory_estimate
from dg_lsp.canvas.layout import token_ids
from dg_lsp.canvas.spec import FimOrder, FimTokens, ModelSpec
from dg_lsp.errors import BackendError
from dg_lsp.settings import ModelSettings

PREFIX, SUFFIX, MIDDLE = 2, 3, 4
FIM = FimTokens(PREFIX, SUFFIX, MIDDLE, FimOrder.PREFIX_FIRST)
ATOL = 1e-2
FLAT = 5e-4
"""The same for the model with sliding windows, whose best token has a probability of 0.01."""
rng = np.random.default_rng(5)
BEFORE, AFTER, OTHER = (rng.integers(110, 250, size) for size in (120, 90, 90))


def prompt(before=BEFORE, after=AFTER):
    return token_ids([PREFIX, *before, SUFFIX, *after, MIDDLE])


@pytest.fixture
def denoiser(open_denoiser):
    return open_denoiser(replace(open_denoiser.mask, fim=FIM, max_prompt_tokens=512))


def predict(denoiser, slot=0):
    return denoiser.extend(slot, token_ids([7, 8]))


def fresh(denoiser, ids, slot=3):
    """The prediction of a prompt that was decoded as a whole."""
    denoiser.prefill(slot, ids[:0])
    denoiser.prefill(slot, ids)
    return predict(denoiser, slot)


def refresh(denoiser, slot=0):
    passes = []
    while count := denoiser.refresh(slot):
        passes.append(count)
    return passes


def check_exact(denoiser, ids, atol=ATOL):
    """After a refresh, the slot predicts what a fresh prompt predicts."""
    refresh(denoiser)
    assert denoiser.drift(0) == 0
    denoiser.prefill(0, ids)
    check_close(predict(denoiser), fresh(denoiser, ids), atol)


def test_typed_character_decodes_at_most_16_tokens(denoiser):
    denoiser.prefill(0, prompt())
    typed = BEFORE
    for number in range(1, 40):
        typed = np.append(typed, rng.integers(110, 250))
        assert denoiser.prefill(0, prompt(typed)) <= 16
        assert denoiser.drift(0) == number
        predict(denoiser)
    check_exact(denoiser, prompt(typed))


EDITS = {
    "deleted characters": (BEFORE[:-3], AFTER),
    "pasted text": (np.concatenate([BEFORE, OTHER[:40]]), AFTER),
    "edit far before the cursor": (np.concatenate([BEFORE[:60], OTHER[:2], BEFORE[61:]]), AFTER),
    "edit before the cursor and in the suffix": (BEFORE[:-1], np.concatenate([AFTER[:50], OTHER[:3], AFTER[55:]])),
}


@pytest.mark.parametrize(("before", "after"), EDITS.values(), ids=EDITS)
def test_edit_moves_the_part_of_the_suffix_that_is_the_same(denoiser, before, after):
    denoiser.prefill(0, prompt())
    predict(denoiser)
    ids = prompt(before, after)
    num_decoded = denoiser.prefill(0, ids)
    assert denoiser.drift(0) == 1
    assert num_decoded < len(after)
    assert denoiser.prefill(0, ids) == 0
    check_exact(denoiser, ids)


FRESH = {
    "another suffix": (BEFORE[:-1], OTHER),
    "cursor jump backwards": (BEFORE[:60], np.concatenate([BEFORE[60:], AFTER])[:90]),
    "cursor jump forwards": (np.concatenate([BEFORE, AFTER[:40]]), AFTER[40:]),
    "paste longer than the suffix": (np.concatenate([BEFORE, OTHER, OTHER[:10]]), AFTER),
    "short suffix": (BEFORE[:-1], AFTER[:8]),
    "edit in the suffix only": (BEFORE, np.concatenate([AFTER[:50], OTHER[:3], AFTER[55:]])),
    "no suffix sentinel": (BEFORE[:-1], None),
}


@pytest.mark.parametrize(("before", "after"), FRESH.values(), ids=FRESH)
def test_other_changes_decode_all_that_follows(denoiser, before, after):
    denoiser.prefill(0, prompt())
    ids = prompt(before, after) if after is not None else token_ids(before)
    denoiser.prefill(0, ids)
    assert denoiser.drift(0) == 0
    check_close(predict(denoiser), fresh(denoiser, ids), ATOL)


def test_moved_cells_are_an_approximation_that_a_refresh_ends(denoiser):
    """Otherwise the tests of a refresh would hold without one."""
    denoiser.prefill(0, prompt())
    ids = prompt(np.concatenate([BEFORE[:50], OTHER[:70]]))
    denoiser.prefill(0, ids)
    moved, exact = predict(denoiser), fresh(denoiser, ids)
    assert np.abs(moved.entropy - exact.entropy).max() > 10 * ATOL
    check_exact(denoiser, ids)


def test_refresh_takes_short_passes_between_which_the_user_may_type(denoiser):
    denoiser.prefill(0, prompt())
    typed = BEFORE[:-1]
    denoiser.prefill(0, prompt(typed))
    assert denoiser.refresh(0) == denoiser.refresh(0) == 16
    assert denoiser.drift(0) == 1
    typed = np.append(typed, OTHER[:2])
    assert denoiser.prefill(0, prompt(typed)) <= 16
    assert denoiser.drift(0) == 2
    rest, again = [16, 16, 16, 10], [16, 16, 16, 16, 16, 10]
    assert [denoiser.refresh(0) for _ in rest] == rest, "the refresh goes on where it was"
    assert denoiser.drift(0) == 1, "the first tokens were decoded before the last edit"
    assert refresh(denoiser) == again
    assert refresh(denoiser) == []
    check_exact(denoiser, prompt(typed))


def test_suffix_is_decoded_again_after_many_edits(denoiser, monkeypatch):
    monkeypatch.setattr(context, "MAX_EDITS", 3)
    denoiser.prefill(0, prompt())
    drifts = []
    for end in range(1, 8):
        denoiser.prefill(0, prompt(BEFORE[:-end]))
        drifts.append(denoiser.drift(0))
    assert drifts == [1, 2, 3, 0, 1, 2, 3]


def test_slots_move_independently_and_growth_keeps_moved_cells(open_denoiser, monkeypatch):
    monkeypatch.setattr(memory_estimate, "FIRST_TOKENS", 64)
    monkeypatch.setattr(memory_estimate, "_UBATCH", 256)
    denoiser = open_denoiser(replace(open_denoiser.mask, fim=FIM, max_prompt_tokens=512))
    for slot in (0, 1):
        denoiser.prefill(slot, prompt())
        denoiser.prefill(slot, prompt(BEFORE[: -1 - slot]))
    size = denoiser.footprint.cache_cells
    denoiser.prefill(2, prompt(OTHER))
    assert denoiser.footprint.cache_cells > size
    check_close(predict(denoiser), fresh(denoiser, prompt(BEFORE[:-1])), 0.1)
    check_exact(denoiser, prompt(BEFORE[:-1]))
    refresh(denoiser, 1)
    denoiser.prefill(1, prompt(BEFORE[:-2]))
    check_close(predict(denoiser, 1), fresh(denoiser, prompt(BEFORE[:-2])), ATOL)


def test_failed_move_leaves_the_slot_empty(denoiser, monkeypatch):
    denoiser.prefill(0, prompt())
    with monkeypatch.context() as patch:
        patch.setattr(denoiser._context._api, "llama_decode", lambda *_: -3)
        with pytest.raises(BackendError):
            denoiser.prefill(0, prompt(BEFORE[:-1]))
    assert denoiser.drift(0) == 0
    ids = prompt(BEFORE[:-1])
    assert denoiser.prefill(0, ids) == len(ids)
    check_close(predict(denoiser), fresh(denoiser, ids), ATOL)


def test_suffix_first_prompt_is_never_moved(open_denoiser):
    denoiser = open_denoiser()
    denoiser.prefill(0, token_ids([SUFFIX, *AFTER, PREFIX, *BEFORE, MIDDLE]))
    assert denoiser.prefill(0, token_ids([SUFFIX, *AFTER, PREFIX, *BEFORE, 200, MIDDLE])) == 2
    assert denoiser.drift(0) == 0


REFUSED = {"positions of several dimensions": 8, "no rotary positions": -1}


@pytest.mark.parametrize(("problem", "rope"), REFUSED.items(), ids=REFUSED)
def test_model_whose_positions_cannot_be_moved_decodes_the_suffix_and_warns(
    open_denoiser, monkeypatch, caplog, problem, rope
):
    api = open_denoiser()._context._api
    monkeypatch.setattr(api, "llama_model_rope_type", lambda _: rope)
    denoiser = open_denoiser(replace(open_denoiser.mask, fim=FIM, max_prompt_tokens=512))
    assert problem in caplog.text
    denoiser.prefill(0, prompt())
    assert denoiser.prefill(0, prompt(BEFORE[:-1])) > len(AFTER)
    assert denoiser.drift(0) == 0


@pytest.mark.parametrize("kind", ["yarn", "linear"])
def test_keys_that_llama_cpp_would_scale_at_each_move_are_not_moved(tiny_path, opened, kind):
    model = opened(LlamaModel.load(tiny_path, ModelSettings(threads=1, gpu_layers=0)))
    model.metadata = {**model.metadata, "qwen2.rope.scaling.type": kind}
    assert model.shift_problem == ("scaled rotations (yarn)" if kind == "yarn" else "")


def test_sliding_windows_never_miss_cells(tiny_repacked, opened):
    """llama.cpp reuses cells outside the window of 64 tokens; what needs them is decoded again."""
    settings = ModelSettings(threads=1, gpu_layers=0)
    model = LlamaModel.load(tiny_repacked, settings)
    spec = ModelSpec("tiny", model.vocab_size, None, (1,), fim=FIM, canvas_lengths=(), max_prompt_tokens=512)
    denoiser = opened(LlamaDenoiser(model, spec, settings))
    typed, num_cheap = BEFORE, 0
    for number in range(40):
        typed = typed[:-1] if number % 3 == 2 else np.append(typed, rng.integers(110, 250))
        num_cheap += denoiser.prefill(0, prompt(typed, AFTER[:18])) <= 16
        denoiser.extend(0, token_ids(OTHER[:30]))
    assert num_cheap > 30
    for before in (typed, typed[:36], typed):  # the second is a cursor jump to cells that have been reused
        ids = prompt(before, AFTER[:18])
        denoiser.prefill(0, ids)
        check_exact(denoiser, ids, FLAT)


def test_suffix_as_wide_as_the_window_is_not_moved(tiny_repacked, opened):
    settings = ModelSettings(threads=1, gpu_layers=0)
    model = LlamaModel.load(tiny_repacked, settings)
    spec = ModelSpec("tiny", model.vocab_size, None, (1,), fim=FIM, canvas_lengths=(), max_prompt_tokens=512)
    denoiser = opened(LlamaDenoiser(model, spec, settings))
    denoiser.prefill(0, prompt())
    assert denoiser.prefill(0, prompt(BEFORE[:-1])) > 64
    check_exact(denoiser, prompt(BEFORE[:-1]), FLAT)


def test_one_pass_of_a_refresh_for_each_key_keeps_the_drift_small(denoiser):
    typed = BEFORE[:60]
    denoiser.prefill(0, prompt(typed))
    drifts = []
    for token in BEFORE[60:110]:
        typed = np.append(typed, token)
        assert denoiser.prefill(0, prompt(typed)) <= 16
        predict(denoiser)
        assert 0 < denoiser.refresh(0) <= 16
        drifts.append(denoiser.drift(0))
    assert max(drifts) < 2 * len(AFTER) / 16 + 2
    check_exact(denoiser, prompt(typed))
