"""A context that begins small and grows says what one says that was large from the start, and forgets nothing."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_masked

from dg_lsp.backends.llamacpp import LlamaDenoiser, LlamaModel, context, memory_estimate
from dg_lsp.backends.llamacpp.diffusiongemma import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.loader import denoiser_for
from dg_lsp.backends.llamacpp.masked import ExactDenoiser, PerRequestDenoiser, ShiftedDenoiser
from dg_lsp.canvas.layout import token_ids
from dg_lsp.errors import BackendError, ModelMemoryError, RequestError
from dg_lsp.models.metadata import describe
from dg_lsp.settings import RuntimeSettings

LARGE = 2048
KINDS = {
    "cached": LlamaDenoiser,
    "conditioned": SelfConditionedDenoiser,
    "once": PerRequestDenoiser,
    "shifted": ShiftedDenoiser,
    "recomputed": ExactDenoiser,
}
rng = np.random.default_rng(3)
PROMPTS = [token_ids(rng.integers(110, 250, size)) for size in (300, 200, 310, 120)]
LONG = token_ids(rng.integers(110, 250, 700))


@pytest.fixture(autouse=True)
def small_first(monkeypatch):
    monkeypatch.setattr(memory_estimate, "FIRST_TOKENS", 64)
    monkeypatch.setattr(memory_estimate, "_UBATCH", 256)


@pytest.fixture
def open_kind(tiny_path, tiny_repacked, tmp_path, open_denoiser):
    opened = []

    def make(kind, **settings):
        settings = RuntimeSettings(
            threads=1,
            gpu_layers=0,
            prompt_attention={"once": "per_request", "shifted": "causal"}.get(kind, "auto"),
            **settings,
        )
        path = {"cached": tiny_path, "conditioned": tiny_repacked}.get(kind)
        if path is None:
            path = tmp_path / "dream.gguf"
            if not path.exists():
                tiny_masked.write(path, tiny_masked.make("dream", kv_heads=2))
        model = LlamaModel.load(path, settings)
        spec = open_denoiser.mask
        if kind != "cached":
            spec = describe(model.metadata, model.vocab_size, kind, model.tokenizer.specials())
        lengths = spec.canvas_lengths if kind == "conditioned" else (8, 16, 32)
        spec = replace(spec, max_prompt_tokens=800, canvas_lengths=lengths)
        if kind == "conditioned":  # of all the mass: which tokens make up 99 % may change by a rounding
            made = SelfConditionedDenoiser(model, spec, settings, mass=1.0)
        else:
            made = denoiser_for(model, spec, settings)
        assert type(made) is KINDS[kind]
        opened.append(made)
        return made

    yield make
    for denoiser in opened:
        denoiser.close()


def canvases(denoiser, number):
    mask = getattr(denoiser.spec.sampling, "mask_id", None)
    made = np.random.default_rng(number).integers(110, 250, (2, 16))
    if mask is not None:
        made[:, ::2] = mask
    return [token_ids(row) for row in made]


def said(denoiser, slot, number, temperature=0.0):
    return denoiser.predict(slot, canvases(denoiser, number), temperature, np.random.default_rng(number))


def same(left, right, atol=2e-3):
    """Where a prompt lies in the cache changes the order in which numbers are added."""
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose(one.confidence, other.confidence, atol=atol)
        np.testing.assert_allclose(one.entropy, other.entropy, atol=3 * atol)


@pytest.mark.parametrize("kind", KINDS)
def test_a_grown_context_says_what_a_large_one_says(open_kind, kind):
    small, large = open_kind(kind), open_kind(kind, context_length=LARGE)
    sizes = [small.footprint.cache_cells]
    assert sizes[0] < large.footprint.cache_cells
    for slot, prompt in enumerate(PROMPTS):
        assert small.prefill(slot, prompt) == large.prefill(slot, prompt)
        same(said(small, slot, slot), said(large, slot, slot))
        sizes.append(small.footprint.cache_cells)
    for denoiser in (small, large):
        denoiser.prefill(1, LONG)
    same(said(small, 1, 1), said(large, 1, 1))
    for slot, prompt in ((0, PROMPTS[0]), (3, PROMPTS[3]), (2, PROMPTS[2])):
        assert small.prefill(slot, prompt) == large.prefill(slot, prompt)  # what it said there is forgotten
        same(said(small, slot, slot), said(large, slot, slot))
    sizes.append(small.footprint.cache_cells)
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


def test_what_was_said_of_a_canvas_is_still_heard(open_kind):
    small, large = open_kind("conditioned"), open_kind("conditioned", context_length=LARGE)
    cells = small.context_length
    passes = []
    for denoiser in (small, large):
        denoiser.prefill(0, PROMPTS[0])
        first = said(denoiser, 0, 0)
        denoiser.prefill(1, LONG)
        passes.append((first, said(denoiser, 0, 0)))
    assert small.context_length > cells
    for grown, plain in zip(*passes, strict=True):
        same(grown, plain)
    assert np.abs(passes[0][0][0].entropy - passes[0][1][0].entropy).max() > 0.01, "the second pass heard the first"


@pytest.mark.parametrize("kind", ["cached", "conditioned"])
def test_what_the_slots_held_stays(open_kind, kind):
    denoiser = open_kind(kind)
    cells = denoiser.context_length
    for slot, prompt in enumerate(PROMPTS):
        assert denoiser.prefill(slot, prompt) == len(prompt)
    assert denoiser.context_length > cells
    assert [denoiser.prefill(slot, prompt) for slot, prompt in enumerate(PROMPTS)] == [0, 0, 0, 0]


def test_a_canvas_of_a_fill_may_be_what_makes_it_grow(open_kind):
    small, large = open_kind("cached"), open_kind("cached", context_length=LARGE)
    cells = small.context_length
    prompt = np.resize(PROMPTS[0], cells - 20)
    for denoiser in (small, large):
        denoiser.prefill(0, prompt)
    assert small.context_length == cells
    same(said(small, 0, 0), said(large, 0, 0))
    assert small.context_length > cells
    assert small.prefill(0, prompt) == 0


def test_so_may_tokens_that_are_appended(open_kind):
    small, large = open_kind("cached"), open_kind("cached", context_length=LARGE)
    cells = small.context_length
    prompt = np.resize(PROMPTS[0], cells - 4)
    for denoiser in (small, large):
        denoiser.prefill(0, prompt)
    same([small.extend(0, PROMPTS[1][:8])], [large.extend(0, PROMPTS[1][:8])])
    assert small.context_length > cells
    same([small.extend(0, PROMPTS[2][:8])], [large.extend(0, PROMPTS[2][:8])])


def test_nothing_is_looked_at_while_there_is_room(open_kind, monkeypatch):
    denoiser = open_kind("cached")
    monkeypatch.setattr(context, "check_fits", lambda *_, **__: pytest.fail("asked for memory"))
    denoiser.prefill(0, PROMPTS[0])
    said(denoiser, 0, 0)
    denoiser.extend(0, PROMPTS[1][:4])


def full(*_args, **_options):
    raise ModelMemoryError("made up")


@pytest.mark.parametrize("where", ["guard", "llama.cpp"])
def test_without_memory_other_slots_go_and_what_is_too_long_alone_is_refused(open_kind, monkeypatch, where):
    denoiser, large = open_kind("cached"), open_kind("cached", context_length=LARGE)
    cells = denoiser.context_length
    for slot in (0, 1):
        denoiser.prefill(slot, PROMPTS[1])
        large.prefill(slot, PROMPTS[1])
    before = said(denoiser, 0, 0)
    with monkeypatch.context() as patch:
        if where == "guard":
            patch.setattr(context, "check_fits", full)
        else:
            native, init = denoiser._context._api, denoiser._context._api.llama_init_from_model
            patch.setattr(
                native, "llama_init_from_model", lambda m, params: init(m, params) if params.n_ctx <= cells else None
            )
        with pytest.raises(ModelMemoryError):
            denoiser.prefill(1, LONG)
        assert denoiser.context_length == cells
        same(said(denoiser, 0, 0), before)
        assert denoiser.prefill(0, PROMPTS[1]) == 0
        assert denoiser.prefill(2, PROMPTS[0]) == len(PROMPTS[0])
        same(said(denoiser, 0, 0), before)
        assert denoiser.prefill(1, PROMPTS[1]) > 0, "the least recently used had to go"
    denoiser.prefill(1, LONG)
    large.prefill(1, LONG)
    same(said(denoiser, 1, 5), said(large, 1, 5))


def test_a_cache_that_is_lost_while_it_grows_is_begun_anew(open_kind, monkeypatch):
    denoiser = open_kind("cached")
    denoiser.prefill(0, PROMPTS[0])
    before = said(denoiser, 0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(denoiser._context._api, "llama_init_from_model", lambda *_: None)
        for _ in range(2):
            with pytest.raises(BackendError, match="free some"):
                denoiser.prefill(1, LONG)
        with pytest.raises(BackendError, match="free some"):
            denoiser.prefill(0, PROMPTS[0])
    assert denoiser.prefill(0, PROMPTS[0]) == len(PROMPTS[0])
    same(said(denoiser, 0, 0), before)
    assert denoiser.prefill(1, LONG) == len(LONG)


def test_a_state_that_cannot_be_taken_along_is_no_wrong_answer(open_kind, monkeypatch):
    denoiser = open_kind("cached")
    denoiser.prefill(0, PROMPTS[0])
    before = said(denoiser, 0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(denoiser._context._api, "llama_state_seq_set_data", lambda *_: 0)
        with pytest.raises(BackendError, match="context_length"):
            denoiser.prefill(1, LONG)
    assert denoiser.prefill(0, PROMPTS[0]) == len(PROMPTS[0])
    same(said(denoiser, 0, 0), before)


def test_without_memory_canvases_are_computed_one_after_the_other(open_kind, monkeypatch):
    small, large = open_kind("recomputed"), open_kind("recomputed", context_length=LARGE)
    for denoiser in (small, large):
        denoiser.prefill(0, PROMPTS[0])
    monkeypatch.setattr(context, "check_fits", full)
    same(said(small, 0, 0), said(large, 0, 0))
    small.prefill(0, LONG)
    with pytest.raises(ModelMemoryError):
        said(small, 0, 0)


def test_no_more_than_the_budget_allows(open_kind):
    denoiser = open_kind("cached", num_slots=1)
    limit = denoiser.footprint.cache_limit
    denoiser.prefill(0, np.resize(LONG, denoiser.prompt_limit))
    assert denoiser.context_length <= limit
    with pytest.raises(RequestError):
        denoiser.prefill(0, np.resize(LONG, denoiser.prompt_limit + 1))


def test_a_length_that_is_set_is_made_at_once(open_kind):
    assert open_kind("cached", context_length=1024).context_length == 1024


def test_candidates_of_the_device_are_taken_along(open_denoiser):
    denoiser = open_denoiser(replace(open_denoiser.mask, max_prompt_tokens=700), device_candidates=True, num_slots=2)
    cells = denoiser.context_length
    denoiser.prefill(0, PROMPTS[0])
    before = said(denoiser, 0, 0)
    denoiser.prefill(1, np.resize(LONG, cells - 200))
    assert denoiser.context_length > cells
    same(said(denoiser, 0, 0), before)
