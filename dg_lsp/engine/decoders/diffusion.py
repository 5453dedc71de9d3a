"""Denoises canvases: open ones block by block, and gaps of several lengths whose suffix is frozen."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from dg_lsp.canvas.layout import Canvas, Layout, TokenIds, noise, token_ids
from dg_lsp.canvas.spec import MaskSampling
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.diffusion.samplers import Step, denoise_together
from dg_lsp.engine.decoders.autoregressive import RemovedTextDecoder
from dg_lsp.engine.decoders.base import EMPTY, Decoder, Draft, Progress, gap_of, gap_slice

if TYPE_CHECKING:
    from dg_lsp.engine.decode_task import DecodeTask

Drafts = tuple[Draft, ...]
JOIN_TOKENS = 4  # tokens after the gap that are predicted again for each candidate


class DiffusionDecoder(Decoder):
    """See `Decoder`. Several canvases share each pass; only the first one's fill continues in further canvases.

    The slot holds the prompt and all canvases but the last afterwards. Tokens that a layout freezes before the gap,
    such as the beginning of an answer, stand in the first canvas and are prompt for the next ones.
    """

    _explores = True  # later canvases begin with a sampled token
    _steps: tuple[Step, ...] = ()  # the canvases after the last pass

    @override
    def run(self) -> Generator[Progress, None, Drafts]:
        task = self._task
        layout = task.layout
        known_ids = layout.in_prompt().prompt_ids
        begun = EMPTY
        block = 0
        if layout.removed:  # causal passes give the tokens that go as far as the cursor
            begun = yield from RemovedTextDecoder(task).first_draft()
            layout = Layout(token_ids(np.concatenate([known_ids, begun.ids])))
            yield from task.prefill(layout.prompt_ids)
        else:
            task.costs.num_prefilled += yield from task.prefill(layout.prompt_ids)
        canvas = self._canvas(layout)
        num_canvases = task.spec.num_canvases(task.limits.num_candidates)
        first, *further = yield from self._denoise(block, [canvas] * num_canvases, begun)
        while self._is_full(first) and not task.is_done(first):
            prompt_ids = token_ids(np.concatenate([known_ids, first.ids]))
            if len(prompt_ids) > task.max_length or task.limits.is_over():
                break
            block += 1
            task.hold(prompt_ids)
            canvas = self._canvas(Layout(prompt_ids))
            (first,) = yield from self._denoise(block, [canvas], first)
        return (first, *further)

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
        task = self._task
        limits = task.limits
        drafts = (before,) * len(canvases)
        if limits.is_over() or not limits.max_tokens:  # 0 tokens: only the prompt is decoded
            return drafts
        task.costs.count_canvases(canvases)
        for steps in denoise_together(
            task.denoiser, task.slot, canvases, task.sampling, task.rng, explores=self._explores
        ):
            gaps = tuple(map(gap_of, steps))
            drafts = tuple(self._draft(gap, before) for gap in gaps)
            self._steps = steps
            task.costs.num_passes += 1
            is_done = all(gap.is_over or task.is_done(draft) for gap, draft in zip(gaps, drafts, strict=True))
            best = self._best(drafts)
            # under uniform noise a later step may change settled tokens: only earlier canvases are shown until the end
            draft = drafts[best] if is_done or isinstance(task.sampling, MaskSampling) else before
            yield Progress.of(block, task.costs.num_passes, gaps[best], draft, len(before.ids))
            if is_done or limits.is_over():
                break
        return drafts

    def _draft(self, gap: Step, before: Draft) -> Draft:
        settled = gap.num_settled
        # with uniform noise the canvas may hold noise at a settled position
        return before.grow(gap.draft_ids[:settled], gap.confidence[:settled], self._task.spec.end_ids)

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

    @override
    def run(self) -> Generator[Progress, None, Drafts]:
        task = self._task
        layout = task.layout
        block = 0
        task.costs.num_prefilled += yield from task.prefill(layout.prompt_ids)
        length, gaps = layout.shared_pass(task.limits.canvas_length, task.spec)
        drafts = yield from self._fill_gaps(block, gaps, length)
        gap = gaps[-1]
        while self._is_short(drafts, gap):
            longer = layout.longer_gap(gap, task.spec, task.limits.max_tokens)
            if longer is None:
                break
            gap = longer
            block += 1
            task.hold(layout.prompt_ids)  # drops the state of the canvases before
            length = task.spec.canvas_for(gap + layout.num_frozen)
            drafts += yield from self._fill_gaps(block, (gap,), length)
        return drafts

    def _is_short(self, drafts: Drafts, gap: int) -> bool:
        """The longest gap won, it is full, and there is time for a longer one."""
        task = self._task
        last = drafts[-1]
        resizes = isinstance(task.sampling, MaskSampling) and task.sampling.expand_id is not None
        is_late = task.limits.is_over() or task.costs.num_passes >= task.limits.early_stop_passes
        if resizes or is_late or len(last.ids) < gap:
            return False
        return self._best(drafts) == len(drafts) - 1 and not task.is_done(replace(last, is_ended=False))

    def _fill_gaps(self, block: int, gaps: Sequence[int], length: int) -> Generator[Progress, None, Drafts]:
        task = self._task
        layout = task.layout
        canvases = [layout.canvas(gap, task.spec, task.rng, length=length) for gap in gaps]
        drafts = yield from self._denoise(block, canvases)
        if self._steps and len(layout.tail_ids) and not task.limits.is_over():
            scores = join_scores(task, self._steps, lambda step: [gap_slice(step)])
            drafts = tuple(replace(draft, join=join) for draft, (join,) in zip(drafts, scores, strict=True))
            best = self._best(drafts)
            yield Progress.of(block, task.costs.num_passes, gap_of(self._steps[best]), drafts[best])
        return drafts

    @override
    def _draft(self, gap: Step, before: Draft) -> Draft:
        draft = super()._draft(gap, before)
        is_ended = draft.is_ended or bool(gap.committed.all())
        stop = self._task.stop
        if (size := stop.num_shown(draft.ids)) < len(draft.ids):
            has_more = bool(stop.decode(draft.ids[size:]).strip(b"\n"))
            shown = replace(draft, ids=draft.ids[:size], confidence=draft.confidence[:size])
            return replace(shown, is_ended=True, is_cut=has_more or not is_ended)
        return replace(draft, is_ended=is_ended)

    @override
    def _best(self, drafts: Drafts) -> int:
        # the highest score of the drafts that are not empty; of none, the last
        return max(reversed(range(len(drafts))), key=lambda i: -np.inf if drafts[i].is_empty else drafts[i].score)


def join_scores(
    task: "DecodeTask", steps: Sequence[Step], gaps_of: Callable[[Step], Sequence[slice]]
) -> list[list[float]]:
    """How well the first known tokens after each fill follow it, from one pass in which they are noise.

    A score for each canvas and each of its gaps, which `gaps_of` gives in ascending order.
    """
    joined = [_joined(task, step, gaps_of(step)) for step in steps]
    noisy_canvases: list[TokenIds] = []
    for canvas, ends in joined:
        noisy = canvas.copy()
        for start, limit in zip(ends, [*ends[1:], len(canvas)], strict=True):
            unknown = noisy[start : min(start + JOIN_TOKENS, limit)]
            unknown[:] = noise(task.spec, len(unknown), task.rng)
        noisy_canvases.append(noisy)
    # lanes of their own: a model that is conditioned on its last prediction has seen the tokens there
    lanes = range(len(joined), 2 * len(joined))
    predictions = task.denoiser.predict(task.slot, noisy_canvases, 0.0, task.rng, lanes)
    task.costs.num_passes += 1
    return [
        [_join_score(prediction, canvas, end) for end in ends]
        for prediction, (canvas, ends) in zip(predictions, joined, strict=True)
    ]


def _joined(task: "DecodeTask", step: Step, gaps: Sequence[slice]) -> tuple[TokenIds, list[int]]:
    """The canvas with only the shown part of each fill, and where the fills end in it."""
    parts: list[TokenIds] = []
    ends: list[int] = []
    at = 0
    for gap in gaps:
        fill = EMPTY.grow(step.draft_ids[gap], step.confidence[gap], task.spec.end_ids).ids
        parts += [step.canvas_ids[at : gap.start], fill[: task.stop.num_shown(fill)]]
        ends.append(sum(map(len, parts)))
        at = gap.stop
    return np.concatenate([*parts, step.canvas_ids[at:]]), ends


def _join_score(prediction: Prediction, canvas: TokenIds, end: int) -> float:
    """Mean log probability in nats of up to four tokens from `end` on; 0 for none.

    A prediction has the probability of its best token only. Any other token has at most that probability, and at most
    what the best one leaves.
    """
    where = slice(end, end + JOIN_TOKENS)
    best = prediction.confidence[where]
    is_right = prediction.argmax_ids[where] == canvas[where]
    probability = np.where(is_right, best, np.minimum(best, 1 - best))
    return float(np.log(np.maximum(probability, 1e-6)).mean()) if len(probability) else 0.0
