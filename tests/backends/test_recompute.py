"""Masked diffusion models of every architecture that llama.cpp has, computed anew at each step, against numpy."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_masked
from margins import check_close
from tiny_masked import MASK

from dg_lsp.backends.llamacpp.masked import ExactDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.canvas.layout import token_ids
from dg_lsp.errors import BackendError, ModelUnsupportedError, RequestError
from dg_lsp.models.metadata import describe
from dg_lsp.settings import RuntimeSettings

CPU = RuntimeSettings(threads=1, gpu_layers=0, num_slots=2)
RNG = np.random.default_rng(0)
PROMPT = token_ids(np.random.default_rng(1).integers(5, 200, 40))
HOLES = token_ids([20, 21, MASK, MASK, 22, MASK, 23])


def opened(path, settings=CPU, **changes):
    model = LlamaModel.load(path, settings)
    spec = describe(model.metadata, model.vocab_size, path.stem, model.tokenizer.specials())
    return ExactDenoiser(model, replace(spec, **changes), settings)


@pytest.fixture(scope="module", params=[*tiny_masked.ARCHITECTURES, "qwen2"])
def pair(request, tmp_path_factory):
    """A model in numpy, and its file's denoiser."""
    tiny = tiny_masked.make(request.param, kv_heads=4 if request.param == "llada-moe" else 2)
    path = tmp_path_factory.mktemp("masked") / f"{request.param}.gguf"
    tiny_masked.write(path, tiny, name="Open dCoder" if request.param == "qwen2" else "")
    denoiser = opened(path)
    yield tiny, denoiser
    denoiser.close()


@pytest.fixture
def denoiser(tmp_path):
    path = tiny_masked.write(tmp_path / "dream.gguf", tiny_masked.make("dream"))
    made = opened(path, max_prompt_tokens=40, canvas_lengths=(8,))
    yield made
    made.close()


def predict(denoiser, *canvases, heat=0.0, slot=0):
    return denoiser.predict(slot, [token_ids(canvas) for canvas in canvases], heat, RNG)


def test_it_computes_what_the_weights_say(pair):
    tiny, denoiser = pair
    # half-precision keys and values where llama.cpp has a cache, which is cropped after each step
    atol = 1e-2 if tiny.architecture == "qwen2" else 1e-4
    for prompt in (PROMPT, PROMPT[:1], PROMPT[:0]):
        denoiser.prefill(0, prompt)
        for canvas in (HOLES, token_ids([MASK] * 3), HOLES):
            (prediction,) = predict(denoiser, canvas)
            tiny_masked.check(prediction, tiny, prompt, canvas, denoiser.spec.banned_ids, atol)


def test_canvases_of_one_step_do_not_see_each_other(pair):
    _, denoiser = pair
    denoiser.prefill(0, PROMPT)
    canvases = [HOLES, token_ids([MASK] * 60), token_ids([20, 30]), token_ids([MASK]), token_ids([MASK] * 100)]
    together = predict(denoiser, *canvases)
    for canvas, batched in zip(canvases, together, strict=True):
        (alone,) = predict(denoiser, canvas)
        check_close(alone, batched, 1e-2)


def test_slots_hold_a_prompt_each(pair):
    tiny, denoiser = pair
    other = PROMPT[:9]
    denoiser.prefill(0, PROMPT)
    denoiser.prefill(1, other)
    for slot, prompt in ((0, PROMPT), (1, other), (0, PROMPT)):
        (prediction,) = predict(denoiser, HOLES, slot=slot)
        tiny_masked.check(prediction, tiny, prompt, HOLES, denoiser.spec.banned_ids, 1e-2)


def test_the_whole_prompt_counts_as_decoded_every_time(denoiser):
    assert [denoiser.prefill(0, PROMPT) for _ in range(2)] == [40, 40]


def test_the_prompt_sees_the_canvas(denoiser):
    """Which is what a causal prompt in a cache cannot do."""
    denoiser.prefill(0, PROMPT)
    (one,) = predict(denoiser, [MASK, 20, 30])
    (other,) = predict(denoiser, [MASK, 20, 31])
    assert one.entropy[0] != other.entropy[0]


