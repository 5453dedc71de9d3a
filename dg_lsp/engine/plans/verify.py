"""The plan `draft-verify`: a canvas guesses a run of tokens at once, one causal pass accepts what it agrees with."""

from collections.abc import Generator
from dataclasses import replace
from itertools import islice

import numpy as np

from dg_lsp.canvas.fim import open_canvas
from dg_lsp.canvas.plan import TokenIds, among
from dg_lsp.canvas.spec import Sampling
from dg_lsp.diffusion.loop import denoise
from dg_lsp.diffusion.step import Step
from dg_lsp.engine.draft import Draft
from dg_lsp.engine.filling import Progress, Task
from dg_lsp.engine.plans.causal import NOTHING, CausalFilling, progress

NUM_DRAFTING = 1
"""Denoising steps of a guess."""
MIN_CHANCE = 0.2
"""A guess ends where all of it up to there is less probable: a token checked in vain costs, too."""


class VerifiedFilling(CausalFilling):
    """See `Filling`."""

    def __init__(self, task: Task, sampling: Sampling, num_drafting: int = NUM_DRAFTING) -> None:
        super().__init__(task)
        self._sampling = sampling
        self._num_drafting = num_drafting

    def prefill(self, slot: int, prompt_ids: TokenIds, num_kept: int) -> int:
        """See `Filling.prefill`; the canvas comes first and needs the whole prompt."""
        del num_kept
        return self._task.denoiser.prefill(slot, prompt_ids)

    def _guess(self, slot: int, known_ids: TokenIds, draft: Draft) -> Generator[Progress, None, tuple[TokenIds, int]]:
        task, spec = self._task, self._task.denoiser.spec
        task.denoiser.prefill(slot, known_ids)
        plan = open_canvas(known_ids, spec, task.limits.canvas_length, task.rng)
        guess, num_passes = NOTHING, 0
        for step in islice(denoise(task.denoiser, slot, plan, self._sampling, task.rng), self._num_drafting):
            guess, num_passes = step.draft_ids[: self._num_likely(step)], step.number
            yield progress(
                replace(draft, steps=draft.steps + num_passes),
                np.concatenate([draft.ids, step.draft_ids]),
                np.concatenate([draft.confidence, step.confidence]),
            )
        task.denoiser.prefill(slot, known_ids[:-1])
        return guess, num_passes

    def _num_likely(self, step: Step) -> int:
        """Length of the part worth checking, the first end token included."""
        ends = np.flatnonzero(among(step.draft_ids, self._end_ids))
        length = int(ends[0]) + 1 if len(ends) else len(step.draft_ids)
        unlikely = np.flatnonzero(np.cumprod(step.confidence[:length]) < MIN_CHANCE)
        return int(unlikely[0]) if len(unlikely) else length
