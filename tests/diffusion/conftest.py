"""Canvases and predictions of steps that were calculated by hand."""

from dataclasses import replace

import numpy as np

from dg_lsp.canvas.layout import Canvas, token_ids
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.diffusion.samplers import Step


def canvas(*ids, frozen=()):
    """The state before the first step."""
    flags = np.zeros(len(ids), bool)
    flags[list(frozen)] = True
    return Step.before(Canvas(token_ids(ids), flags))


def predicts(ids, confidence, sampled=None, unexpanded=None, sampled_confidence=None):
    """A prediction under mask noise; `unexpanded` are the best tokens except the expansion, of probability 0.5."""
    floats = np.array(confidence, np.float32)
    sampled_ids = token_ids(ids if sampled is None else sampled)
    of_samples = floats if sampled_confidence is None else np.array(sampled_confidence, np.float32)
    prediction = Prediction(token_ids(ids), sampled_ids, floats, np.zeros_like(floats), of_samples)
    if unexpanded is None:
        return prediction
    halves = np.full_like(floats, 0.5)
    return replace(prediction, unexpanded_ids=token_ids(unexpanded), unexpanded_confidence=halves)
