"""Decodes token by token, and verifies drafts of several tokens in one causal pass.

A drafted token is accepted only where it is the best one after those before it, so that every decoder here gives the
same text. Drafts only save passes.
"""

import math
from collections.abc import Generator, Sequence

import numpy as np
from typing_extensions import override

from dg_lsp.canvas.layout import NOTHING, Layout, TokenIds, common_prefix_length, concat, token_ids
from dg_lsp.diffusion.denoiser import Prediction
from dg_lsp.diffusion.samplers import Step, denoise
from dg_lsp.engine.decoders.base import EMPTY, Decoder, Draft, Progress, gap_of

MAX_RETRIES = 5  # further drafts of one line that are begun
MAX_OPENING = 16  # prompt tokens that the first pass may decode along with the first token


class AutoregressiveDecoder(Decoder):
    """One pass gives one token.

    Before each pass the slot holds all but the newest token, which is decoded along with the draft after it.
    """

    @override
    def run(self) -> Generator[Progress, None, tuple[Draft, ...]]:
        """See `Decoder.run`. The layout has all that precedes the gap in its prompt.

        Each alternative draft differs from the first one at another token, first where the alternatives are most
        probable. There are as many as the limits set; of a single line a few more, each only as long as it may be the
        best one.
        """
        task = self._task
        limits = task.limits
        first = yield from self.first_draft()
        drafts = [first]
        confidence = first.confidence[: task.stop.num_shown(first.ids) + 1]
        chances = np.cumprod([1.0, *confidence[:-1]]) * (1 - confidence)  # of all drafts that differ at this token
        most = max(limits.num_candidates - 1, MAX_RETRIES if limits.max_lines == 1 else 0)
        for at in np.argsort(-chances, kind="stable")[:most].tolist():
            least = self._needed_confidence(drafts) if len(drafts) >= limits.num_candidates else 0.0
            if limits.is_over() or chances[at] < least:
                break
            draft = yield from self._branched(first, at, least)
            if limits.is_over():  # the first draft is better than a part of another one
                break
            if task.confidence(draft) >= least:
                drafts.append(draft)
        return tuple(drafts)

    def first_draft(self) -> Generator[Progress, None, Draft]:
        """The draft of the best token after the best token."""
        num_new = yield from self._prefill(self._task.layout.prompt_ids)
        return (yield from self._grow_to_end(EMPTY, num_new))

    def _needed_confidence(self, drafts: Sequence[Draft]) -> float:
        """How probable a further draft must be. While the user types, none is worth its time once a draft fits."""
        task = self._task
        least = task.limits.min_confidence
        best = max(0.0 if task.is_faulty(draft) else task.confidence(draft) for draft in drafts)
        is_late = task.costs.num_passes >= task.limits.early_stop_passes
        return math.inf if is_late or (least and best) else max(best, least)

    def _branched(self, first: Draft, at: int, least: float) -> Generator[Progress, None, Draft]:
        """A draft that is equal before this token and has another one there; it ends once it is less probable."""
        task = self._task
        draft = Draft(first.ids[:at], first.confidence[:at])
        known_ids = np.concatenate([task.layout.prompt_ids, draft.ids])
        excluded = first.ids[at : at + 1] if at < len(first.ids) else token_ids(task.spec.end_ids)
        task.hold(known_ids[:-1])
        prediction = task.extend(known_ids[-1:], excluded)
        task.costs.num_passes += 1
        confidence = prediction.confidence * (1 - first.confidence[at])  # the first draft's token has the rest
        draft = draft.grow(prediction.argmax_ids, confidence, self._task.spec.end_ids)
        return (yield from self._grow_to_end(draft, 1, least))

    def _grow_to_end(self, draft: Draft, num_new: int, least: float = 0.0) -> Generator[Progress, None, Draft]:
        """The slot lacks the last `num_new` tokens of prompt and draft. The draft ends once its probability is less."""
        task = self._task
        limits = task.limits
        prompt_ids = task.layout.prompt_ids
        known_ids = np.concatenate([prompt_ids, draft.ids])
        while not (self._is_done(draft) or limits.is_over() or np.prod(draft.confidence) < least):
            drafted = yield from self._drafted(known_ids, draft)
            if limits.is_over():
                break
            num_agreed = 0
            prediction = task.extend(np.concatenate([known_ids[len(known_ids) - num_new :], drafted]))
            task.costs.num_passes += 1
            if len(drafted):
                num_agreed = common_prefix_length(drafted, prediction.argmax_ids[num_new - 1 :])
            accepted = slice(num_new - 1, num_new + num_agreed)
            known_ids = np.concatenate([known_ids, prediction.argmax_ids[accepted]])
            if num_agreed < len(drafted):
                task.hold(known_ids[:-1])
            draft = self._grown(draft, prediction, accepted)
            num_new = 1
            fill_ids = known_ids[len(prompt_ids) : len(prompt_ids) + len(draft.confidence)]
            yield Progress(0, task.costs.num_passes, draft, fill_ids, draft.confidence)
        return draft

    def _prefill(self, prompt_ids: TokenIds) -> Generator[Progress, None, int]:
        """Returns how many of the last tokens are left to the first pass, at least one."""
        num_missing = len(prompt_ids) - self._task.num_kept
        num_left = max(1, num_missing) if num_missing <= MAX_OPENING else 1
        num_decoded = yield from self._task.prefill(prompt_ids[: len(prompt_ids) - num_left])
        self._task.costs.num_prefilled += num_left + num_decoded
        return num_left

    def _drafted(self, known_ids: TokenIds, draft: Draft) -> Generator[Progress, None, TokenIds]:
        """Tokens that may follow, with one value for each forward pass that it took to draft them.

        The slot holds all but the last token of `known_ids`, before and after.
        """
        del known_ids, draft
        yield from ()
        return NOTHING

    def _grown(self, draft: Draft, prediction: Prediction, accepted: slice) -> Draft:
        """Grows token by token, so that the draft stops where it would without drafted tokens."""
        ids = prediction.argmax_ids[accepted]
        confidence = prediction.confidence[accepted]
        for i in range(len(ids)):
            draft = draft.grow(ids[i : i + 1], confidence[i : i + 1], self._task.spec.end_ids)
            if i + 1 < len(ids) and self._is_done(draft):
                break
        return draft

    def _is_done(self, draft: Draft) -> bool:
        task = self._task
        is_full = len(task.layout.prompt_ids) + len(draft.confidence) >= task.max_length
        return is_full or task.is_done(draft)


