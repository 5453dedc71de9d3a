"""The plan `causal`, and the loop that every plan with a causal head shares: guess, check in one pass, accept, repeat.

Whatever is guessed, the text is the same: a token is accepted only where it is the best one after those before it.
Guesses save passes, nothing else.
"""

from collections.abc import Generator
from dataclasses import replace
from itertools import islice

import numpy as np

from dg_lsp.canvas.fim import open_canvas
from dg_lsp.canvas.layout import Layout, TokenIds, among, common_prefix_length, token_ids
from dg_lsp.canvas.spec import Sampling
from dg_lsp.diffusion.denoiser import Floats, Prediction
from dg_lsp.diffusion.loop import denoise
from dg_lsp.diffusion.step import Step
from dg_lsp.engine.decoders.base import DecodeTask, Progress
from dg_lsp.engine.stop_criteria import Draft

OPENING = 16
"""The first pass takes the prompt's end along where it lacks no more: what a keystroke changes costs no pass."""
NOTHING = token_ids([])


class AutoregressiveDecoder:
    """See `Filling`. Without guesses one pass gives one token.

    The slot holds everything but the newest token before each pass: that one goes in with the guess.
    """

    def __init__(self, task: DecodeTask) -> None:
        self._task = task
        self._end_ids = token_ids(task.denoiser.spec.end_ids)
        self._num_opening = 1
        self._room = 0

    def prefill(self, slot: int, prompt_ids: TokenIds, num_kept: int) -> int:
        """See `Filling.prefill`; leaves at least the last token to the first pass, which asks what follows it."""
        num_missing = len(prompt_ids) - num_kept
        self._num_opening = max(1, num_missing) if num_missing <= OPENING else 1
        num_ready = len(prompt_ids) - self._num_opening
        return self._task.denoiser.prefill(slot, prompt_ids[:num_ready]) + self._num_opening

    def run(self, slot: int, layout: Layout) -> Generator[Progress, None, tuple[Draft, ...]]:
        """See `Filling.run`; one draft. What stands before the hole is all in the prompt."""
        task, denoiser, prompt_ids = self._task, self._task.denoiser, layout.prompt_ids
        known_ids, num_new, draft = prompt_ids, self._num_opening, Draft.empty()
        self._room = task.max_length - len(prompt_ids)
        while not (self._is_done(draft) or task.limits.is_over()):
            guess, num_passes = yield from self._guess(slot, known_ids, draft)
            if task.limits.is_over():
                break
            prediction = denoiser.extend(slot, np.concatenate([known_ids[len(known_ids) - num_new :], guess]))
            num_agreed = common_prefix_length(guess, prediction.argmax_ids[num_new - 1 :])
            accepted = slice(num_new - 1, num_new + num_agreed)
            known_ids = np.concatenate([known_ids, prediction.argmax_ids[accepted]])
            if num_agreed < len(guess):
                denoiser.prefill(slot, known_ids[:-1])
            draft = self._grown(replace(draft, steps=draft.steps + num_passes + 1), prediction, accepted)
            num_new = 1
            yield progress(draft, known_ids[len(prompt_ids) :][: len(draft.confidence)], draft.confidence)
        return (draft,)

    def _guess(self, slot: int, known_ids: TokenIds, draft: Draft) -> Generator[Progress, None, tuple[TokenIds, int]]:
        """What may follow, and the forward passes that it took to guess it, with a value after each.

        The slot holds all but the last token known, before and after. Plain causal decoding guesses nothing.
        """
        del slot, known_ids, draft
        yield from ()
        return NOTHING, 0

    def _grown(self, draft: Draft, prediction: Prediction, accepted: slice) -> Draft:
        """Token by token, so that the draft stops where it would without guesses."""
        ids, confidence = prediction.argmax_ids[accepted], prediction.confidence[accepted]
        for i in range(len(ids)):
            draft = draft.grow(ids[i : i + 1], confidence[i : i + 1], self._end_ids)
            if i + 1 < len(ids) and self._is_done(draft):
                break
        return draft

    def _is_done(self, draft: Draft) -> bool:
        return len(draft.confidence) >= self._room or self._task.enough.is_met(draft)


