"""Repetitions, and slots that other requests use between two passes."""

import numpy as np

from dg_lsp.backends.scripted import MASK_SPEC, ByteTokenizer
from dg_lsp.canvas.layout import Layout, token_ids
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.engine.decode_task import EngineModel, KVSlots, RequestDenoiser
from dg_lsp.engine.decoders.base import RequestCosts
from dg_lsp.engine.repetition import Repetition

MASK = MASK_SPEC.sampling.mask_id
PROMPT = token_ids([60, 1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5, 8, 1, 2, 3])


class Constant:
    """Predicts 50 everywhere, and records its calls."""

    num_slots = 1
    spec = MASK_SPEC

    def __init__(self):
        self.held = []

    def prefill(self, _slot, prompt_ids, _most=0):
        self.held.append(prompt_ids.tolist())
        return len(prompt_ids)

    def _prediction(self, size):
        ids = token_ids([50] * size)
        confidence = np.full(size, 0.4, np.float32)
        return Prediction(ids, ids, confidence, np.ones(size, np.float32), confidence)

    def predict(self, _slot, canvases, *_):
        return [self._prediction(len(canvas)) for canvas in canvases]

    def extend(self, _slot, ids, _allowed=None):
        return self._prediction(len(ids))


def repeating(layout):
    repetition = Repetition(PROMPT[1:], token_ids([]))
    model = EngineModel.of(Constant(), ByteTokenizer())
    return RequestDenoiser(model, RequestCosts(), repetition, layout.num_known)


def predicted(denoiser, *canvases):
    predictions = denoiser.predict(0, [token_ids(canvas) for canvas in canvases], 0.0, np.random.default_rng(0))
    return [prediction.argmax_ids.tolist() for prediction in predictions]


def test_canvas_is_overridden_from_its_leftmost_mask_on():
    denoiser = repeating(Layout(PROMPT))
    denoiser.prefill(0, PROMPT)
    canvases = [MASK] * 4, [4, MASK, 30, MASK], [30, 31]
    assert predicted(denoiser, *canvases) == [[4, 5, 50, 50], [50, 5, 50, 50], [50, 50]]


def test_frozen_head_is_no_part_of_the_repeated_fill():
    layout = Layout(PROMPT[:-2], head_ids=PROMPT[-2:])
    denoiser = repeating(layout)
    denoiser.prefill(0, layout.prompt_ids)
    assert predicted(denoiser, [*PROMPT[-2:], MASK, MASK, MASK, 60]) == [[50, 50, 4, 5, 50, 50]]
    denoiser.prefill(0, token_ids([*PROMPT, 4]))  # in a second canvas the head is prompt
    assert predicted(denoiser, [MASK, MASK]) == [[5, 50]]


def test_prompt_of_another_client_is_neither_kept_nor_counted():
    model = Constant()
    shared = EngineModel.of(model, ByteTokenizer())
    slots = shared.slots
    mine, theirs = (RequestDenoiser(shared.for_client(client), RequestCosts()) for client in "ab")
    slots.hold(0, PROMPT, "a")
    mine.prefill(0, PROMPT)
    assert slots.num_shared(0, PROMPT, "a") == len(PROMPT)
    assert slots.num_shared(0, PROMPT, "b") == 0
    theirs.prefill(0, PROMPT)
    mine.prefill(0, PROMPT)
    assert model.held == [PROMPT.tolist(), [], PROMPT.tolist(), [], PROMPT.tolist()]


def test_slot_with_the_same_end_is_taken_for_a_prompt_whose_beginning_changed():
    slots, suffix = KVSlots(2), list(range(20, 40))
    first = slots.choose(token_ids([1, 2, *suffix]))
    slots.hold(first, token_ids([1, 2, *suffix]))
    assert slots.choose(token_ids([9, 8, 7, 6])) != first
    assert slots.choose(token_ids([1, 2, 3, *suffix])) == slots.choose(token_ids([5, *suffix])) == first
    assert slots.num_shared(first, token_ids([1, 2, 3, *suffix])) == 2
