"""Reduced logits of the positions that were asked for, as predictions of whole canvases."""

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
    if rows.stop - rows.start == len(canvas):
        return whole(reduced, rows)
    prediction = settled(canvas)
    prediction.argmax_ids[flags] = reduced.argmax_ids[rows]
    prediction.sampled_ids[flags] = reduced.sampled_ids[rows]
    prediction.confidence[flags] = reduced.confidence[rows]
    prediction.entropy[flags] = reduced.entropy[rows]
    return prediction


def whole(reduced: Reduced, rows: slice) -> Prediction:
    """A canvas of which every position was asked for."""
    return Prediction(
        reduced.argmax_ids[rows], reduced.sampled_ids[rows], reduced.confidence[rows], reduced.entropy[rows]
    )