def progress(draft: Draft, fill_ids: TokenIds, confidence: Floats) -> Progress:
    """After a pass: what is committed, and behind it what is only guessed; both of shape (N,)."""
    committed = np.arange(len(fill_ids)) < len(draft.confidence)
    step = Step(
        number=draft.steps,
        canvas_ids=fill_ids,
        draft_ids=fill_ids,
        frozen=np.zeros(len(fill_ids), np.bool_),
        committed=committed,
        confidence=confidence,
    )
    return Progress(0, draft.steps, step, draft)


MIN_MATCH, MAX_MATCH = 2, 8
"""Tokens that must be the same before a guess; of more, more say nothing."""
MAX_GUESS = 4
"""And less after a short match: on a CPU a token checked in vain costs almost half a pass of its own."""
MAX_ECHO = 8
"""What is taken over the model's own is never in vain."""
_BORDER = token_ids([-1])
"""No token: nothing matches across it."""


class PromptLookupDecoder(AutoregressiveDecoder):
    """See `Filling`. Guesses cost no pass of their own; without a match a pass gives one token."""

    def __init__(self, task: DecodeTask) -> None:
        super().__init__(task)
        self._text = NOTHING
        self._num_prompt = 0

    def run(self, slot: int, layout: Layout) -> Generator[Progress, None, tuple[Draft, ...]]:
        """See `Filling.run`."""
        self._text = np.concatenate([layout.after_ids, _BORDER, layout.before_ids])
        self._num_prompt = len(layout.prompt_ids)
        return (yield from super().run(slot, layout))

    def _guess(self, slot: int, known_ids: TokenIds, draft: Draft) -> Generator[Progress, None, tuple[TokenIds, int]]:
        del slot, draft
        yield from ()
        fill_ids = known_ids[self._num_prompt :]
        echoed = self._task.echo.run(fill_ids, MAX_ECHO) if self._task.echo else NOTHING
        return echoed if len(echoed) else continuation(np.concatenate([self._text, fill_ids])), 0


def continuation(ids: TokenIds) -> TokenIds:
    """What followed the longest earlier copy of the last tokens, the latest of equally long ones; shape (0..4,)."""
    if len(ids) <= MIN_MATCH:
        return NOTHING
    is_match = (ids[1:-1] == ids[-1]) & (ids[:-2] == ids[-2])
    ends = np.flatnonzero(is_match) + MIN_MATCH  # where the continuation begins
    if not len(ends):
        return NOTHING
    length, best = max((_match_length(ids, end), end) for end in ends.tolist())
    following = ids[best : best + min(length - 1, MAX_GUESS)]
    borders = np.flatnonzero(following == _BORDER[0])
    return following[: borders[0]] if len(borders) else following


def _match_length(ids: TokenIds, end: int) -> int:
    """How many tokens before `end` are the last ones, at most `MAX_MATCH`."""
    size = min(end, MAX_MATCH)
    same = (ids[end - size : end] == ids[len(ids) - size :])[::-1]
    return size if same.all() else int(np.argmin(same))


NUM_DRAFTING = 1
"""Denoising steps of a guess."""
MIN_CONFIDENCE = 0.2
"""A guess ends where all of it up to there is less probable: a token checked in vain costs, too."""


class SpeculativeDecoder(AutoregressiveDecoder):
    """See `Filling`."""

    def __init__(self, task: DecodeTask, sampling: Sampling, num_drafting: int = NUM_DRAFTING) -> None:
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
        unlikely = np.flatnonzero(np.cumprod(step.confidence[:length]) < MIN_CONFIDENCE)
        return int(unlikely[0]) if len(unlikely) else length
