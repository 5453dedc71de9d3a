"""Absorbing noise: masks are replaced by confident tokens, which stay.

Confidence-threshold unmasking after Fast-dLLM (arXiv 2505.22618): every mask whose best token is probable enough is
replaced, and at least one per step. The leftmost order is ours: confidence order lets a weak model commit an end
token before it has said anything. A model that can says where a mask is too few or too much (`resizing`).
"""

from dataclasses import replace

import numpy as np

from dg_lsp.canvas.plan import Flags, TokenIds, among
from dg_lsp.canvas.spec import MaskSampling, UnmaskOrder
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.diffusion.resizing import Resizing
from dg_lsp.diffusion.step import Step, Stop


def unmask(step: Step, prediction: Prediction, sampling: MaskSampling, end_ids: TokenIds, *, explore: bool) -> Step:
    """The canvas after one forward pass; `explore` takes a sampled token, not the best, at the forced mask."""
    is_last = step.number + 1 >= sampling.max_denoising_steps
    resizing = Resizing(step, sampling, can_grow=not is_last)
    prediction = resizing.possible(prediction)
    forced = _forced_position(step.committed, prediction, sampling.order)
    draft = np.where(step.committed, step.canvas_ids, prediction.argmax_ids)
    confidence = np.where(step.committed, step.confidence, prediction.confidence)
    if explore and prediction.sampled_ids[forced] != draft[forced]:
        draft[forced] = prediction.sampled_ids[forced]
        confidence[forced] = 1 - confidence[forced]  # all that is known of a token that is not the best
    taken = ~step.committed & (is_last | (prediction.confidence > sampling.confidence_threshold))
    taken[forced] = not step.committed[forced]
    ends = among(draft, end_ids)
    if sampling.order is UnmaskOrder.LEFTMOST:
        waiting = ends | resizing.deleting(draft)
        taken &= ~waiting | _in_order(step.committed | (taken & ~ends))
    committed = step.committed | taken
    after = replace(
        step,
        number=step.number + 1,
        canvas_ids=np.where(taken, draft, step.canvas_ids),
        draft_ids=draft,
        committed=committed,
        confidence=confidence,
    )
    after = resizing.resized(after, taken)
    after = _cut_after(after, among(after.canvas_ids, end_ids) & after.committed & ~after.frozen)
    if after.committed.all():
        return replace(after, stop=Stop.FILLED)
    return replace(after, stop=Stop.MAX_STEPS) if is_last else after


def _forced_position(committed: Flags, prediction: Prediction, order: UnmaskOrder) -> int:
    """The mask that is taken however unsure the model is, so that every step makes progress."""
    if order is UnmaskOrder.LEFTMOST:
        return int(np.argmin(committed))
    return int(np.argmax(np.where(committed, -1.0, prediction.confidence)))


def _in_order(taken: Flags) -> Flags:
    """Positions with nothing open before them."""
    return np.concatenate([[True], np.logical_and.accumulate(taken)[:-1]])


def _cut_after(step: Step, ends: Flags) -> Step:
    """Drops what follows a committed end token, so that later passes are cheaper; frozen positions stay."""
    if not ends.any():
        return step
    length = int(np.argmax(ends)) + 1
    if step.frozen[length:].any():
        return step
    return step.take(np.arange(length))