def test_many_long_canvases_take_several_decodes(denoiser, monkeypatch):
    denoiser.prefill(0, PROMPT)
    decode, sizes = denoiser._context.decode, []

    def counted(**how):
        sizes.append(denoiser._context.batch.native.n_tokens)
        return decode(**how)

    monkeypatch.setattr(denoiser._context, "decode", counted)
    assert len(predict(denoiser, *[[MASK] * 8] * 3)) == 3
    assert sizes == [48, 48, 48], "no batch is larger than the context was made for"
    denoiser.prefill(0, PROMPT[:4])
    assert len(predict(denoiser, *[[MASK] * 8] * 5)) == 5
    assert sizes[3:] == [48, 12]


def test_a_canvas_without_a_mask_costs_nothing(denoiser, monkeypatch):
    denoiser.prefill(0, PROMPT)
    monkeypatch.setattr(denoiser._context, "decode", lambda **_: pytest.fail("decoded"))
    (prediction,) = predict(denoiser, [20, 30])
    assert prediction.argmax_ids.tolist() == [20, 30]
    assert prediction.confidence.tolist() == [1, 1]


def test_samples_are_drawn_and_never_banned(denoiser):
    denoiser.prefill(0, PROMPT)
    (prediction,) = predict(denoiser, [MASK] * 8, heat=3.0)
    assert not np.array_equal(prediction.sampled_ids, prediction.argmax_ids)
    assert not np.isin(prediction.sampled_ids, denoiser.spec.banned_ids).any()


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda d: d.prefill(0, token_ids([10] * 41)), id="a prompt that is too long"),
        pytest.param(lambda d: predict(d, [MASK] * 9), id="a canvas that is too long after this prompt"),
        pytest.param(lambda d: d.prefill(2, token_ids([10])), id="a slot that does not exist"),
        pytest.param(lambda d: predict(d, [MASK], slot=-1), id="a slot before the first"),
        pytest.param(lambda d: predict(d, []), id="an empty canvas"),
        pytest.param(lambda d: predict(d, [10**6]), id="an id outside the vocabulary"),
        pytest.param(lambda d: predict(d, [MASK], heat=-1.0), id="a temperature below 0"),
        pytest.param(lambda d: predict(d, *[[MASK]] * 9), id="too many canvases"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_call(denoiser, ask):
    denoiser.prefill(0, PROMPT)
    with pytest.raises(RequestError):
        ask(denoiser)
    assert len(predict(denoiser, [MASK] * 8)) == 1


def test_it_cannot_go_on_causally(denoiser):
    denoiser.prefill(0, token_ids([10, 11]))
    with pytest.raises(BackendError, match="no causal head"):
        denoiser.extend(0, token_ids([12]))


def test_a_failed_decode_is_an_error_and_the_next_one_works(denoiser, monkeypatch):
    denoiser.prefill(0, PROMPT)
    with monkeypatch.context() as patch:
        patch.setattr(denoiser._context, "decode", lambda **_: 1)
        with pytest.raises(BackendError, match="full"):
            predict(denoiser, [MASK])
    assert len(predict(denoiser, [MASK])) == 1


def test_threads_are_measured_unless_they_are_set(tmp_path):
    path = tiny_masked.write(tmp_path / "llada.gguf", tiny_masked.make("llada"))
    measured = opened(path, RuntimeSettings(threads=0, gpu_layers=0))
    assert measured.threads >= 1
    measured.close()


def test_a_canvas_that_can_grow_has_room_for_it(tmp_path):
    path = tiny_masked.write(tmp_path / "dream.gguf", tiny_masked.make("dream"))
    plain = opened(path, max_prompt_tokens=40, canvas_lengths=(8,))
    growing = opened(
        path, max_prompt_tokens=40, canvas_lengths=(8,), sampling=replace(plain.spec.sampling, expand_id=2, max_free=16)
    )
    assert (plain.context_length, growing.context_length) == (48, 64)
    assert plain.prompt_limit == growing.prompt_limit == 40
    growing.prefill(0, PROMPT)
    (prediction,) = predict(growing, [MASK] * 24)
    assert prediction.unexpanded_ids is not None
    assert 2 not in prediction.unexpanded_ids
    plain.close()
    growing.close()


def test_a_spec_of_another_model_is_refused(tmp_path):
    path = tiny_masked.write(tmp_path / "dream.gguf", tiny_masked.make("dream"))
    with pytest.raises(ModelUnsupportedError):
        opened(path, vocab_size=10)
