"""A denoiser that says what the buffer says where that is sure, and what the model says elsewhere."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.echo import Echo
from dg_lsp.canvas.layout import Layout
from dg_lsp.canvas.plan import TokenIds
from dg_lsp.canvas.spec import MaskSampling
from dg_lsp.diffusion.denoiser import Denoiser, Prediction
from dg_lsp.engine.wrapped import WrappedDenoiser


class EchoingDenoiser(WrappedDenoiser):
    """For one request on one slot. Every plan hears the same echo, so that plans which agree go on agreeing.

    Of a canvas only the leftmost masks change: what is between a mask and the buffer's end is not known yet. Uniform
    noise, which has no masks, stays as the model says.
    """

    def __init__(self, inner: Denoiser, echo: Echo, layout: Layout) -> None:
        super().__init__(inner)
        self._echo = echo
        self._num_known = layout.num_known
        self._held = layout.prompt_ids[:0]

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """As the inner denoiser's."""
        self._held = prompt_ids
        return super().prefill(slot, prompt_ids)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """As the inner denoiser's, with echoes from the leftmost mask on."""
        predictions = super().predict(slot, canvases, temperature, rng, lanes)
        sampling = self.spec.sampling
        if not isinstance(sampling, MaskSampling):
            return predictions
        return [
            self._with_canvas_echoes(prediction, canvas, sampling.mask_id)
            for prediction, canvas in zip(predictions, canvases, strict=True)
        ]

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """As the inner denoiser's, with echoes after every token that the fill may end with."""
        prediction = super().extend(slot, ids)
        self._held = np.concatenate([self._held, ids])
        echoes = {}
        for i in range(len(ids)):
            if (end := len(self._held) - len(ids) + i + 1) >= self._num_known:
                echoes[i] = self._held[self._num_known : end]
        return self._changed(prediction, echoes)

    def _with_canvas_echoes(self, prediction: Prediction, canvas: TokenIds, mask_id: int) -> Prediction:
        masks = np.flatnonzero(canvas == mask_id)
        if not len(masks):
            return prediction
        first = int(masks[0])
        num_head = max(0, self._num_known - len(self._held))  # frozen before the hole
        known = np.concatenate([self._held[self._num_known :], canvas[num_head:first]])
        at = first
        while at < len(canvas) and canvas[at] == mask_id and (echoed := self._echo.following(known)):
            prediction = self._changed(prediction, {at: known})
            known, at = np.append(known, np.int32(echoed.token)), at + 1
        return prediction

    def _changed(self, prediction: Prediction, fills: dict[int, TokenIds]) -> Prediction:
        """The prediction with echoes at positions, given the fill before each."""
        heard = {i: echoed for i, fill in fills.items() if (echoed := self._echo.following(fill))}
        if not heard:
            return prediction
        argmax_ids, sampled_ids = prediction.argmax_ids.copy(), prediction.sampled_ids.copy()
        confidence = prediction.confidence.copy()
        for i, echoed in heard.items():
            agrees = argmax_ids[i] == echoed.token
            confidence[i] = max(confidence[i], echoed.confidence) if agrees else echoed.confidence
            if sampled_ids[i] == argmax_ids[i]:
                sampled_ids[i] = echoed.token
            argmax_ids[i] = echoed.token
        return replace(prediction, argmax_ids=argmax_ids, sampled_ids=sampled_ids, confidence=confidence)
