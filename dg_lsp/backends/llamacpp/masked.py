"""Denoisers for models whose prompt is bidirectional, as a whole or inside blocks, and for shifted models.

A bidirectional prompt is computed in every step, or once per request; blocks are cached.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from typing_extensions import override

from dg_lsp.backends.llamacpp.denoiser import CanvasQuery, LlamaDenoiser, OpenCanvas, Reduce
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.backends.llamacpp.reduction import join, take
from dg_lsp.canvas.layout import NOTHING, TokenIds
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import WHOLE_PROMPT, Allowed, Floats, Prediction
from dg_lsp.settings import ModelSettings


class ShiftedDenoiser(LlamaDenoiser):
    """See `Denoiser`. The prompt is causal and cached, and a position predicts the token after it.

    So the last token of the prompt, which sees no canvas, predicts the first position of a canvas as in the causal
    model; the first step after a prefill decodes it again for its logits, which are kept.
    """

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: ModelSettings) -> None:
        super().__init__(model, spec, settings)
        self._next: dict[int, tuple[TokenIds, Floats]] = {}
        """By slot: all its tokens, and the logits after the last one, shape (1, V)."""

    @override
    def extend(self, slot: int, ids: TokenIds, allowed: Allowed | None = None) -> Prediction:
        self._next.pop(slot, None)
        prediction = super().extend(slot, ids, allowed)
        if not allowed:  # otherwise the logits lack the other tokens
            self._next[slot] = self._cache.ids(slot), self._context.logits(np.ones(len(ids), np.bool_))[-1:].copy()
        return prediction

    @override
    def _predict_open(self, slot: int, canvases: Sequence[OpenCanvas], reduce: Reduce) -> Prediction:
        prompt = self._cache.ids(slot)
        if not len(prompt):
            return super()._predict_open(slot, canvases, reduce)
        if not np.array_equal(self._next.get(slot, (NOTHING,))[0], prompt):
            self._cache.prefill(slot, prompt[:-1])
            self.extend(slot, prompt[-1:])
        predicted = super()._predict_open(slot, canvases, reduce)
        _, logits = self._next[slot]
        is_first = np.concatenate([np.flatnonzero(flags) == 0 for _, flags in canvases])
        num_firsts = int(is_first.sum())
        rows = np.arange(len(is_first))
        rows[is_first] = len(is_first) + np.arange(num_firsts)  # a draw of its own for each canvas
        return take(join([predicted, *(reduce(logits.copy()) for _ in range(num_firsts))]), rows)


class BlockDenoiser(LlamaDenoiser):
    """See `Denoiser`. Whole blocks of the prompt are cached; every step decodes the rest before each canvas.

    If the model is shifted and the canvas begins a block, the logits at the end of the block before predict its first
    token, and the other tokens are predicted after that one, as in Fast-dLLM v2.
    """

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: ModelSettings) -> None:
        super().__init__(model, spec, settings)
        self._rest: dict[int, TokenIds] = {}
        """By slot: the tokens of the prompt after its last whole block."""
        self._next: dict[int, tuple[TokenIds, Prediction]] = {}
        """By slot: whole blocks of a prompt, and the prediction of the token after them, shape (1,)."""

    @override
    def prefill(self, slot: int, prompt_ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        """The tokens after the last whole block are not counted."""
        prompt = self._checked_prompt(prompt_ids)
        num_whole = len(prompt) - len(prompt) % self.spec.block_length
        blocks, rest = prompt[:num_whole], prompt[num_whole:]
        self._rest[slot] = NOTHING  # if decoding fails
        is_begun = self.spec.is_shifted and len(blocks) and not len(rest)
        known_ids, _ = self._next.get(slot, (NOTHING, None))
        if not is_begun or (np.array_equal(known_ids, blocks) and np.array_equal(self._cache.ids(slot), blocks)):
            num_decoded = self._cache.prefill(slot, blocks, most)
            self._rest[slot] = rest
            return num_decoded
        self._next.pop(slot, None)
        before, last = blocks[: -self.spec.block_length], blocks[-self.spec.block_length :]
        num_decoded = self._cache.prefill(slot, before, most)
        if num_decoded >= most:
            return num_decoded
        reduce = partial(self._reducer.reduce, temperature=0.0, rng=self._greedy)
        is_last = np.arange(len(last)) == len(last) - 1
        self._next[slot] = blocks, self._append(slot, last, is_last, reduce, causal=False)
        return num_decoded + len(last)

    @override
    def _ahead(self, slot: int) -> TokenIds:
        return self._rest.get(slot, NOTHING)

    @override
    def _predict(self, slot: int, canvases: Sequence[TokenIds], reduce: Reduce) -> list[Prediction]:
        blocks, first = self._next.get(slot, (NOTHING, None))
        if first is None or len(self._ahead(slot)) or not np.array_equal(blocks, self._cache.ids(slot)):
            return super()._predict(slot, canvases, reduce)
        assert isinstance(self.spec.sampling, MaskSampling)
        mask_id = self.spec.sampling.mask_id
        begun = [np.concatenate([first.argmax_ids, ids[1:]]) if ids[0] == mask_id else ids for ids in canvases]
        predictions = super()._predict(slot, begun, reduce)
        return [
            join([first, take(prediction, slice(1, None))]) if ids[0] == mask_id else prediction
            for ids, prediction in zip(canvases, predictions, strict=True)
        ]


class PerRequestDenoiser(LlamaDenoiser):
    """See `Denoiser`. The first step after a prefill computes the prompt with its first canvas; later steps keep it.

    If the model is shifted, every step decodes the last token of the prompt again, which predicts the first position.
    """

    def __init__(self, model: LlamaModel, spec: ModelSpec, settings: ModelSettings) -> None:
        super().__init__(model, spec, settings)
        self._prompts: dict[int, TokenIds] = {}
        """By slot, computed or not."""

    @override
    def prefill(self, slot: int, prompt_ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        """The next step decodes the whole prompt."""
        del most
        prompt = self._checked_prompt(prompt_ids)
        self._cache.clear(slot)
        self._prompts[slot] = prompt
        return len(prompt)

    def _cached(self, slot: int) -> TokenIds:
        """The part of the prompt that the cache has after the first step."""
        prompt = self._prompts.get(slot, NOTHING)
        return prompt[:-1] if self.spec.is_shifted else prompt

    @override
    def _ahead(self, slot: int) -> TokenIds:
        return self._prompts.get(slot, NOTHING)[len(self._cached(slot)) :]

    @override
    def _num_prompt(self, slot: int) -> int:
        return len(self._cached(slot))

    @override
    def _predict_open(self, slot: int, canvases: Sequence[OpenCanvas], reduce: Reduce) -> Prediction:
        if len(self._cache.ids(slot)) == len(self._cached(slot)):
            return super()._predict_open(slot, canvases, reduce)
        query = CanvasQuery(canvases[:1], self._prompts[slot], is_shifted=self.spec.is_shifted)
        prediction = query.prediction(self._append(slot, query.ids, query.outputs, reduce, causal=False))
        self._cache.crop(slot, len(self._cached(slot)))
        if len(canvases) == 1:
            return prediction
        return join([prediction, super()._predict_open(slot, canvases[1:], reduce)])


class ExactDenoiser(PerRequestDenoiser):
    """See `Denoiser`. Every step computes the prompt before each canvas; nothing is cached."""

    _is_cached = False

    @override
    def _cached(self, _slot: int) -> TokenIds:
        return NOTHING

    @override
    def _tokens_of_pass(self, lengths: Sequence[int]) -> int:
        return max(lengths)

    @override
    def _predict_open(self, slot: int, canvases: Sequence[OpenCanvas], reduce: Reduce) -> Prediction:
        """One decode for each canvas: with the prompt before it, a canvas is a large batch of its own."""
        predict = super()._predict_open
        return join([predict(slot, [canvas], reduce) for canvas in canvases])
