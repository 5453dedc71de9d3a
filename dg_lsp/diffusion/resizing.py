"""Canvases that change their length: one mask becomes two, or goes away, where the model says so.

DreamOn (arXiv 2602.01326): tokens of the vocabulary stand for both. As its authors' sampler does (`eval/generator.py`),
nothing expands beyond a limit, and a deletion takes the masks after it along: in training what is too much always stood
together, at the end.
"""

from dataclasses import replace

import numpy as np

from dg_lsp.canvas.plan import Flags, TokenIds, among, token_ids
from dg_lsp.canvas.spec import MaskSampling
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.diffusion.step import Step


class Resizing:
    """One canvas in one step. Without the two tokens nothing of it does anything."""

    def __init__(self, step: Step, sampling: MaskSampling, *, can_grow: bool) -> None:
        self._mask_id = sampling.mask_id
        self._expand_id = sampling.expand_id
        self._expanding, self._deleting = (
            token_ids([] if token is None else [token]) for token in (sampling.expand_id, sampling.delete_id)
        )
        self._room = sampling.max_free - int((~step.frozen).sum()) if can_grow else 0

    def possible(self, prediction: Prediction) -> Prediction:
        """Without expansions where there is no room for any; the next best tokens stand there then."""
        ids, confidence = prediction.unexpanded_ids, prediction.unexpanded_confidence
        if self._expand_id is None or self._room > 0 or ids is None or confidence is None:
            return prediction
        sampled = np.where(prediction.sampled_ids == self._expand_id, ids, prediction.sampled_ids)
        return replace(prediction, argmax_ids=ids, sampled_ids=sampled, confidence=confidence)

    def deleting(self, draft_ids: TokenIds) -> Flags:
        """Where the draft says that a mask is too much."""
        return among(draft_ids, self._deleting)

    def resized(self, step: Step, taken: Flags) -> Step:
        """The canvas with what was taken done: two masks for an expansion, none for a deletion."""
        if not (len(self._expanding) or len(self._deleting)):
            return step
        deleted = _with_masks_after(taken & self.deleting(step.canvas_ids), ~step.committed)
        wanted = taken & among(step.canvas_ids, self._expanding)
        expanded = wanted & (np.cumsum(wanted) <= self._room + int(deleted.sum()))
        if not (wanted | deleted).any():
            return step
        # an expansion that finds no room any more is asked again
        opened = replace(
            step,
            canvas_ids=np.where(wanted, np.int32(self._mask_id), step.canvas_ids),
            draft_ids=np.where(wanted, np.int32(self._mask_id), step.draft_ids),
            committed=step.committed & ~wanted,
        )
        return opened.take(np.repeat(np.arange(len(taken)), np.where(deleted, 0, 1 + expanded)))


def _with_masks_after(deleted: Flags, is_open: Flags) -> Flags:
    """The flags, and the run of open positions right after each."""
    spread = deleted.copy()
    for i in range(1, len(spread)):
        spread[i] |= spread[i - 1] and is_open[i]
    return spread
