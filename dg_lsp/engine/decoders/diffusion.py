"""Denoises canvases: open ones block by block, and gaps of several lengths whose suffix is frozen."""

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.layout import Canvas, Layout, TokenIds, noise, token_ids
from dg_lsp.canvas.prompt_format import canvas_of, gap_lengths, grown, shared_length
from dg_lsp.canvas.spec import MaskSampling, UniformSampling
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.diffusion.samplers import Step, denoise_together
from dg_lsp.engine.decoders.autoregressive import RemovedTextDecoder
from dg_lsp.engine.decoders.base import EMPTY, Decoder, Draft, Progress, gap_of, gap_slice

Drafts = tuple[Draft, ...]
JOIN_TOKENS = 4  # tokens after the gap that are predicted again for each candidate


class DiffusionDecoder(Decoder):
    """See `Decoder`. Several canvases share each pass; only the first one's fill continues in further canvases.

    The slot holds the prompt and all canvases but the last afterwards. Tokens that a layout freezes before the gap,
    such as the beginning of an answer, stand in the first canvas and are prompt for the next ones.
    """

    _explores = True  # later canvases begin with a sampled token
    _steps: tuple[Step, ...] = ()  # the canvases after the last pass

    def run(self) -> Generator[Progress, None, Drafts]:
        """See `Decoder.run`."""
        task, layout, block = self._task, self._task.layout, 0
        known_ids, begun = layout.in_prompt().prompt_ids, EMPTY
        if layout.removed:
            begun = yield from self._begun()
            layout = Layout(token_ids(np.concatenate([known_ids, begun.ids])))
            yield from task.prefill(layout.prompt_ids)
        else:
            self.num_decoded = yield from task.prefill(layout.prompt_ids)
        canvas = self._canvas(layout)
        first, *further = yield from self._denoise(block, [canvas] * task.limits.num_canvases, begun)
        while self._is_full(first) and not task.is_done(first, self.num_passes):
            prompt_ids = token_ids(np.concatenate([known_ids, first.ids]))
            if len(prompt_ids) > task.max_length or task.limits.is_over():
                break
            block += 1
            task.denoiser.prefill(task.slot, prompt_ids)
            canvas = self._canvas(Layout(prompt_ids))
            (first,) = yield from self._denoise(block, [canvas], first)
        return (first, *further)

    def _begun(self) -> Generator[Progress, None, Draft]:
        """The tokens before the canvases, which go as far as the cursor. A causal pass gives one token."""
        decoder = RemovedTextDecoder(self._task)
        decoder.num_passes = self.num_passes
        (draft,) = yield from decoder.run()
        self.num_passes = decoder.num_passes
        self.num_decoded = decoder.num_decoded
        return draft

    def _canvas(self, layout: Layout) -> Canvas:
        """A canvas without frozen text behind it; with block diffusion it is the rest of a block."""
        task = self._task
        length = task.limits.canvas_length
        if task.spec.block_length:
            length -= len(layout.prompt_ids) % length
        return layout.canvas(length - len(layout.head_ids), task.spec, task.rng)

    def _is_full(self, first: Draft) -> bool:
        """The first canvas has no mask and no end."""
        return bool(self._steps) and bool(gap_of(self._steps[0]).committed.all()) and not first.is_ended

    def _denoise(
        self, block: int, canvases: Sequence[Canvas], before: Draft = EMPTY
    ) -> Generator[Progress, None, Drafts]:
        """Drafts of canvases over one prompt, each with the draft before it."""
        task, limits, drafts = self._task, self._task.limits, (before,) * len(canvases)
        if limits.is_over() or not limits.max_tokens:  # 0 tokens: only the prompt is decoded
            return drafts
        self._count_canvases(canvases)
        for steps in denoise_together(
            task.denoiser, task.slot, canvases, task.sampling, task.rng, explores=self._explores
        ):
            gaps = tuple(map(gap_of, steps))
            drafts = tuple(self._draft(gap, before) for gap in gaps)
            self._steps = steps
            num = self.num_passes = self.num_passes + 1
            is_done = all(gap.stop or task.is_done(draft, num) for gap, draft in zip(gaps, drafts, strict=True))
            yield self._progress(block, gaps, drafts, before, may_change=self._may_change and not is_done)
            if is_done or limits.is_over():
                break
        return drafts

    def _draft(self, gap: Step, before: Draft) -> Draft:
        """The settled fill of a canvas after the draft before it."""
        return before.settle(gap, self._end_ids)

    @property
    def _may_change(self) -> bool:
        """A later step may change settled tokens."""
        return isinstance(self._task.sampling, UniformSampling)

    def _progress(
        self, block: int, gaps: Sequence[Step], drafts: Drafts, before: Draft = EMPTY, *, may_change: bool = False
    ) -> Progress:
        """The candidate to show after a pass; of one that may change only `before`, the draft of earlier canvases."""
        best = self._best(drafts)
        draft = before if may_change else drafts[best]
        return Progress.of(block, self.num_passes, gaps[best], draft, len(before.ids))

    def _best(self, drafts: Drafts) -> int:
        """Number of the candidate to show."""
        del drafts
        return 0


class InfillDecoder(DiffusionDecoder):
    """See `Decoder`. One draft for each gap length that was tried. The slot holds the prompt afterwards.

    All lengths share each pass over the same cached prompt. The best candidate is the one with the highest score: the
    mean log probability of its tokens when they were committed, plus that of the first tokens after the gap, which are
    masked and predicted once more. While the longest gap wins and is full, longer ones are tried.
    """

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
