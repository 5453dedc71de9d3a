"""Pinned canvases: the prefix's tail and the suffix's head stand frozen around a hole of so many tokens.

For models that fill masks anywhere but know no sentinels. How long the hole has to be is not known, so several lengths
are raced; all canvases of a race are equally long, and a shorter hole sees more of the suffix.
"""

import numpy as np

from dg_lsp.canvas.fim import extra_ids
from dg_lsp.canvas.layout import Layout, end_of, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.window import Prompt

GAP_LENGTHS = (4, 8, 16, 32)
"""Raced where the model's file says nothing."""
PREFIX_TAIL = 8
"""Tokens before the hole that see it, as the cached prompt does not. They are also what a keystroke retokenizes."""
MIN_SUFFIX = 8
"""Tokens that a hole must join with where there are so many."""
RACED_TOKENS = 256
"""Of all canvases of one pass together: what every runtime has room for."""
_CHARS_PER_TOKEN = 16
"""More than a token of source text ever has on average: no more of the suffix is encoded."""


def infill_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """At least one token of prompt and at most `max_tokens`; the tail is as long as any canvas has room for."""
    start = token_ids(spec.start_ids)
    before = tokenizer.encode(prompt.prefix or "\n")  # a model needs something to go on from
    num_head = min(PREFIX_TAIL, len(before) - (not len(start)))
    cut = len(before) - num_head
    extra = extra_ids(prompt, tokenizer, spec, max_tokens)
    cached = end_of(before[:cut], max(1, max_tokens - len(start) - len(extra)))
    room = max(0, spec.longest_block - num_head - 1)
    after = tokenizer.encode(prompt.suffix[: room * _CHARS_PER_TOKEN])
    return Layout(
        token_ids(np.concatenate([start, extra, cached])),
        head_ids=before[cut:],
        tail_ids=after[:room],
        before_ids=before,
        after_ids=after,
    )


def gap_lengths(layout: Layout, length: int, spec: ModelSpec) -> tuple[int, ...]:
    """What is raced in canvases of `length` tokens, ascending; one hole where there is nothing to join with."""
    most = max(1, length - len(layout.head_ids) - min(MIN_SUFFIX, len(layout.tail_ids)))
    fitting = tuple(size for size in spec.hole_lengths or GAP_LENGTHS if size <= most) or (most,)
    return fitting if len(layout.tail_ids) else fitting[-1:]


def raced_length(layout: Layout, length: int, num_raced: int) -> int:
    """Tokens of each canvas of a race, so that all of them fit into one pass."""
    least = len(layout.head_ids) + 1
    return max(least, min(length, RACED_TOKENS // max(1, num_raced)))


def grown(hole: int, layout: Layout, spec: ModelSpec, max_tokens: int) -> int | None:
    """The next longer hole, twice as long where that fits; None where none does."""
    most = min(max_tokens, spec.longest_block - len(layout.head_ids) - min(MIN_SUFFIX, len(layout.tail_ids)))
    return min(2 * hole, most) if hole < most else None


def canvas_of(hole: int, layout: Layout, spec: ModelSpec) -> int:
    """The model's shortest canvas that holds the hole and what stands frozen around it at least."""
    least = hole + len(layout.head_ids) + min(MIN_SUFFIX, len(layout.tail_ids))
    return min((length for length in spec.canvas_lengths if length >= least), default=spec.longest_block)
