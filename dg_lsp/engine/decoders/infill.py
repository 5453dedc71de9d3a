"""The plans `canvas` and `race` where the suffix stands frozen in the canvas: how long the hole is, is raced.

All hole lengths share each pass over the same cached prompt. The first candidate is the one whose text joins best: the
mean log probability of its tokens when they were committed, plus that of the first tokens after the hole when they are
asked again in one more pass, both in nats. Where the longest hole wins and is full, longer ones are tried while they
win.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.infill import canvas_of, gap_lengths, grown, raced_length
from dg_lsp.canvas.layout import Layout, TokenIds, among, noise
from dg_lsp.canvas.spec import MaskSampling, Sampling
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.diffusion.loop import race
from dg_lsp.diffusion.step import Step
from dg_lsp.engine.decoders.base import DecodeTask, Progress, gap_of, gap_slice
from dg_lsp.engine.decoders.diffusion import DiffusionDecoder
from dg_lsp.engine.stop_criteria import Draft

JOIN_TOKENS = 4
"""Of the suffix, asked again after every candidate."""

Drafts = tuple[Draft, ...]


class InfillDecoder(DiffusionDecoder):
    """See `Filling`. One draft for each hole that was tried. The slot holds the prompt afterwards."""

    def __init__(self, task: DecodeTask, sampling: Sampling) -> None:
        super().__init__(task, sampling)
        self._resizes = isinstance(sampling, MaskSampling) and sampling.expand_id is not None

    def run(self, slot: int, layout: Layout) -> Generator[Progress, None, Drafts]:
        """See `Filling.run`."""
        task, spec = self._task, self._task.denoiser.spec
        length = task.limits.canvas_length
        holes = gap_lengths(layout, length, spec)
        length = raced_length(layout, length, len(holes))
        holes = gap_lengths(layout, length, spec)
        drafts = yield from self._raced(0, slot, layout, holes, length)
        hole: int | None = holes[-1]
        block = 0
        while hole and self._is_short(drafts, hole) and (hole := grown(hole, layout, spec, task.limits.max_tokens)):
            block += 1
            task.denoiser.prefill(slot, layout.prompt_ids)  # what was kept of the canvases before is void
            drafts += yield from self._raced(block, slot, layout, (hole,), canvas_of(hole, layout, spec))
        return tuple(replace(draft, steps=self._steps) for draft in drafts)

    def _is_short(self, drafts: Drafts, hole: int) -> bool:
        """The longest hole won, it is full, and there is time for a longer one."""
        limits, last = self._task.limits, drafts[-1]
        if self._resizes or len(last.ids) < hole or limits.is_over() or not limits.is_patient():
            return False
        return last is _best(drafts) and not self._task.enough.is_met(replace(last, is_ended=False))

    def _raced(
        self, block: int, slot: int, layout: Layout, holes: Sequence[int], length: int
    ) -> Generator[Progress, None, Drafts]:
        task = self._task
        spec = task.denoiser.spec
        plans = [layout.canvas(hole, spec, task.rng, length=length) for hole in holes]
        drafts: Drafts = (Draft.empty(),) * len(plans)
        steps: tuple[Step, ...] = ()
        if task.limits.is_over():
            return drafts
        for steps in race(task.denoiser, slot, plans, self._sampling, task.rng, explores=False):
            drafts = tuple(map(self._draft, steps))
            yield self._progress(block, steps, drafts)
            is_done = all(step.stop or task.enough.is_met(draft) for step, draft in zip(steps, drafts, strict=True))
            if is_done or task.limits.is_over():
                break
        if len(layout.tail_ids) and not task.limits.is_over():
            joins = self._joins(slot, steps)
            drafts = tuple(replace(draft, join=join) for draft, join in zip(drafts, joins, strict=True))
            yield self._progress(block, steps, drafts)
        return drafts

    def _draft(self, step: Step) -> Draft:
        """A fill ends with the lines that may be shown, and where the hole is full: what follows it is there."""
        hole = gap_of(step)
        draft = Draft.empty().settle(hole, self._end_ids)
        if (size := self._task.enough.num_shown(draft.ids)) < len(draft.ids):
            return replace(draft, ids=draft.ids[:size], confidence=draft.confidence[:size], is_ended=True)
        return replace(draft, is_ended=draft.is_ended or bool(hole.committed.all()))

    def _progress(self, block: int, steps: Sequence[Step], drafts: Drafts) -> Progress:
        """After one more pass: the candidate that is best so far."""
        self._steps += 1
        best = drafts.index(_best(drafts))
        return Progress(block, self._steps, gap_of(steps[best]), drafts[best])

    def _joins(self, slot: int, steps: Sequence[Step]) -> list[float]:
        """How probable the first tokens after each hole are with what stands in it, and without themselves."""
        task = self._task
        texts = [self._text(step) for step in steps]
        asked = []
        for canvas, end in texts:
            without = canvas.copy()
            unknown = without[end : end + JOIN_TOKENS]
            unknown[:] = noise(task.denoiser.spec, len(unknown), task.rng)
            asked.append(without)
        # lanes of their own: a model that is conditioned on its last prediction has seen the tokens there
        lanes = range(len(steps), 2 * len(steps))
        predictions = task.denoiser.predict(slot, asked, 0.0, task.rng, lanes)
        return [_fit(prediction, *text) for prediction, text in zip(predictions, texts, strict=True)]

    def _text(self, step: Step) -> tuple[TokenIds, int]:
        """The canvas as the buffer would read, with only what may be shown of the hole; and where it goes on."""
        where = gap_slice(step)
        fill = step.draft_ids[where]
        ends = np.flatnonzero(among(fill, self._end_ids))
        fill = fill[: int(ends[0])] if len(ends) else fill
        fill = fill[: self._task.enough.num_shown(fill)]
        canvas = np.concatenate([step.canvas_ids[: where.start], fill, step.canvas_ids[where.stop :]])
        return canvas, where.start + len(fill)


def _best(drafts: Drafts) -> Draft:
    """The highest score of those that say anything; of none, the last."""
    return max(reversed(drafts), key=lambda draft: draft.score if len(draft.confidence) else -np.inf)


def _fit(prediction: Prediction, canvas: TokenIds, end: int) -> float:
    """Mean log probability in nats of up to four tokens from `end` on; 0 for none.

    Of a token that is not the best only a bound is known: it is no more probable than the best, nor than all others
    together.
    """
    where = slice(end, end + JOIN_TOKENS)
    best = prediction.confidence[where]
    is_right = prediction.argmax_ids[where] == canvas[where]
    chance = np.where(is_right, best, np.minimum(best, 1 - best))
    return float(np.log(np.maximum(chance, 1e-6)).mean()) if len(chance) else 0.0
