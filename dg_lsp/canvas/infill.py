"""Infill layouts: the prefix's tail and the suffix's head are frozen in the canvas around a gap.

For models that fill masks anywhere but have no fill-in-the-middle tokens. The length of the fill is unknown, so several
gap lengths are tried in one pass; all canvases of a pass are equally long, and a shorter gap sees more of the suffix.
"""

import numpy as np

from dg_lsp.canvas.fim import snippet_ids
from dg_lsp.canvas.layout import Layout, Tokenizer, end_of, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.context.window import Prompt

GAP_LENGTHS = (4, 8, 16, 32)
"""Default gap lengths in tokens."""
PREFIX_TAIL = 8
"""Prefix tokens in the canvas: they attend to the gap, and a keystroke tokenizes only them again."""
MIN_SUFFIX = 8
"""Suffix tokens in the canvas, at least, if there are as many."""
PASS_TOKENS = 256
"""Tokens of all canvases of one pass: what every runtime has room for."""
_CHARS_PER_TOKEN = 16
"""Upper bound of the average token length: limits how much of the suffix is encoded."""


def infill_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """Layout with 1 to `max_tokens` prompt tokens; the tail fills the longest canvas."""
    start = token_ids(spec.start_ids)
    before = tokenizer.encode(prompt.prefix or "\n")  # the prompt must not be empty
    num_head = min(PREFIX_TAIL, len(before) - (not len(start)))
    cut = len(before) - num_head
    snippets = snippet_ids(prompt, tokenizer, spec, max_tokens)
    cached = end_of(before[:cut], max(1, max_tokens - len(start) - len(snippets)), prompt.ahead)
    room = max(0, spec.longest_block - num_head - 1)
    after = tokenizer.encode(prompt.suffix[: room * _CHARS_PER_TOKEN])
    return Layout(
        token_ids(np.concatenate([start, snippets, cached])),
        head_ids=before[cut:],
        tail_ids=after[:room],
        before_ids=before,
        after_ids=after,
    )


def num_frozen(layout: Layout) -> int:
    """Frozen tokens of a canvas, at least: the head, and the beginning of the tail."""
    return len(layout.head_ids) + min(MIN_SUFFIX, len(layout.tail_ids))


def gap_lengths(layout: Layout, length: int, spec: ModelSpec) -> tuple[int, ...]:
    """Gap lengths to try in canvases of `length` tokens, ascending; a single one without a suffix."""
    most = max(1, length - num_frozen(layout))
    fitting = tuple(size for size in spec.gap_lengths or GAP_LENGTHS if size <= most) or (most,)
    return fitting if len(layout.tail_ids) else fitting[-1:]


def shared_length(layout: Layout, length: int, num_canvases: int) -> int:
    """Length of each canvas so that all canvases fit into one pass."""
    return max(len(layout.head_ids) + 1, min(length, PASS_TOKENS // max(1, num_canvases)))


def grown(gap: int, layout: Layout, spec: ModelSpec, max_tokens: int) -> int | None:
    """The next longer gap: twice as long, or as long as fits; None if no longer one fits."""
    most = min(max_tokens, spec.longest_block - num_frozen(layout))
    return min(2 * gap, most) if gap < most else None


def canvas_of(gap: int, layout: Layout, spec: ModelSpec) -> int:
    """The model's shortest canvas length that holds the gap and the frozen tokens around it."""
    least = gap + num_frozen(layout)
    return min((length for length in spec.canvas_lengths if length >= least), default=spec.longest_block)
