"""The plan `causal`, and the loop that every plan with a causal head shares: guess, check in one pass, accept, repeat.

Whatever is guessed, the text is the same: a token is accepted only where it is the best one after those before it.
Guesses save passes, nothing else.
"""

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.layout import Layout
from dg_lsp.canvas.plan import TokenIds, common_prefix_length, token_ids
from dg_lsp.diffusion.denoiser import Floats, Prediction
from dg_lsp.diffusion.step import Step
from dg_lsp.engine.draft import Draft
from dg_lsp.engine.filling import Progress, Task

OPENING = 16
"""The first pass takes the prompt's end along where it lacks no more: what a keystroke changes costs no pass."""
NOTHING = token_ids([])


class CausalFilling:
    """See `Filling`. Without guesses one pass gives one token.

    The slot holds everything but the newest token before each pass: that one goes in with the guess.
    """

    def __init__(self, task: Task) -> None:
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
