"""Prompt of a cursor position, and the layout function of a prompt format.

Infill layouts are for models that fill masks anywhere but have no fill-in-the-middle tokens: the prefix's tail and the
suffix's head are frozen in the canvas around a gap. Its length is unknown, so several are tried in one pass; all
canvases of a pass are equally long, and a shorter gap sees more of the suffix.
"""

from dataclasses import replace

import numpy as np

from dg_lsp.canvas.chat import TEMPLATES, has_template, instruct_layout
from dg_lsp.canvas.fim import SUFFIX_SHARE, fim_layout, snippet_ids
from dg_lsp.canvas.layout import Layout, Tokenizer, end_of, token_ids
from dg_lsp.canvas.spec import ModelSpec, PromptFormat
from dg_lsp.context.document import Snapshot
from dg_lsp.context.window import CHARS_PER_TOKEN, Prompt, prompt_at, shown_path
from dg_lsp.errors import RequestError

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


_BUILDERS = {
    PromptFormat.FIM: fim_layout,
    PromptFormat.PREFIX: fim_layout,
    PromptFormat.INFILL: infill_layout,
    PromptFormat.INSTRUCT: instruct_layout,
}


def prompt_of(
    snapshot: Snapshot,
    offset: int,
    max_tokens: int,
    suffix_lines: int | None = None,
    prefix_share: float = 1.0,
    ahead: int = 0,
) -> Prompt:
    """The text around a cursor, about as much of it as a prompt of `max_tokens` holds.

    A tokenizer cuts it to the exact length. Without one, a prefix of `1 - SUFFIX_SHARE` leaves room for the suffix.
    With `ahead`, it starts where it will start when so many more tokens are typed.

    Raises:
        PositionError: the buffer is shorter than `offset`.
    """
    chars = max_tokens * CHARS_PER_TOKEN
    prefix_chars, suffix_chars = int(chars * prefix_share), int(chars * SUFFIX_SHARE)
    prompt = prompt_at(
        snapshot,
        offset,
        prefix_chars=prefix_chars,
        suffix_chars=suffix_chars,
        suffix_lines=suffix_lines,
        ahead=ahead,
    )
    return replace(prompt, path=shown_path(snapshot.file_uri), language=snapshot.language)


def layout_of(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """The layout of a prompt in the spec's format, with at most `max_tokens` prompt tokens.

    Raises:
        ModelUnsupportedError: the vocabulary lacks tokens that the format needs.
    """
    if spec.prompt_format is not PromptFormat.INSTRUCT and not spec.start_ids and spec.template in TEMPLATES:
        # instruct models were trained with the template's first token on all texts
        token = tokenizer.special(TEMPLATES[spec.template].bos)
        spec = replace(spec, start_ids=() if token is None else (token,))
    return _BUILDERS[spec.prompt_format](prompt, tokenizer, spec, max_tokens)


def in_format(spec: ModelSpec, name: str) -> ModelSpec:
    """The spec with this prompt format; an empty name keeps the model's own.

    A causal pass does not see a suffix that is frozen in the canvas, so infill layouts have no causal head. Expected
    passes of the model file apply to the model's own format only.

    Raises:
        RequestError: the model lacks what the format needs.
    """
    wanted = PromptFormat(name) if name else spec.prompt_format
    lacks = {
        PromptFormat.FIM: "" if spec.fim else "fill-in-the-middle tokens",
        PromptFormat.INFILL: "" if spec.has_free_canvas else "canvas between frozen text",
        PromptFormat.INSTRUCT: "" if has_template(spec) else "known chat template",
        PromptFormat.PREFIX: "",
    }
    if name and lacks[wanted]:
        possible = ", ".join(format_.value for format_ in PromptFormat if not lacks[format_])
        raise RequestError(f"{spec.name} has no {lacks[wanted]}, which the format {wanted} needs; choose {possible}")
    has_head = spec.has_causal_head and wanted is not PromptFormat.INFILL
    expectations = spec.expectations if wanted is spec.prompt_format else ()
    return replace(spec, prompt_format=wanted, has_causal_head=has_head, expectations=expectations)
