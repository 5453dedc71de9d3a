"""Code from elsewhere as tokens, within its share of a prompt; of a chunk that is too long, its first lines."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.layout import NOTHING
from dg_lsp.canvas.plan import TokenIds, token_ids
from dg_lsp.canvas.spec import ModelSpec, PromptFormat
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.extra import Chunk, by_importance, in_place
from dg_lsp.context.prompt import Prompt

MIN_ROOM = 16
"""Tokens under which nothing is worth its place."""
TOKEN_CHARS = 64
"""No token says more; what is longer than its room for sure is cut before it is tokenized."""
_HASH = frozenset(
    ("python", "shellscript", "ruby", "perl", "r", "yaml", "toml", "makefile", "dockerfile", "elixir", "julia", "cmake")
)
_DASHES = frozenset(("lua", "sql", "haskell"))

Encode = Callable[[Chunk], TokenIds]


def takes_extra(spec: ModelSpec, when: str) -> bool:
    """Whether the model is shown code from elsewhere; `auto` shows it to those that learned to read it."""
    is_trained = spec.file_separator_id is not None or spec.prompt_format is PromptFormat.INSTRUCT
    return when == "always" or (when == "auto" and is_trained)


def extra_ids(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> TokenIds:
    """What comes before the file's own code: chunks, each under its path, and then the file's path; shape (N,).

    At most the prompt's share of `max_tokens`. Paths come after the model's file separator, else as comments.
    """

    def encode(chunk: Chunk) -> TokenIds:
        text = chunk.text.strip("\n") + "\n" if chunk.text else ""
        if spec.file_separator_id is None:
            return tokenizer.encode(f"{comment_mark(prompt.language)} {chunk.path}\n{text}")
        ids = tokenizer.encode(f"{chunk.path}\n{text}")
        return token_ids(np.concatenate([[spec.file_separator_id], ids]))

    if not prompt.extra.chunks:
        return NOTHING
    own = encode(Chunk(prompt.extra.chunks[0].source, prompt.path or "untitled", ""))
    chunks = fitting(prompt, int(prompt.extra.share * max_tokens) - len(own), encode)
    return token_ids(np.concatenate([*chunks, own])) if chunks else NOTHING


def fitting(prompt: Prompt, room: int, encode: Encode) -> list[TokenIds]:
    """The chunks that `room` tokens hold, as they stand in the prompt. The important ones are served first."""
    taken: list[tuple[int, int, TokenIds]] = []
    for number, chunk in enumerate(by_importance(prompt.extra.chunks)):
        ids = _cut(chunk, room, encode)
        if len(ids):
            taken.append((in_place(chunk), -number, ids))
            room -= len(ids)
    # within one source the most important one stands last, nearest to the code
    return [ids for *_, ids in sorted(taken, key=lambda one: one[:2])]


def comment_mark(language: str) -> str:
    """What begins a comment in most languages, or in this one."""
    return "#" if language in _HASH else "--" if language in _DASHES else "//"


def _cut(chunk: Chunk, room: int, encode: Encode) -> TokenIds:
    """The chunk, as many of its first lines as there is room for, or nothing."""
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
