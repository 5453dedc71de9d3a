"""The plans `canvas` and `race`: open canvases denoised block by block."""

from collections.abc import Generator, Sequence

import numpy as np

from dg_lsp.canvas.layout import Canvas, Layout, TokenIds, token_ids
from dg_lsp.canvas.spec import Sampling
from dg_lsp.diffusion.loop import race
from dg_lsp.engine.decoders.base import DecodeTask, Progress, gap_of
from dg_lsp.engine.stop_criteria import Draft


class DiffusionDecoder:
    """See `Filling`. The slot holds the prompt and all canvases but the last afterwards.

    What a layout freezes before the hole, as an answer's beginning, stands in the first canvas; then it is prompt.
    """

    def __init__(self, task: DecodeTask, sampling: Sampling) -> None:
        self._task = task
        self._sampling = sampling
        self._end_ids = token_ids(task.denoiser.spec.end_ids)
        self._steps = 0
        self._is_full = False
        """The first candidate's canvas is filled, and its fill goes on."""

    def prefill(self, slot: int, prompt_ids: TokenIds, num_kept: int) -> int:
        """See `Filling.prefill`."""
        del num_kept
        return self._task.denoiser.prefill(slot, prompt_ids)

    def run(self, slot: int, layout: Layout) -> Generator[Progress, None, tuple[Draft, ...]]:
        """See `Filling.run`; only the first candidate goes on into further canvases."""
        task, spec = self._task, self._task.denoiser.spec
        length = task.limits.canvas_length
        plan = layout.canvas(length - len(layout.head_ids), spec, task.rng)
        drafts = yield from self._block(0, slot, [plan] * task.limits.num_canvases, Draft.empty())
        first, block = drafts[0], 0
        known_ids = layout.in_prompt().prompt_ids
        while self._is_full and not task.enough.is_met(first):
            prompt_ids = token_ids(np.concatenate([known_ids, first.ids]))
            if len(prompt_ids) > task.max_length or task.limits.is_over():
                break
            block += 1
            task.denoiser.prefill(slot, prompt_ids)
            plan = Layout(prompt_ids).canvas(length, spec, task.rng)
            (first,) = yield from self._block(block, slot, [plan], first)
        return (first, *drafts[1:])

    def _block(
        self, block: int, slot: int, plans: Sequence[Canvas], before: Draft
    ) -> Generator[Progress, None, tuple[Draft, ...]]:
        task = self._task
        drafts = (before,) * len(plans)
        self._is_full = False
        if task.limits.is_over():
            return drafts
        for states in race(task.denoiser, slot, plans, self._sampling, task.rng):
            self._steps += 1
            steps = tuple(map(gap_of, states))
            drafts = tuple(before.settle(step, self._end_ids) for step in steps)
            yield Progress(block, self._steps, steps[0], drafts[0])
            self._is_full = bool(steps[0].committed.all()) and not drafts[0].is_ended
            is_done = all(step.stop or task.enough.is_met(draft) for step, draft in zip(steps, drafts, strict=True))
            if is_done or task.limits.is_over():
                break
        return drafts
