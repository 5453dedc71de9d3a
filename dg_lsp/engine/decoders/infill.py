"""Denoises canvases whose suffix is frozen, with gaps of several lengths.

All lengths share each pass over the same cached prompt. The best candidate is the one with the highest score: the mean
log probability of its tokens when they were committed, plus that of the first tokens after the gap, which are masked
and predicted once more. While the longest gap wins and is full, longer ones are tried.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.layout import TokenIds, noise
from dg_lsp.canvas.prompt_format import canvas_of, gap_lengths, grown, shared_length
from dg_lsp.canvas.spec import MaskSampling
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.diffusion.samplers import Step
from dg_lsp.engine.decoders.base import EMPTY, Draft, Progress, gap_of, gap_slice
from dg_lsp.engine.decoders.diffusion import DiffusionDecoder, Drafts

JOIN_TOKENS = 4  # tokens after the gap that are predicted again for each candidate


class InfillDecoder(DiffusionDecoder):
    """See `Decoder`. One draft for each gap length that was tried. The slot holds the prompt afterwards."""

    _explores = False

    def run(self) -> Generator[Progress, None, Drafts]:
        """See `Decoder.run`."""
        task, layout, length, block = self._task, self._task.layout, self._task.limits.canvas_length, 0
        self.num_decoded = yield from task.prefill(layout.prompt_ids)
        length = shared_length(layout, length, len(gap_lengths(layout, length, task.spec)))
        gaps = gap_lengths(layout, length, task.spec)
        drafts = yield from self._fill_gaps(block, gaps, length)
        gap: int | None = gaps[-1]
        while gap and self._is_short(drafts, gap) and (gap := grown(gap, layout, task.spec, task.limits.max_tokens)):
            block += 1
            task.denoiser.prefill(task.slot, layout.prompt_ids)  # drops the state of the canvases before
            drafts += yield from self._fill_gaps(block, (gap,), canvas_of(gap, layout, task.spec))
        return drafts

    def _is_short(self, drafts: Drafts, gap: int) -> bool:
        """The longest gap won, it is full, and there is time for a longer one."""
        limits, sampling, last = self._task.limits, self._task.sampling, drafts[-1]
        resizes = isinstance(sampling, MaskSampling) and sampling.expand_id is not None
        if resizes or len(last.ids) < gap or limits.is_over() or self.num_passes >= limits.early_stop_passes:
            return False
        is_done = self._task.is_done(replace(last, is_ended=False), self.num_passes)
        return self._best(drafts) == len(drafts) - 1 and not is_done

    def _fill_gaps(self, block: int, gaps: Sequence[int], length: int) -> Generator[Progress, None, Drafts]:
        task, layout = self._task, self._task.layout
        canvases = [layout.canvas(gap, task.spec, task.rng, length=length) for gap in gaps]
        drafts = yield from self._denoise(block, canvases)
        if len(layout.tail_ids) and not task.limits.is_over():
            joins = self._joins(self._steps)
            self.num_passes += 1
            drafts = tuple(replace(draft, join=join) for draft, join in zip(drafts, joins, strict=True))
            yield self._progress(block, tuple(map(gap_of, self._steps)), drafts)
        return drafts

    def _draft(self, gap: Step, before: Draft) -> Draft:
        """The settled fill of a gap. It ends with the lines that may be shown, and where the gap is full."""
        draft = super()._draft(gap, before)
        is_ended = draft.is_ended or bool(gap.committed.all())
        stop = self._task.stop
        if (size := stop.num_shown(draft.ids)) < len(draft.ids):
            has_more = bool(stop.decode(draft.ids[size:]).strip(b"\n"))
            return draft.cut(size, is_cut=has_more or not is_ended)
        return replace(draft, is_ended=is_ended)

    def _best(self, drafts: Drafts) -> int:
        """The highest score of the drafts that are not empty; of none, the last."""
        return max(reversed(range(len(drafts))), key=lambda i: -np.inf if drafts[i].is_empty else drafts[i].score)

    def _joins(self, steps: Sequence[Step]) -> list[float]:
        """How well the first tokens after each gap follow its fill, from one pass in which they are masked."""
        task = self._task
        joined = [self._joined(step) for step in steps]
        canvases = []
        for canvas, end in joined:
            masked = canvas.copy()
            unknown = masked[end : end + JOIN_TOKENS]
            unknown[:] = noise(task.spec, len(unknown), task.rng)
            canvases.append(masked)
        # lanes of their own: a model that is conditioned on its last prediction has seen the tokens there
        lanes = range(len(steps), 2 * len(steps))
        predictions = task.denoiser.predict(task.slot, canvases, 0.0, task.rng, lanes)
        pairs = zip(predictions, joined, strict=True)
        return [join_score(prediction, canvas, end) for prediction, (canvas, end) in pairs]

    def _joined(self, step: Step) -> tuple[TokenIds, int]:
        """The canvas with only the shown part of the fill, and where the suffix begins in it."""
        where = gap_slice(step)
        fill = step.draft_ids[where]
        fill = EMPTY.grow(fill, step.confidence[where], self._end_ids).ids
        fill = fill[: self._task.stop.num_shown(fill)]
        canvas = np.concatenate([step.canvas_ids[: where.start], fill, step.canvas_ids[where.stop :]])
        return canvas, where.start + len(fill)


def join_score(prediction: Prediction, canvas: TokenIds, end: int) -> float:
    """Mean log probability in nats of up to four tokens from `end` on; 0 for none.

    A prediction has the probability of its best token only. Any other token has at most that probability, and at most
    what the best one leaves.
    """
    where = slice(end, end + JOIN_TOKENS)
    best = prediction.confidence[where]
    is_right = prediction.argmax_ids[where] == canvas[where]
    probability = np.where(is_right, best, np.minimum(best, 1 - best))
    return float(np.log(np.maximum(probability, 1e-6)).mean()) if len(probability) else 0.0
