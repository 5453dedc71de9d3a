"""Fill-in-the-middle prompts in a model's own format, then an open canvas.

If the suffix comes first, typing changes only the end of the prompt, and the KV cache keeps the rest. Prefix and suffix
are tokenized separately, as in training.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.layout import NOTHING, Canvas, Layout, TokenIds, Tokenizer, end_of, token_ids
from dg_lsp.canvas.spec import FimTemplate, FimTokens, ModelSpec, PromptFormat
from dg_lsp.context.languages import PLAIN, language_id_of, language_of
from dg_lsp.context.snippets import Snippet, by_importance, in_place
from dg_lsp.context.window import Prompt
from dg_lsp.errors import ModelUnsupportedError

MIN_ROOM = 16
"""Smallest number of tokens for a snippet."""
TOKEN_CHARS = 64
"""Upper bound of a token's length: longer snippets are cut before they are tokenized."""
UNTITLED = "untitled"
"""Path of a document without one, where a prompt needs it."""
_SINGLE = "☺"
_EMPTY: Mapping[str, TokenIds] = dict.fromkeys(("{files}", "{prefix}", "{suffix}"), NOTHING)

Encode = Callable[[Snippet], TokenIds]


def takes_snippets(spec: ModelSpec, when: str) -> bool:
    """Whether the prompt includes snippets of other files; `auto`: for models trained on several files."""
    has_files = spec.fim is not None and bool(spec.fim.prompt_with_files)
    is_trained = has_files or spec.takes_snippets or spec.prompt_format is PromptFormat.INSTRUCT
    return when == "always" or (when == "auto" and is_trained)


def snippet_ids(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> TokenIds:
    """Snippets as code after comments with their paths, then the path of the file itself as a comment; shape (N,).

    At most the prompt's fraction of `max_tokens`.
    """
    ids = (prompt.language, *(language_id_of(chunk.path) for chunk in prompt.snippets.chunks))
    # a file without a name or a comment gets headings in the syntax of the other files
    language = next((found for found in map(language_of, ids) if found.commented("path")), PLAIN)

    def encode(chunk: Snippet) -> TokenIds:
        head = language.commented(chunk.path) or f"// {chunk.path}"
        return encode_after(f"{head}\n{_whole_lines(chunk.text)}", tokenizer, spec)

    if not prompt.snippets.chunks:
        return NOTHING
    own = encode(Snippet(prompt.snippets.chunks[0].source, prompt.path or UNTITLED, ""))
    chunks = fitting(prompt, int(prompt.snippets.share * max_tokens) - len(own), encode)
    return token_ids(np.concatenate([*chunks, own])) if chunks else NOTHING


def encode_after(text: str, tokenizer: Tokenizer, spec: ModelSpec) -> TokenIds:
    """Ids of a text that follows other tokens: without the blank that SentencePiece puts before a text."""
    if not spec.adds_blank:
        return tokenizer.encode(text)
    # as Code Llama and Mistral do: no token joins this character with the next one
    return tokenizer.encode(_SINGLE + text)[len(tokenizer.encode(_SINGLE)) :]


def _whole_lines(text: str) -> str:
    return text.strip("\n") + "\n" if text else ""


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
    start of the prompt, which would invalidate the cache. Snippets stand where the model's format has other files, or
    right before the prefix.
    """
    start, fim = token_ids(spec.start_ids), spec.fim
    is_prefix_only = spec.prompt_format is PromptFormat.PREFIX
    if fim is None and not is_prefix_only:
        raise ModelUnsupportedError(f"{spec.name} has no fill-in-the-middle tokens; choose another model")
    has_files = fim is not None and bool(fim.prompt_with_files) and not is_prefix_only
    comments = NOTHING if has_files else snippet_ids(prompt, tokenizer, spec, max_tokens)
    text = prompt.prefix or ("\n" if is_prefix_only else "")  # the prompt must not be empty
    prefix = encode_after(text, tokenizer, spec) if len(comments) else tokenizer.encode(text)
    room = max(0, max_tokens - len(start) - len(comments))
    if fim is None or is_prefix_only:
        before_ids = token_ids(np.concatenate([comments, end_of(prefix, room, prompt.ahead)]))
        return Layout(token_ids(np.concatenate([start, before_ids])), before_ids=before_ids)
    files = _files(prompt, tokenizer, spec, fim, max_tokens) if has_files else NOTHING
    template = fim.prompt_with_files if len(files) else fim.prompt
    words, fields = {"path": prompt.path or UNTITLED}, {**_EMPTY, "{files}": files}
    room = max(0, room - len(_rendered(template, fields, words, tokenizer, spec)))
    suffix = encode_after(prompt.suffix, tokenizer, spec)[: int(room * SUFFIX_SHARE)]
    prefix = token_ids(np.concatenate([comments, end_of(prefix, room - len(suffix), prompt.ahead)]))
    fields |= {"{prefix}": prefix, "{suffix}": suffix}
    prompt_ids = token_ids(np.concatenate([start, _rendered(template, fields, words, tokenizer, spec)]))
    before = tuple(piece for piece in template if isinstance(piece, str) and piece != "{suffix}")
    return Layout(prompt_ids, before_ids=_rendered(before, fields, words, tokenizer, spec), after_ids=suffix)


def _files(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, fim: FimTokens, max_tokens: int) -> TokenIds:
    """Snippets in the model's format, as many as fit with the file's own path, or no tokens; shape (N,)."""
    if not prompt.snippets.chunks:
        return NOTHING

    def encode(chunk: Snippet) -> TokenIds:
        words = {"path": chunk.path, "code": _whole_lines(chunk.text)}
        return _rendered(fim.file, {}, words, tokenizer, spec)

    repository = prompt.snippets.repository
    first = _rendered(fim.repository, {}, {"repository": repository}, tokenizer, spec) if repository else NOTHING
    own = _rendered(fim.prompt_with_files, _EMPTY, {"path": prompt.path or UNTITLED}, tokenizer, spec)
    room = int(prompt.snippets.share * max_tokens) - len(first) - len(own)
    chunks = fitting(prompt, room, encode)
    return token_ids(np.concatenate([first, *chunks])) if chunks else NOTHING


def _rendered(
    template: FimTemplate,
    fields: Mapping[str, TokenIds],
    words: Mapping[str, str],
    tokenizer: Tokenizer,
    spec: ModelSpec,
) -> TokenIds:
    """Token ids of a template: `fields` are whole pieces of it, `words` are inserted into its texts."""
    parts = [
        token_ids([piece])
        if isinstance(piece, int)
        else fields[piece]
        if piece in fields
        else encode_after(piece.format(**words), tokenizer, spec)
        for piece in template
    ]
    return token_ids(np.concatenate(parts)) if parts else NOTHING


def open_canvas(prompt_ids: TokenIds, spec: ModelSpec, length: int, rng: np.random.Generator) -> Canvas:
    """A canvas without frozen positions right after the prompt: masks, or random tokens for uniform noise."""
    return Layout(prompt_ids).canvas(length, spec, rng)
