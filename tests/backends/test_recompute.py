"""The denoiser without a cache, over a tiny random model of llama.cpp's own diffusion architecture."""

from dataclasses import replace

import numpy as np
import pytest

from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.recompute import RecomputingDenoiser
from dg_lsp.canvas.plan import token_ids
from dg_lsp.errors import BackendError, ModelUnsupportedError, RequestError
from dg_lsp.settings import RuntimeSettings

CPU = RuntimeSettings(threads=1, gpu_layers=0)
MASK = 0
RNG = np.random.default_rng(0)


@pytest.fixture
def denoiser(write_model, open_denoiser):
    model = LlamaModel.load(write_model(architecture="dream", biases=True), CPU)
    spec = replace(open_denoiser.mask, max_prompt_tokens=40, canvas_lengths=(8,))
    opened = RecomputingDenoiser(model, spec, threads=1)
    yield opened
    opened.close()


def predict(denoiser, *canvases):
    return denoiser.predict(0, [token_ids(canvas) for canvas in canvases], 0.0, RNG)


def test_the_whole_prompt_counts_as_decoded_every_time(denoiser):
    prompt = token_ids(range(10, 30))
    assert denoiser.prefill(0, prompt) == 20
    assert denoiser.prefill(0, prompt) == 20


def test_prompt_and_canvas_are_seen_in_both_directions(denoiser):
    denoiser.prefill(0, token_ids([10, 11, 12]))
    (first,) = predict(denoiser, [MASK, 20, 30])
    (again,) = predict(denoiser, [MASK, 20, 30])
    (other_end,) = predict(denoiser, [MASK, 20, 31])
    denoiser.prefill(0, token_ids([10, 11, 13]))
    (other_prompt,) = predict(denoiser, [MASK, 20, 30])
    assert first.entropy[0] == again.entropy[0]
    assert first.entropy[0] != other_end.entropy[0]
    assert first.entropy[0] != other_prompt.entropy[0]


def test_rows_belong_to_their_positions(denoiser):
    """A mask's prediction moves with it when the same canvas is asked with one more token to its left."""
    denoiser.prefill(0, token_ids([10, 11, 12]))
    (short,) = predict(denoiser, [20, MASK])
    denoiser.prefill(0, token_ids([10, 11, 12, 20]))
    (shifted,) = predict(denoiser, [MASK])
    assert short.argmax_ids[1] == shifted.argmax_ids[0]
    assert short.entropy[1] == pytest.approx(shifted.entropy[0], abs=1e-4)


def test_positions_that_hold_a_token_predict_it(denoiser):
    denoiser.prefill(0, token_ids([10]))
    full, half = predict(denoiser, [20, 30], [20, MASK])
    assert full.argmax_ids.tolist() == [20, 30]
    assert half.argmax_ids[0] == 20
    assert half.confidence[0] == 1
    assert half.confidence[1] < 1


def test_what_does_not_fit_is_refused_before_the_call(denoiser):
    with pytest.raises(RequestError):
        denoiser.prefill(0, token_ids([10] * 41))
    with pytest.raises(RequestError):
        predict(denoiser, [MASK] * 9)
    with pytest.raises(RequestError):
        denoiser.prefill(1, token_ids([10]))


def test_it_cannot_go_on_causally(denoiser):
    denoiser.prefill(0, token_ids([10, 11]))
    with pytest.raises(BackendError, match="no causal head"):
        denoiser.extend(0, token_ids([12]))


def test_an_architecture_with_a_cache_is_not_for_it(tiny_path, open_denoiser):
    model = LlamaModel.load(tiny_path, CPU)
    assert model.has_cache
    with pytest.raises(ModelUnsupportedError):
        RecomputingDenoiser(model, open_denoiser.mask, threads=1)
    model.close()
