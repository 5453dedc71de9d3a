"""Denoising one request canvas by canvas, until every candidate has said enough or the time is up."""

import time
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from dg_lsp.canvas.fim import next_canvas, open_canvas
from dg_lsp.canvas.plan import CanvasPlan, TokenIds, token_ids
from dg_lsp.canvas.spec import MaskSampling, UniformSampling, UnmaskOrder
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.diffusion.loop import race
from dg_lsp.diffusion.step import Step
from dg_lsp.engine.draft import Draft
from dg_lsp.postprocess.trim import cut_loops, goes_in_circles


@dataclass(frozen=True, slots=True)
class Limits:
    """When a fill is long enough."""

    canvas_length: int
    max_tokens: int
    max_lines: int | None
    num_candidates: int
    deadline: float | None
    """`time.monotonic` seconds."""

    def is_over(self) -> bool:
        """The deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """The first candidate after one denoising step."""

    block: int
    """0 for the first canvas; a longer fill goes on in further ones."""
    number: int
    """Steps so far, counted over the whole request."""
    step: Step
    draft: Draft


class Filling:
    """One request on one slot. The slot holds the prompt already; it holds the fill's canvases too afterwards."""

    def __init__(
        self,
        denoiser: Denoiser,
        tokenizer: Tokenizer,
        sampling: MaskSampling | UniformSampling,
        limits: Limits,
        rng: np.random.Generator,
    ) -> None:
        self._denoiser = denoiser
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._limits = limits
        self._rng = rng
        self._end_ids = token_ids(denoiser.spec.end_ids)
        self._steps = 0

    def run(self, slot: int, prompt_ids: TokenIds) -> Generator[Progress, None, tuple[Draft, ...]]:
        """Drafts of all candidates; only the first goes on into further canvases."""
        spec, limits = self._denoiser.spec, self._limits
        plan = open_canvas(prompt_ids, spec, limits.canvas_length, self._rng)
        drafts = yield from self._block(0, slot, [plan] * limits.num_candidates, Draft.empty())
        first, block = drafts[0], 0
        while not self._is_enough(first) and len(first.ids) == (block + 1) * limits.canvas_length:
            plan = next_canvas(plan, first.ids[block * limits.canvas_length :], spec, self._rng)
            if len(plan.prompt_ids) > spec.max_prompt_tokens + spec.canvas_lengths[-1] or limits.is_over():
                break
            block += 1
            self._denoiser.prefill(slot, plan.prompt_ids)
            (first,) = yield from self._block(block, slot, [plan], first)
        return (first, *drafts[1:])

    def _block(
        self, block: int, slot: int, plans: list[CanvasPlan], before: Draft
    ) -> Generator[Progress, None, tuple[Draft, ...]]:
        drafts = (before,) * len(plans)
        if self._limits.is_over():
            return drafts
        for steps in race(self._denoiser, slot, plans, self._sampling, self._rng):
            self._steps += 1
            drafts = tuple(before.extend(step, self._end_ids) for step in steps)
            yield Progress(block, self._steps, steps[0], drafts[0])
            is_done = all(step.stop or self._is_enough(draft) for step, draft in zip(steps, drafts, strict=True))
            if is_done or self._limits.is_over():
                break
        return drafts

    def _is_enough(self, draft: Draft) -> bool:
        """The fill has ended, all the lines that may be shown are complete, or nothing new will come."""
        if draft.is_ended or len(draft.ids) >= self._limits.max_tokens:
            return True
        text = self._tokenizer.decode(draft.ids).decode("utf-8", "replace")
        has_all_lines = self._limits.max_lines is not None and text.count("\n") >= self._limits.max_lines
        return has_all_lines or goes_in_circles(text) or cut_loops(text) != text


def with_overrides(
    sampling: MaskSampling | UniformSampling, confidence_threshold: float, order: str
) -> MaskSampling | UniformSampling:
    """The model's own sampling where a setting is left at 0 or empty; uniform noise has neither setting."""
    if not isinstance(sampling, MaskSampling):
        return sampling
    return replace(
        sampling,
        confidence_threshold=confidence_threshold or sampling.confidence_threshold,
        order=UnmaskOrder(order) if order else sampling.order,
    )
