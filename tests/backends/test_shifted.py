"""Dream, RND1 and Open-dCoder over a cached prompt, relabelled, beside what numpy computes of the same weights."""

import numpy as np
import pytest
import tiny_masked
from margins import check_close
from tiny_masked import MASK

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.loader import denoiser_for
from dg_lsp.backends.llamacpp.masked import ExactDenoiser, ShiftedDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.errors import BackendError, ModelUnsupportedError, RequestError
from dg_lsp.models.metadata import describe
from dg_lsp.settings import PROMPT_ATTENTIONS, RuntimeSettings

CACHED = RuntimeSettings(threads=1, gpu_layers=0, num_slots=2, prompt_attention="causal")
RNG = np.random.default_rng(0)
PROMPT = token_ids(np.random.default_rng(1).integers(5, 200, 40))
HOLES = token_ids([MASK, 21, MASK, MASK, 22, MASK, 23])


def opened(path, settings=CACHED):
    model = LlamaModel.load(path, settings)
    spec = describe(model.metadata, model.vocab_size, path.stem, model.tokenizer.specials())
    try:
        return denoiser_for(model, spec, settings)
    except ModelUnsupportedError:
        model.close()
        raise


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The weights of an architecture, and their file."""
    folder = tmp_path_factory.mktemp("masked")

    def write(architecture):
        tiny = tiny_masked.make(architecture, kv_heads=4 if architecture == "llada-moe" else 2)
        name = "Open dCoder" if architecture == "qwen2" else ""
        return tiny, tiny_masked.write(folder / f"{architecture}.gguf", tiny, name=name)

    return write


@pytest.fixture(scope="module", params=["dream", "rnd1", "qwen2"])
def pair(request, written):
    tiny, path = written(request.param)
    denoiser = opened(path)
    yield tiny, denoiser
    denoiser.close()


def predict(denoiser, *canvases, slot=0):
    return denoiser.predict(slot, [token_ids(canvas) for canvas in canvases], 0.0, RNG)


def check_says(prediction, denoiser, tiny, prompt, canvas):
    """What the weights say where all of the prompt but its last token is encoded causally, in half precision."""
    num_causal = max(0, len(prompt) - 1)
    tiny_masked.check(prediction, tiny, prompt, canvas, denoiser.spec.banned_ids, 1e-2, num_causal)


def test_a_cached_prompt_is_causal_and_its_last_token_sees_the_canvas(pair):
    tiny, denoiser = pair
    assert isinstance(denoiser, ShiftedDenoiser)
    for prompt in (PROMPT, PROMPT[:1], PROMPT[:0], PROMPT[:9]):
        denoiser.prefill(0, prompt)
        for canvas in (HOLES, token_ids([MASK] * 3), token_ids([20, MASK])):
            (prediction,) = predict(denoiser, canvas)
            check_says(prediction, denoiser, tiny, prompt, canvas)


def test_canvases_of_one_step_do_not_see_each_other(pair):
    tiny, denoiser = pair
    denoiser.prefill(0, PROMPT)
    canvases = [HOLES, [MASK] * 60, [20, 30], [MASK]]
    for canvas, prediction in zip(canvases, predict(denoiser, *canvases), strict=True):
        check_says(prediction, denoiser, tiny, PROMPT, canvas)


def test_typing_goes_on_where_the_cache_ends(pair):
    tiny, denoiser = pair
    denoiser.prefill(0, PROMPT[:0])
    assert denoiser.prefill(0, PROMPT[:30]) == 29, "the last one is decoded by every step"
    assert denoiser.prefill(0, PROMPT[:30]) == 0
    assert denoiser.prefill(0, PROMPT[:31]) == 1
    assert denoiser.prefill(0, PROMPT[:20]) == 0
    changed = token_ids([*PROMPT[:18], 77, 78])
    assert denoiser.prefill(0, changed) == 1
    check_says(predict(denoiser, HOLES)[0], denoiser, tiny, changed, HOLES)


def test_slots_hold_a_prompt_each(pair):
    tiny, denoiser = pair
    other = PROMPT[5:20]
    denoiser.prefill(0, PROMPT)
    denoiser.prefill(1, other)
    for slot, prompt in ((0, PROMPT), (1, other), (0, PROMPT)):
        check_says(predict(denoiser, HOLES, slot=slot)[0], denoiser, tiny, prompt, HOLES)


def test_it_cannot_go_on_causally(pair):
    _, denoiser = pair
    with pytest.raises(BackendError, match="no causal head"):
        denoiser.extend(0, token_ids([12]))


def test_what_would_not_fit_into_a_batch_is_refused(pair):
    _, denoiser = pair
    denoiser.prefill(0, PROMPT)
    with pytest.raises(RequestError, match="together"):
        predict(denoiser, *[[MASK] * 64] * 8)
    assert len(predict(denoiser, *[[MASK] * 63] * 8)) == 8


def test_a_bad_prompt_leaves_the_slot_as_it_was(pair):
    tiny, denoiser = pair
    denoiser.prefill(0, PROMPT)
    with pytest.raises(RequestError):
        denoiser.prefill(0, token_ids([10**6]))
    check_says(predict(denoiser, HOLES)[0], denoiser, tiny, PROMPT, HOLES)


def test_a_failed_prefill_leaves_nothing(pair, monkeypatch):
    _, denoiser = pair
    denoiser.prefill(0, PROMPT[:0])
    with monkeypatch.context() as patch:
        patch.setattr(denoiser._context, "decode", lambda **_: 1)
        with pytest.raises(BackendError):
            denoiser.prefill(0, PROMPT)
    assert denoiser.prefill(0, PROMPT) == 39


@pytest.mark.parametrize("architecture", [*tiny_masked.ARCHITECTURES, "qwen2"])
def test_without_a_wish_everything_is_computed_as_it_was_trained(written, architecture):
    _, path = written(architecture)
    for cache in ("auto", "exact"):
        denoiser = opened(path, RuntimeSettings(threads=1, gpu_layers=0, prompt_attention=cache))
        assert isinstance(denoiser, ExactDenoiser)
        denoiser.close()


@pytest.mark.parametrize(
    ("architecture", "cache", "words"),
    [
        ("llada", "causal", r"never was a causal model.*set runtime\.prompt_attention to per_request or auto"),
        ("llada-moe", "causal", r"llada-moe without a KV cache only; set runtime\.prompt_attention to auto"),
        ("llada-moe", "per_request", r"llada-moe without a KV cache only; set runtime\.prompt_attention to auto"),
    ],
)
def test_what_cannot_be_cached_says_so(written, architecture, cache, words):
    _, path = written(architecture)
    with pytest.raises(ModelUnsupportedError, match=words):
        opened(path, RuntimeSettings(threads=1, gpu_layers=0, prompt_attention=cache))


def test_a_model_trained_on_cached_prompts_always_has_them(tiny_path, open_denoiser):
    for cache in PROMPT_ATTENTIONS:
        settings = RuntimeSettings(threads=1, gpu_layers=0, prompt_attention=cache)
        denoiser = denoiser_for(LlamaModel.load(tiny_path, settings), open_denoiser.mask, settings)
        assert type(denoiser) is LlamaDenoiser
        denoiser.close()


def test_both_say_the_same_after_a_prompt_of_one_token(written):
    """Nothing of it is causal then: the two differ by half-precision keys and values only."""
    _, path = written("dream")
    exact, cached = opened(path, RuntimeSettings(threads=1, gpu_layers=0)), opened(path)
    for denoiser in (exact, cached):
        denoiser.prefill(0, PROMPT[:1])
    (left,), (right,) = predict(exact, [MASK] * 8), predict(cached, [MASK] * 8)
    check_close(left, right, 1e-2)
    exact.close()
    cached.close()
