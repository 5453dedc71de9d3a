"""Prompts computed in both directions once, beside what numpy computes of the same weights."""

import numpy as np
import pytest
import tiny_masked
from tiny_masked import MASK

from dg_lsp.backends.llamacpp.loader import denoiser_for
from dg_lsp.backends.llamacpp.masked import ExactDenoiser, PerRequestDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.errors import BackendError, RequestError
from dg_lsp.models.metadata import describe
from dg_lsp.settings import RuntimeSettings

RNG = np.random.default_rng(0)
PROMPT = token_ids(np.random.default_rng(1).integers(5, 200, 40))
HOLES = token_ids([MASK, 21, MASK, MASK, 22, MASK, 23])
FILLED = token_ids([31, 21, 32, MASK, 22, 33, 23])


def opened(path, cache="per_request", **settings):
    settings = RuntimeSettings(**{"threads": 1, "gpu_layers": 0, "num_slots": 2, "prompt_attention": cache, **settings})
    model = LlamaModel.load(path, settings)
    spec = describe(model.metadata, model.vocab_size, path.stem, model.tokenizer.specials())
    return denoiser_for(model, spec, settings)


@pytest.fixture(scope="module", params=["dream", "rnd1", "qwen2", "llada"])
def pair(request, tmp_path_factory):
    """The model, and the same computed again at each step."""
    tiny = tiny_masked.make(request.param, kv_heads=2)
    path = tmp_path_factory.mktemp("masked") / f"{request.param}.gguf"
    tiny_masked.write(path, tiny, name="Open dCoder" if request.param == "qwen2" else "")
    denoiser, exact = opened(path), opened(path, "exact")
    assert isinstance(denoiser, PerRequestDenoiser)
    assert isinstance(exact, ExactDenoiser)
    yield denoiser, exact
    denoiser.close()
    exact.close()


def predict(denoiser, *canvases, slot=0):
    return denoiser.predict(slot, [token_ids(canvas) for canvas in canvases], 0.0, RNG)


def same(left, right):
    # half-precision keys and values on one side only: a near tie may fall the other way
    np.testing.assert_allclose(left.confidence, right.confidence, atol=1e-2)
    np.testing.assert_allclose(left.entropy, right.entropy, atol=3e-2)


def prefill(pair, prompt):
    return [denoiser.prefill(0, token_ids(prompt)) for denoiser in pair]


@pytest.mark.parametrize("length", [0, 1, 2, 40])
def test_the_first_step_after_a_prompt_is_exact(pair, length):
    for canvas in (HOLES, FILLED, [20, MASK]):
        assert prefill(pair, PROMPT[:length]) == [length, length]
        same(predict(pair[0], canvas)[0], predict(pair[1], canvas)[0])


def test_the_next_steps_see_the_prompt_as_it_was(pair):
    denoiser, exact = pair
    prefill(pair, PROMPT)
    (first,) = predict(denoiser, HOLES)
    (later,) = predict(denoiser, FILLED)
    same(first, predict(denoiser, HOLES)[0])
    same(later, predict(denoiser, FILLED)[0])
    assert later.confidence[3] != pytest.approx(predict(exact, FILLED)[0].confidence[3], abs=1e-4)


def test_a_step_decodes_its_canvases_only(pair, monkeypatch):
    denoiser, _ = pair
    sizes, decode = [], denoiser._context.decode

    def counted(**how):
        sizes.append(denoiser._context.batch.native.n_tokens)
        return decode(**how)

    monkeypatch.setattr(denoiser._context, "decode", counted)
    denoiser.prefill(0, PROMPT)
    for canvases in ([HOLES], [HOLES, FILLED], [FILLED], [[20, 30]]):
        predict(denoiser, *canvases)
    ride = int(denoiser.spec.is_shifted)
    assert sizes == [47, 2 * (7 + ride), 7 + ride]
    denoiser.prefill(0, PROMPT)
    predict(denoiser, HOLES, FILLED)
    assert sizes[3:] == [47, 7 + ride], "the first canvas goes with the prompt, the others come after it"


def test_slots_hold_a_prompt_each(pair):
    denoiser, exact = pair
    other = PROMPT[7:20]
    for each in pair:
        each.prefill(0, PROMPT)
        each.prefill(1, other)
    for slot in (0, 1):
        same(predict(denoiser, HOLES, slot=slot)[0], predict(exact, HOLES, slot=slot)[0])
    again = [predict(denoiser, HOLES, slot=slot)[0] for slot in (0, 1)]
    for slot in (1, 0):
        same(again[slot], predict(denoiser, HOLES, slot=slot)[0])


def test_a_slot_that_was_given_up_is_computed_again(tmp_path):
    path = tiny_masked.write(tmp_path / "dream.gguf", tiny_masked.make("dream"))
    denoiser, exact = opened(path, context_length=256), opened(path, "exact")
    long = token_ids(np.tile(PROMPT, 3))
    for each in (denoiser, exact):
        each.prefill(0, PROMPT)
        each.prefill(1, long)
    same(predict(denoiser, HOLES)[0], predict(exact, HOLES)[0])
    same(predict(denoiser, [MASK] * 100, slot=1)[0], predict(exact, [MASK] * 100, slot=1)[0])
    assert denoiser._cache.held(0).size == 0, "there was no room for both"
    same(predict(denoiser, HOLES)[0], predict(exact, HOLES)[0])
    denoiser.close()
    exact.close()


def test_what_does_not_fit_into_one_batch_is_refused(tmp_path):
    path = tiny_masked.write(tmp_path / "dream.gguf", tiny_masked.make("dream"))
    denoiser = opened(path, context_length=256)
    with pytest.raises(RequestError, match="prompt"):
        denoiser.prefill(0, token_ids([20] * 200))
    denoiser.prefill(0, token_ids([20] * 128))
    with pytest.raises(RequestError, match="do not fit"):
        predict(denoiser, [MASK] * 140)
    assert len(predict(denoiser, [MASK] * 128)) == 1
    denoiser.close()


def test_a_failed_step_leaves_a_prompt_to_compute(pair, monkeypatch):
    denoiser, exact = pair
    prefill(pair, PROMPT)
    with monkeypatch.context() as patch:
        patch.setattr(denoiser._context, "decode", lambda **_: 1)
        with pytest.raises(BackendError):
            predict(denoiser, HOLES)
    same(predict(denoiser, HOLES)[0], predict(exact, HOLES)[0])
