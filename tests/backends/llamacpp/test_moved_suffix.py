"""Prompts whose suffix follows the prefix: a typed character moves the suffix's cells instead of decoding them."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_masked
from margins import check_close
from tiny_diffusiongemma import VOCAB_SIZE

from dg_lsp.backends.llamacpp import context, memory_estimate
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.canvas.layout import NOTHING, token_ids
from dg_lsp.canvas.spec import FimOrder, FimTokens, ModelSpec
from dg_lsp.context.document import Snapshot
from dg_lsp.context.window import NO_SNIPPETS, Snippet, Snippets, SnippetSource
from dg_lsp.engine.decoder_selection import measure_costs
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.engine.request import FillRequest
from dg_lsp.errors import BackendError
from dg_lsp.settings import CompletionSettings

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
def open_prefix_first(open_denoiser):
    """Opens a model whose prompts begin with the prefix."""
    return lambda: open_denoiser(replace(open_denoiser.mask, fim=FIM, max_prompt_tokens=512))


@pytest.fixture
def denoiser(open_prefix_first):
    return open_prefix_first()


def predict(denoiser, slot=0):
    return denoiser.extend(slot, token_ids([7, 8]))


def fresh(denoiser, ids, slot=3):
    """The prediction of a prompt that was decoded as a whole."""
    denoiser.prefill(slot, ids[:0])
    denoiser.prefill(slot, ids)
    return predict(denoiser, slot)


def drift(denoiser, slot=0):
    """Edits of the prefix that kept states of the suffix have not seen; 0 if the slot is exact."""
    return denoiser._cache._drift(slot).num_edits


def refresh(denoiser, slot=0):
    """The tokens of all passes."""
    return list(iter(lambda: denoiser.refresh(slot), 0))


def check_exact(denoiser, ids, atol=ATOL):
    """After a refresh, the slot predicts what a fresh prompt predicts."""
    refresh(denoiser)
    assert drift(denoiser) == 0
    denoiser.prefill(0, ids)
    check_close(predict(denoiser), fresh(denoiser, ids), atol)


EDITS = {
    "deleted characters": (BEFORE[:-3], AFTER),
    "pasted text": (np.concatenate([BEFORE, OTHER[:40]]), AFTER),
    "edit far before the cursor": (np.concatenate([BEFORE[:60], OTHER[:2], BEFORE[61:]]), AFTER),
    "edit before the cursor and in the suffix": (BEFORE[:-1], np.concatenate([AFTER[:50], OTHER[:3], AFTER[55:]])),
}


@pytest.mark.parametrize(("before", "after"), EDITS.values(), ids=EDITS)
def test_edit_moves_the_part_of_the_suffix_that_is_the_same_at_once_or_in_pieces(denoiser, before, after):
    ids = prompt(before, after)
    denoiser.prefill(0, prompt())
    predict(denoiser)
    num_decoded = denoiser.prefill(0, ids)
    assert drift(denoiser) == 1
    assert num_decoded < len(after)
    assert denoiser.prefill(0, ids) == 0
    check_exact(denoiser, ids)
    denoiser.prefill(0, NOTHING)
    denoiser.prefill(0, prompt())
    pieces = [denoiser.prefill(0, ids, 16)]
    while pieces[-1] == 16:
        assert drift(denoiser) > 0
        pieces.append(denoiser.prefill(0, ids, 16))
    assert max(pieces) <= 16
    assert sum(pieces) == num_decoded
    assert drift(denoiser) > 0
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
    assert drift(denoiser) == 0
    check_close(predict(denoiser), fresh(denoiser, ids), ATOL)


def test_refresh_takes_short_passes_between_which_the_user_may_type(denoiser):
    denoiser.prefill(0, prompt())
    typed = BEFORE[:-1]
    denoiser.prefill(0, prompt(typed))
    assert denoiser.refresh(0) == denoiser.refresh(0) == 16
    assert drift(denoiser) == 1
    typed = np.append(typed, OTHER[:2])
    assert denoiser.prefill(0, prompt(typed)) <= 16
    assert drift(denoiser) == 2
    assert [denoiser.refresh(0) for _ in range(4)] == [16, 16, 16, 10], "the refresh goes on where it was"
    assert drift(denoiser) == 1, "the first tokens were decoded before the last edit"
    assert refresh(denoiser) == [16, 16, 16, 16, 16, 10]
    assert refresh(denoiser) == []
    check_exact(denoiser, prompt(typed))


def test_suffix_is_decoded_again_after_many_edits(denoiser, monkeypatch):
    monkeypatch.setattr(context, "MAX_EDITS", 3)
    denoiser.prefill(0, prompt())
    drifts = []
    for end in range(1, 8):
        denoiser.prefill(0, prompt(BEFORE[:-end]))
        drifts.append(drift(denoiser))
    assert drifts == [1, 2, 3, 0, 1, 2, 3]


@pytest.mark.usefixtures("is_alone")
def test_slots_move_independently_and_growth_keeps_moved_cells(open_prefix_first, monkeypatch):
    monkeypatch.setattr(memory_estimate, "FIRST_TOKENS", 64)
    monkeypatch.setattr(memory_estimate, "_UBATCH", 256)
    denoiser = open_prefix_first()
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
    assert drift(denoiser) == 0
    ids = prompt(BEFORE[:-1])
    assert denoiser.prefill(0, ids) == len(ids)
    check_close(predict(denoiser), fresh(denoiser, ids), ATOL)


@pytest.mark.parametrize("rope", [8, -1], ids=["positions of several dimensions", "no rotary positions"])
def test_model_whose_positions_cannot_be_moved_decodes_the_suffix_and_warns(
    open_prefix_first, monkeypatch, caplog, rope
):
    monkeypatch.setattr(library().api, "llama_model_rope_type", lambda _: rope)
    denoiser = open_prefix_first()
    assert "decodes the suffix again" in caplog.text
    denoiser.prefill(0, prompt())
    assert denoiser.prefill(0, prompt(BEFORE[:-1])) > len(AFTER)
    assert drift(denoiser) == 0


@pytest.mark.parametrize(("kind", "can_move"), [("yarn", False), ("linear", True)])
def test_keys_that_llama_cpp_would_scale_at_each_move_are_not_moved(denoiser, kind, can_move):
    model = denoiser._model
    model.metadata = {**model.metadata, "qwen2.rope.scaling.type": kind}
    assert model.can_move_keys is can_move


@pytest.fixture
def windowed(open_denoiser, tiny_repacked):
    """A denoiser whose layers have sliding windows of 64 tokens."""
    spec = ModelSpec("tiny", VOCAB_SIZE, None, (1,), fim=FIM, canvas_lengths=(), max_prompt_tokens=512)
    return open_denoiser(spec, path=tiny_repacked)


def test_sliding_windows_never_miss_cells(windowed):
    """llama.cpp reuses cells outside the window; what needs them is decoded again."""
    typed, num_cheap = BEFORE, 0
    for number in range(40):
        typed = typed[:-1] if number % 3 == 2 else np.append(typed, rng.integers(110, 250))
        num_cheap += windowed.prefill(0, prompt(typed, AFTER[:18])) <= 16
        windowed.extend(0, token_ids(OTHER[:30]))
    assert num_cheap > 30
    for before in (typed, typed[:36], typed):  # the second is a cursor jump to cells that have been reused
        ids = prompt(before, AFTER[:18])
        windowed.prefill(0, ids)
        check_exact(windowed, ids, FLAT)


def test_suffix_as_wide_as_the_window_is_not_moved(windowed):
    windowed.prefill(0, prompt())
    assert windowed.prefill(0, prompt(BEFORE[:-1])) > 64
    check_exact(windowed, prompt(BEFORE[:-1]), FLAT)


SEPARATOR = 0
SENTINELS = {"fim_ids": {"sep": SEPARATOR, "pre": PREFIX, "suf": SUFFIX, "mid": MIDDLE}}
FILES = Snippets((Snippet(SnippetSource.OPEN_FILES, "b.py", "def h():\n    return 1\n"),), 0.9)
PROMPTS = {
    "prefix first": (SENTINELS, NO_SNIPPETS),
    "prefix first after other files": (SENTINELS, FILES),
    "prefix only": ({"tokens": tiny_masked.TOKENS, "add_start": True}, NO_SNIPPETS),
}


@pytest.mark.parametrize(("tokens", "snippets"), PROMPTS.values(), ids=PROMPTS)
def test_fill_while_typing_decodes_at_most_16_prompt_tokens_and_idle_time_makes_the_prompt_exact(
    write_model, open_masked, tokens, snippets
):
    denoiser = open_masked(write_model(**tokens))
    settings = CompletionSettings(deadline_ms=60_000, early_stop_ms=0, max_tokens=24)
    engine = LocalEngine(denoiser, denoiser.tokenizer, settings, measure_costs(denoiser))
    before, after = "def f(self):\n    return self.x\n" * 4, "\n\ndef g(self):\n    return f(self)\n" * 4

    def fill(typed):
        snapshot = Snapshot("file:///a.py", before + typed + after)
        return engine.fill(FillRequest(snapshot, len(before + typed), snippets=snippets))

    first = fill("")
    assert (SEPARATOR in denoiser._cache.ids(first.slot)) is bool(snippets.chunks)
    for typed in ("x", "xy", "xyz", "xy", "xy = ", ""):
        result = fill(typed)
        assert result.prompt_tokens - result.cached_tokens <= 16
    is_moved = denoiser.spec.fim is not None
    assert drift(denoiser, result.slot) == (6 if is_moved else 0)
    assert len(list(engine.refresh())) >= (2 if is_moved else 0)
    assert drift(denoiser, result.slot) == 0
    assert drift(denoiser, fill("").slot) == 0
