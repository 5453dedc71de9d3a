"""Fill-in-the-middle prompts: suffix, then prefix, then the middle sentinel, then an open canvas.

The suffix comes first so that typing changes only the prompt's end and the KV cache keeps the rest, unless the model
was trained otherwise. Prefix and suffix are tokenized apart, as in training: a cursor inside a word needs no care.
"""

import numpy as np

from dg_lsp.canvas.extra import extra_ids
from dg_lsp.canvas.layout import Layout, end_of
from dg_lsp.canvas.plan import CanvasPlan, TokenIds, token_ids
from dg_lsp.canvas.spec import FimOrder, ModelSpec, PromptFormat
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.prompt import Prompt
from dg_lsp.errors import ModelUnsupportedError

SUFFIX_SHARE = 0.3
"""Share of the prompt's tokens that the suffix may take; the prefix takes what it leaves."""


def fim_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """`fim_prompt` with an open canvas after it."""
    prompt_ids = fim_prompt(prompt, tokenizer, spec, max_tokens)
    before_ids, after_ids = prompt_parts(prompt_ids, spec)
    return Layout(prompt_ids, before_ids=before_ids, after_ids=after_ids)


def fim_prompt(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> TokenIds:
    """Prompt ids, at least one and at most `max_tokens` of them.

    A prefix too long for its room loses its beginning in steps of an eighth of the room, so that a typed character
    almost never moves the window's start, which would void the cached tokens after it. Code from elsewhere stands right
    before the prefix, or before all of the file where the model has a token that separates files.
    """
    start = token_ids(spec.start_ids)
    extra = extra_ids(prompt, tokenizer, spec, max_tokens)
    room = max(0, max_tokens - len(start) - len(extra))
    if spec.prompt_format is PromptFormat.PREFIX:
        # an empty buffer is as good as a line end, and a model needs something to go on from
        return token_ids(np.concatenate([start, extra, end_of(tokenizer.encode(prompt.prefix or "\n"), room)]))
    if spec.fim is None:
        raise ModelUnsupportedError(f"{spec.name} has no fill-in-the-middle tokens; choose another model")
    room = max(0, room - 3)
    suffix = tokenizer.encode(prompt.suffix)[: int(room * SUFFIX_SHARE)]
    prefix = end_of(tokenizer.encode(prompt.prefix), room - len(suffix))
    fim = spec.fim
    is_inside = spec.file_separator_id is None
    parts = [[fim.suffix_id], suffix, [fim.prefix_id], np.concatenate([extra, prefix]) if is_inside else prefix]
    if fim.order is FimOrder.PREFIX_FIRST:
        parts = [*parts[2:], *parts[:2]]
    before = start if is_inside else np.concatenate([start, extra])
    return token_ids(np.concatenate([before, *parts, [fim.middle_id]]))


def prompt_parts(prompt_ids: TokenIds, spec: ModelSpec) -> tuple[TokenIds, TokenIds]:
    """The prefix and the suffix inside of a prompt, without sentinels; code from elsewhere belongs to the prefix."""
    body = prompt_ids[len(spec.start_ids) :]
    if spec.fim is None or spec.prompt_format is PromptFormat.PREFIX:
        return body, body[:0]
    prefix_at, suffix_at = (int(np.argmax(body == sentinel)) for sentinel in (spec.fim.prefix_id, spec.fim.suffix_id))
    begin, second = min(prefix_at, suffix_at), max(prefix_at, suffix_at)
    first, last = body[begin + 1 : second], body[second + 1 : -1]
    prefix, suffix = (last, first) if suffix_at < prefix_at else (first, last)
    return token_ids(np.concatenate([body[:begin], prefix])), suffix


def open_canvas(prompt_ids: TokenIds, spec: ModelSpec, length: int, rng: np.random.Generator) -> CanvasPlan:
    """A canvas with nothing frozen right after the prompt: masks, or random tokens for uniform noise."""
    return Layout(prompt_ids).canvas(length, spec, rng)
