"""Denoises open canvases, block by block."""

from collections.abc import Generator, Sequence

import numpy as np

from dg_lsp.canvas.layout import Canvas, Layout, token_ids
from dg_lsp.canvas.spec import UniformSampling
from dg_lsp.diffusion.samplers import Step, denoise_together
from dg_lsp.engine.decoders.autoregressive import RemovedTextDecoder
from dg_lsp.engine.decoders.base import EMPTY, Decoder, Draft, Progress, gap_of

Drafts = tuple[Draft, ...]


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
