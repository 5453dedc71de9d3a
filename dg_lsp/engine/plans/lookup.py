"""The plan `lookup`: code repeats itself, so what followed the same last tokens in the prompt is the guess."""

from collections.abc import Generator

import numpy as np

from dg_lsp.canvas.layout import Layout
from dg_lsp.canvas.plan import TokenIds, token_ids
from dg_lsp.engine.draft import Draft
from dg_lsp.engine.filling import Progress, Task
from dg_lsp.engine.plans.causal import NOTHING, CausalFilling

MIN_MATCH, MAX_MATCH = 2, 8
"""Tokens that must be the same before a guess; of more, more say nothing."""
MAX_GUESS = 4
"""And less after a short match: on a CPU a token checked in vain costs almost half a pass of its own."""
MAX_ECHO = 8
"""What is taken over the model's own is never in vain."""
_BORDER = token_ids([-1])
"""No token: nothing matches across it."""


class LookupFilling(CausalFilling):
    """See `Filling`. Guesses cost no pass of their own; without a match a pass gives one token."""

    def __init__(self, task: Task) -> None:
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
