"""The denoiser with a cached causal prompt: attention, evictions, limits."""

import numpy as np
import pytest
from margins import predict

from dg_lsp.errors import RequestError

PROMPT = np.arange(5, 45, dtype=np.int32)


def masks(length=16):
    return np.zeros(length, dtype=np.int32)


@pytest.mark.usefixtures("is_alone")
def test_canvases_evict_no_more_slots_than_needed(open_denoiser):
    denoiser = open_denoiser(context_length=256)
    prompts = [PROMPT[:10], np.resize(PROMPT, 130), PROMPT[:20]]
    for slot in (1, 2, 0):
        denoiser.prefill(slot, prompts[slot])
    assert len(predict(denoiser, *[masks(32)] * 4)) == 4
    assert [denoiser.prefill(slot, prompts[slot]) for slot in (0, 2, 1)] == [0, 0, 130]


@pytest.mark.parametrize(
    ("trained_length", "context_length", "num_prompt", "refused"),
    [
        pytest.param(64, 4096, 32, lambda d: d.prefill(0, PROMPT[:33]), id="prompt beyond the trained length"),
        pytest.param(64, 4096, 32, lambda d: predict(d, masks(33)), id="canvas beyond the trained length"),
        pytest.param(2048, 256, 220, lambda d: predict(d, masks(37)), id="canvas beyond the context"),
        pytest.param(2048, 256, 220, lambda d: predict(d, masks(32), masks(32)), id="canvases beyond the context"),
    ],
)
def test_trained_length_and_context_limit_prompt_and_canvas(
    open_denoiser, write_model, trained_length, context_length, num_prompt, refused
):
    """Learned positions beyond the trained length would be read past the end of their table."""
    denoiser = open_denoiser(path=write_model(trained_length=trained_length), context_length=context_length)
    denoiser.prefill(0, np.resize(PROMPT, num_prompt))
    assert len(predict(denoiser, masks(32))) == 1
    with pytest.raises(RequestError):
        refused(denoiser)


def test_threads_are_measured_unless_they_are_set(open_denoiser):
    assert open_denoiser(threads=0).threads >= 1
    assert open_denoiser(threads=2).threads == 2
    assert open_denoiser(threads=100_000).threads < 1000