class RemovedTextDecoder(AutoregressiveDecoder):
    """Decodes only until the tokens go as far as the cursor, see `Layout.removed`."""

    @override
    def _is_done(self, draft: Draft) -> bool:
        # a token has at least one byte
        is_longest = len(draft.confidence) >= len(self._task.layout.removed)
        return is_longest or self._task.stop.is_spelled(draft.ids) or super()._is_done(draft)


MAX_COPIED = 8  # the most of the last tokens that are compared with earlier ones
MAX_LOOKUP = 4  # longest draft, less after a short match: on a CPU a rejected token costs almost half a pass
BORDER = -1  # between the tokens before and after the cursor: no copy extends across it
_MARGIN = np.full(MAX_COPIED, BORDER - 1, np.int32)  # keeps windows of `MAX_COPIED` tokens inside the array


class PromptLookupDecoder(AutoregressiveDecoder):
    """Drafts cost no pass of their own; without a match a pass gives one token."""

    @override
    def _drafted(self, known_ids: TokenIds, draft: Draft) -> Generator[Progress, None, TokenIds]:
        yield from ()
        layout = self._task.layout
        fill_ids = known_ids[len(layout.prompt_ids) :]
        # after the longest earlier copy of the last tokens, the latest of equal copies
        text = concat(_MARGIN, layout.after_ids, token_ids([BORDER]), layout.before_ids, fill_ids)
        ends, sizes = _copies(text)
        if not len(ends):
            return NOTHING
        size, end = max(zip(sizes.tolist(), ends.tolist(), strict=True))
        following = text[end : end + min(size - 1, MAX_LOOKUP)]
        borders = np.flatnonzero(following == BORDER)
        return following[: borders[0]] if len(borders) else following


def _copies(text: TokenIds) -> tuple[TokenIds, TokenIds]:
    """Where copies of a text's last tokens end in it, and how long each is, at least 2; shape (N,) each."""
    last = text[-MAX_COPIED:]
    ends = np.flatnonzero(text[:-1] == last[-1]) + 1
    ends = ends[text[ends - 2] == last[-2]]
    if not len(ends):  # the usual case, and the rest takes longer than all before it
        return ends, ends
    is_same = text[ends[:, None] - np.arange(1, len(last) + 1)] == last[::-1]
    return ends, np.logical_and.accumulate(is_same, axis=1).sum(axis=1)


MIN_PROBABILITY = 0.2
"""A draft ends where the probability of all of it falls below this: a rejected token costs time, too."""


class SpeculativeDecoder(AutoregressiveDecoder):
    """Drafts with a canvas after the known tokens, denoised a step. For models that were trained to draft.

    The canvas begins with the newest token, so that drafting changes nothing in the slot.
    """

    @override
    def _prefill(self, prompt_ids: TokenIds) -> Generator[Progress, None, int]:
        # the canvas comes before the first causal pass, and needs all of the prompt but the newest token
        self._task.costs.num_prefilled += 1 + (yield from self._task.prefill(prompt_ids[:-1]))
        return 1

    @override
    def _drafted(self, known_ids: TokenIds, draft: Draft) -> Generator[Progress, None, TokenIds]:
        task = self._task
        layout = Layout(known_ids[:-1], head_ids=known_ids[-1:])
        canvas = layout.canvas(task.limits.canvas_length - 1, task.spec, task.rng)
        task.costs.count_canvases([canvas])
        step = gap_of(next(denoise(task.denoiser, task.slot, canvas, task.sampling, task.rng)))
        task.costs.num_passes += 1
        ids = np.concatenate([draft.ids, step.draft_ids])
        confidence = np.concatenate([draft.confidence, step.confidence])
        yield Progress(0, task.costs.num_passes, draft, ids, confidence)
        return step.draft_ids[: self._num_likely(step)]

    def _num_likely(self, step: Step) -> int:
        """Length of the part worth verifying, the first end token included."""
        ends = (at for at, token in enumerate(step.draft_ids.tolist(), start=1) if token in self._task.spec.end_ids)
        length = next(ends, len(step.draft_ids))
        unlikely = np.flatnonzero(np.cumprod(step.confidence[:length]) < MIN_PROBABILITY)
        return int(unlikely[0]) if len(unlikely) else length
