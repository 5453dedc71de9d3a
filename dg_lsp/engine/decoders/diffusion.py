"""Denoises open canvases, block by block."""

from collections.abc import Generator, Sequence

import numpy as np

from dg_lsp.canvas.layout import Canvas, Layout, token_ids
from dg_lsp.canvas.spec import Sampling
from dg_lsp.diffusion.loop import race
from dg_lsp.engine.decoders.base import EMPTY, DecodeTask, Draft, Progress, gap_of


class DiffusionDecoder:
    """See `Decoder`. Several canvases share each pass; only the first one's fill continues in further canvases.

    The slot holds the prompt and all canvases but the last afterwards. Tokens that a layout freezes before the gap,
    such as the beginning of an answer, stand in the first canvas and are prompt for the next ones.
    """

    def __init__(self, task: DecodeTask, sampling: Sampling) -> None:
        self.num_decoded = self.num_passes = 0
        self._task = task
        self._sampling = sampling
        self._end_ids = frozenset(task.spec.end_ids)
        self._is_full = False
        """The first canvas has no mask and no end."""

    def run(self, layout: Layout, num_kept: int) -> Generator[Progress, None, tuple[Draft, ...]]:
        """See `Decoder.run`."""
        del num_kept
        task, length, block = self._task, self._task.limits.canvas_length, 0
        self.num_decoded = task.denoiser.prefill(task.slot, layout.prompt_ids)
        canvas = layout.canvas(length - len(layout.head_ids), task.spec, task.rng)
        first, *others = yield from self._denoise(block, [canvas] * task.limits.num_canvases, EMPTY)
        known_ids = layout.in_prompt().prompt_ids
        while self._is_full and not task.is_done(first):
            prompt_ids = token_ids(np.concatenate([known_ids, first.ids]))
            if len(prompt_ids) > task.max_length or task.limits.is_over():
                break
            block += 1
            task.denoiser.prefill(task.slot, prompt_ids)
            canvas = Layout(prompt_ids).canvas(length, task.spec, task.rng)
            (first,) = yield from self._denoise(block, [canvas], first)
        return (first, *others)

    def _denoise(
        self, block: int, canvases: Sequence[Canvas], before: Draft
    ) -> Generator[Progress, None, tuple[Draft, ...]]:
        """Drafts of canvases over one prompt, each with the draft before it."""
        task = self._task
        drafts = (before,) * len(canvases)
        self._is_full = False
        if task.limits.is_over():
            return drafts
        for states in race(task.denoiser, task.slot, canvases, self._sampling, task.rng):
            self.num_passes += 1
            steps = tuple(map(gap_of, states))
            drafts = tuple(before.settle(step, self._end_ids) for step in steps)
            yield Progress.of(block, self.num_passes, steps[0], drafts[0])
            self._is_full = bool(steps[0].committed.all()) and not drafts[0].is_ended
            is_done = all(step.stop or task.is_done(draft) for step, draft in zip(steps, drafts, strict=True))
            if is_done or task.limits.is_over():
                break
        return drafts
