"""Reduced logits of the positions that were asked for, as predictions of whole canvases."""

from dataclasses import replace

import numpy as np

from dg_lsp.backends.llamacpp.reduce import Reduced
from dg_lsp.canvas.plan import Flags, TokenIds
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import Prediction


def open_positions(canvas: TokenIds, spec: ModelSpec) -> Flags:
    """Which positions need the model: masks, or all of them for uniform noise."""
    if isinstance(spec.sampling, MaskSampling):
        return canvas == spec.sampling.mask_id
    return np.ones(len(canvas), dtype=np.bool_)


def settled(canvas: TokenIds) -> Prediction:
    """Every position predicts the token it holds."""
    return Prediction(
        canvas.copy(), canvas.copy(), np.ones(len(canvas), dtype=np.float32), np.zeros(len(canvas), dtype=np.float32)
    )


def merged(canvas: TokenIds, flags: Flags, reduced: Reduced, rows: slice) -> Prediction:
    """What the canvas holds, and at its open positions what the model says."""
    said = whole(reduced, rows)
    if rows.stop - rows.start == len(canvas):
        return said
    prediction = settled(canvas)
    prediction.argmax_ids[flags] = said.argmax_ids
    prediction.sampled_ids[flags] = said.sampled_ids
    prediction.confidence[flags] = said.confidence
    prediction.entropy[flags] = said.entropy
    if said.unexpanded_ids is None or said.unexpanded_confidence is None:
        return prediction
    ids, confidence = canvas.copy(), np.ones(len(canvas), dtype=np.float32)
    ids[flags], confidence[flags] = said.unexpanded_ids, said.unexpanded_confidence
    return replace(prediction, unexpanded_ids=ids, unexpanded_confidence=confidence)


def whole(reduced: Reduced, rows: slice) -> Prediction:
    """A canvas of which every position was asked for."""
    said = reduced.take(rows)
    return Prediction(
        said.argmax_ids,
        said.sampled_ids,
        said.confidence,
        said.entropy,
        said.unexpanded_ids,
        said.unexpanded_confidence,
    )
