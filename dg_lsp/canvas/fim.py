"""Fill-in-the-middle prompts: suffix, prefix, middle sentinel, then an open canvas.

The suffix comes first, unless the model was trained otherwise: typing then changes only the end of the prompt, and the
KV cache keeps the rest. Prefix and suffix are tokenized separately, as in training.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.layout import NOTHING, Canvas, Layout, TokenIds, end_of, token_ids
from dg_lsp.canvas.spec import FimOrder, ModelSpec, PromptFormat
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.snippets import Snippet, by_importance, in_place
from dg_lsp.context.window import Prompt
from dg_lsp.errors import ModelUnsupportedError

MIN_ROOM = 16
"""Smallest number of tokens for a snippet."""
TOKEN_CHARS = 64
"""Upper bound of a token's length: longer snippets are cut before they are tokenized."""
_HASH = frozenset(
    ("python", "shellscript", "ruby", "perl", "r", "yaml", "toml", "makefile", "dockerfile", "elixir", "julia", "cmake")
)
_DASHES = frozenset(("lua", "sql", "haskell"))

Encode = Callable[[Snippet], TokenIds]


def takes_snippets(spec: ModelSpec, when: str) -> bool:
    """Whether the prompt includes snippets of other files; `auto`: for models trained on several files."""
    is_trained = spec.file_separator_id is not None or spec.prompt_format is PromptFormat.INSTRUCT
    return when == "always" or (when == "auto" and is_trained)


def snippet_ids(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> TokenIds:
    """Snippets, each with its path, and then the path of the file itself; shape (N,).

    At most the prompt's fraction of `max_tokens`. A path follows the model's file separator, or is a comment.
    """

    def encode(chunk: Snippet) -> TokenIds:
        text = chunk.text.strip("\n") + "\n" if chunk.text else ""
        if spec.file_separator_id is None:
            return tokenizer.encode(f"{comment_mark(prompt.language)} {chunk.path}\n{text}")
        ids = tokenizer.encode(f"{chunk.path}\n{text}")
        return token_ids(np.concatenate([[spec.file_separator_id], ids]))

    if not prompt.snippets.chunks:
        return NOTHING
    own = encode(Snippet(prompt.snippets.chunks[0].source, prompt.path or "untitled", ""))
    chunks = fitting(prompt, int(prompt.snippets.share * max_tokens) - len(own), encode)
    return token_ids(np.concatenate([*chunks, own])) if chunks else NOTHING


def fitting(prompt: Prompt, room: int, encode: Encode) -> list[TokenIds]:
    """The snippets that fit into `room` tokens, in prompt order. Important ones are placed first."""
    taken: list[tuple[int, int, TokenIds]] = []
    for number, chunk in enumerate(by_importance(prompt.snippets.chunks)):
        ids = _cut(chunk, room, encode)
        if len(ids):
            taken.append((in_place(chunk), -number, ids))
            room -= len(ids)
    # within one source the most important snippet is last, nearest to the code
    return [ids for *_, ids in sorted(taken, key=lambda one: one[:2])]


def comment_mark(language: str) -> str:
    """The line comment mark of a language; `//` for unknown ones."""
    return "#" if language in _HASH else "--" if language in _DASHES else "//"


def _cut(chunk: Snippet, room: int, encode: Encode) -> TokenIds:
    """The first lines of a snippet that fit, or no tokens."""
    if room < MIN_ROOM:
        return NOTHING
    if len(chunk.text) > room * TOKEN_CHARS:
        chunk = replace(chunk, text=chunk.text[: room * TOKEN_CHARS].rpartition("\n")[0])
        if not chunk.text:
            return NOTHING
    ids = encode(chunk)
    if len(ids) <= room:
        return ids
    lines = chunk.text.split("\n")
    num = len(lines) * room // len(ids)
    while num > 0:
        ids = encode(replace(chunk, text="\n".join(lines[:num])))
        if len(ids) <= room:
            return ids
        num -= max(1, num // 8)
    return NOTHING


SUFFIX_SHARE = 0.3
"""Largest fraction of a prompt's tokens for the suffix; the prefix takes the rest."""


def fim_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """A prompt of 1 to `max_tokens` ids, followed by an open canvas; snippets belong to the code before the gap.

    A long prefix loses its beginning in steps of an eighth of its room, so that a typed character rarely moves the
    start of the prompt, which would invalidate the cache. Snippets come right before the prefix, or before the whole
    file for models with a file separator token.
    """
    start = token_ids(spec.start_ids)
    snippets = snippet_ids(prompt, tokenizer, spec, max_tokens)
    room = max(0, max_tokens - len(start) - len(snippets))
    if spec.prompt_format is PromptFormat.PREFIX:
        # the prompt must not be empty
        before_ids = token_ids(np.concatenate([snippets, end_of(tokenizer.encode(prompt.prefix or "\n"), room)]))
        return Layout(token_ids(np.concatenate([start, before_ids])), before_ids=before_ids)
    if spec.fim is None:
        raise ModelUnsupportedError(f"{spec.name} has no fill-in-the-middle tokens; choose another model")
    room = max(0, room - 3)
    suffix = tokenizer.encode(prompt.suffix)[: int(room * SUFFIX_SHARE)]
    prefix = end_of(tokenizer.encode(prompt.prefix), room - len(suffix))
    before_ids = token_ids(np.concatenate([snippets, prefix]))
    fim, has_separator = spec.fim, spec.file_separator_id is not None
    parts = [[fim.suffix_id], suffix, [fim.prefix_id], prefix if has_separator else before_ids]
    if fim.order is FimOrder.PREFIX_FIRST:
        parts = [*parts[2:], *parts[:2]]
    first = [start, snippets] if has_separator else [start]
    return Layout(token_ids(np.concatenate([*first, *parts, [fim.middle_id]])), before_ids=before_ids, after_ids=suffix)


def open_canvas(prompt_ids: TokenIds, spec: ModelSpec, length: int, rng: np.random.Generator) -> Canvas:
    """A canvas without frozen positions right after the prompt: masks, or random tokens for uniform noise."""
    return Layout(prompt_ids).canvas(length, spec, rng)
