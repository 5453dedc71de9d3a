import numpy as np
import pytest

from dg_lsp.backends.scripted import MASK_SPEC
from dg_lsp.canvas.layout import Layout, token_ids
from dg_lsp.canvas.repetition import Repetition
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.engine.request_denoiser import EchoingDenoiser

NOTHING = token_ids([])


class Silent:
    """A denoiser that always says 50, and remembers nothing."""

    spec = MASK_SPEC
    num_slots = 1

    def prefill(self, _slot, prompt_ids):
        return len(prompt_ids)

    def _prediction(self, size):
        ids = token_ids([50] * size)
        return Prediction(ids, ids, np.full(size, 0.4, np.float32), np.ones(size, np.float32))

    def predict(self, _slot, canvases, _temperature, _rng, _lanes=()):
        return [self._prediction(len(canvas)) for canvas in canvases]

    def extend(self, _slot, ids):
        return self._prediction(len(ids))

    def close(self):
        raise AssertionError("the engine's, not ours")


PROMPT = token_ids([60, 1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5, 8, 1, 2, 3])


@pytest.fixture
def echoing():
    denoiser = EchoingDenoiser(Silent(), Repetition(PROMPT[1:], NOTHING), Layout(PROMPT))
    denoiser.close()
    return denoiser


def test_a_causal_pass_hears_the_echo_after_the_prompts_end_only(echoing):
    echoing.prefill(0, PROMPT[:-2])
    assert echoing.extend(0, PROMPT[-2:]).argmax_ids.tolist() == [50, 4]
    prediction = echoing.extend(0, token_ids([4, 7]))
    assert prediction.argmax_ids.tolist() == [5, 50]
    assert prediction.sampled_ids.tolist() == [5, 50]
    assert prediction.confidence[1] == np.float32(0.4)


def test_a_canvas_hears_echoes_from_its_leftmost_mask_on(echoing):
    mask = MASK_SPEC.sampling.mask_id
    echoing.prefill(0, PROMPT)
    all_masks = token_ids([mask] * 4)
    half = token_ids([4, mask, 30, mask])
    first, second = echoing.predict(0, [all_masks, half], 0.0, np.random.default_rng(0))
    assert first.argmax_ids.tolist() == [4, 5, 50, 50]
    assert second.argmax_ids.tolist() == [50, 5, 50, 50]
    (nothing,) = echoing.predict(0, [token_ids([30, 31])], 0.0, np.random.default_rng(0))
    assert nothing.argmax_ids.tolist() == [50, 50]


def test_what_stands_frozen_before_the_hole_is_no_part_of_the_fill():
    mask = MASK_SPEC.sampling.mask_id
    layout = Layout(PROMPT[:-2], head_ids=PROMPT[-2:])
    denoiser = EchoingDenoiser(Silent(), Repetition(PROMPT[1:], NOTHING), layout)
    denoiser.prefill(0, layout.prompt_ids)
    canvas = token_ids([*PROMPT[-2:], mask, mask, mask, 60])
    (prediction,) = denoiser.predict(0, [canvas], 0.0, np.random.default_rng(0))
    assert prediction.argmax_ids.tolist() == [50, 50, 4, 5, 50, 50]
    denoiser.prefill(0, token_ids([*PROMPT, 4]))  # a second canvas: the head is prompt now
    (prediction,) = denoiser.predict(0, [token_ids([mask, mask])], 0.0, np.random.default_rng(0))
    assert prediction.argmax_ids.tolist() == [5, 50]
