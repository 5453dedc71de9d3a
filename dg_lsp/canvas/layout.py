"""One place as a model is asked: what is cached of it, and what stands frozen around the hole in the canvas."""

from dataclasses import dataclass, field, replace

import numpy as np

from dg_lsp.canvas.plan import CanvasPlan, TokenIds, token_ids
from dg_lsp.canvas.spec import MaskSampling, ModelSpec

NOTHING = token_ids([])


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Prompt, then head, hole and tail of a canvas. Without head and tail the canvas is open."""

    prompt_ids: TokenIds
    """Shape (P,): encoded causally, cached."""
    head_ids: TokenIds = field(default_factory=lambda: NOTHING)
    """Frozen before the hole: the prefix's tail, or how an answer begins."""
    tail_ids: TokenIds = field(default_factory=lambda: NOTHING)
    """Frozen after the hole as far as the canvas has room: the suffix's head."""
    before_ids: TokenIds = field(default_factory=lambda: NOTHING)
    """The code before the hole, wherever it is shown."""
    after_ids: TokenIds = field(default_factory=lambda: NOTHING)
    """The code after the hole, wherever it is shown."""
    stop: str = ""
    """A line that begins so ends the fill as an end token would; nothing never does."""

    @property
    def num_known(self) -> int:
        """Tokens before the hole, prompt and head together."""
        return len(self.prompt_ids) + len(self.head_ids)

    def canvas(self, num_free: int, spec: ModelSpec, rng: np.random.Generator, *, length: int = 0) -> CanvasPlan:
        """Head, `num_free` tokens of noise, and as much of the tail as fits into `length`, 0 for none of it."""
        size = len(self.head_ids)
        tail_ids = self.tail_ids[: max(0, length - size - num_free)]
        canvas = np.concatenate([self.head_ids, noise(spec, num_free, rng), tail_ids])
        frozen = np.ones(len(canvas), np.bool_)
        frozen[size : size + num_free] = False
        return CanvasPlan(self.prompt_ids, canvas, frozen)

    def in_prompt(self) -> "Layout":
        """The same for who goes on causally: what stands before the hole is all prompt, and no tail is seen."""
        if not (len(self.head_ids) or len(self.tail_ids)):
            return self
        prompt_ids = token_ids(np.concatenate([self.prompt_ids, self.head_ids]))
        return replace(self, prompt_ids=prompt_ids, head_ids=NOTHING, tail_ids=NOTHING)


OPEN = Layout(NOTHING)
"""Nothing known, nothing frozen."""


def noise(spec: ModelSpec, length: int, rng: np.random.Generator) -> TokenIds:
    """Masks, or random tokens for uniform noise; shape (length,)."""
    if isinstance(spec.sampling, MaskSampling):
        return np.full(length, spec.sampling.mask_id, np.int32)
    return rng.integers(0, spec.vocab_size, length, dtype=np.int32)


def end_of(ids: TokenIds, room: int) -> TokenIds:
    """The last tokens that fit, cut in steps of an eighth of the room: the start that a cache holds moves rarely."""
    excess = len(ids) - room
    if excess <= 0:
        return ids
    stride = max(1, room // 8)
    return ids[-(-excess // stride) * stride :]
