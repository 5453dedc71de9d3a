"""Fill-in-the-middle prompts in a model's own format, then an open canvas.

`fim_families.toml` has the formats of model families; the special tokens and the metadata of a file select one. If the
suffix comes first, typing changes only the end of the prompt, and the KV cache keeps the rest. Prefix and suffix
are tokenized separately, as in training.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np

from dg_lsp.canvas.layout import NOTHING, Canvas, Layout, TokenIds, Tokenizer, back_up, end_of, token_ids
from dg_lsp.canvas.spec import FimOrder, FimTemplate, FimTokens, ModelSpec, PromptCut, PromptFormat, SpecialTokens
from dg_lsp.context.languages import PLAIN, language_id_of, language_of
from dg_lsp.context.snippets import Snippet, by_importance, in_place
from dg_lsp.context.window import Prompt
from dg_lsp.errors import ModelUnsupportedError

_PIECES = re.compile(r"(<[^<>\s]+>|\[[A-Z]+\]|\{(?:files|prefix|suffix)\})")
_TOKEN = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")
_NAME_KEYS = ("general.name", "general.basename", "general.base_model.0.name")
_BLANK = "\u2581"
"""SentencePiece's blank: Code Llama's tokens are spelled with one before them."""


@dataclass(frozen=True, slots=True)
class FimFamily:
    """A `[[fim]]` row: models with the same prompt. Formats are spelled as their authors publish them."""

    name: str
    """Also a value of `remote.fim`."""
    prompt: str
    """With the fields `{prefix}` and `{suffix}`."""
    sources: tuple[str, ...]
    note: str = ""
    repository: str = ""
    """Before the files, with the field `{repository}`."""
    file: str = ""
    """Another file, with the fields `{path}` and `{code}`; empty: files are comments before the prefix."""
    prompt_with_files: str = ""
    """With the fields `{files}` and `{path}`."""
    end: tuple[str, ...] = ()
    """Tokens that end a fill."""
    temperature: float | None = None
    """Recommended by the authors; 0: greedy. Completions are greedy for every family."""
    names: tuple[str, ...] = ()
    """Parts of a model's name, lower case with hyphens, that identify the family."""
    architectures: tuple[str, ...] = ()
    """Values of `general.architecture` that identify it."""
    vocabulary: tuple[str, ...] = ()
    """Special tokens that together identify it, whatever the model's name is."""
    cut: PromptCut = PromptCut.CHARACTER

    def text(self, prefix: str, suffix: str) -> str:
        """The prompt as text, for servers that parse the tokens' spellings."""
        return self.prompt.format(prefix=prefix, suffix=suffix)

    def split(self, text: str) -> tuple[str, str] | None:
        """Prefix and suffix of a prompt in this format; None for any other text."""
        first, second, *last = _TOKEN.findall(self.prompt)
        _, has_first, rest = text.partition(first)
        first_text, has_second, second_text = rest.partition(second)
        has_last = True
        if last:
            second_text, last_token, _ = second_text.rpartition(last[0])
            has_last = bool(last_token)
        if not (has_first and has_second and has_last):
            return None
        if " " in self.prompt:  # Code Llama puts blanks around its tokens
            first_text, second_text = first_text.removeprefix(" ").removesuffix(" "), second_text.removesuffix(" ")
        return (first_text, second_text) if self.order is FimOrder.PREFIX_FIRST else (second_text, first_text)

    @property
    def order(self) -> FimOrder:
        """Which part comes first."""
        is_prefix_first = self.prompt.index("{prefix}") < self.prompt.index("{suffix}")
        return FimOrder.PREFIX_FIRST if is_prefix_first else FimOrder.SUFFIX_FIRST

    def tokens(self, spellings: Mapping[str, int]) -> FimTokens | None:
        """The format in token ids; None if the vocabulary lacks one of its tokens.

        Files become comments if the vocabulary lacks only their tokens.
        """
        prompt = _compiled(self.prompt, spellings)
        if prompt is None:
            return None
        ids = [piece for piece in prompt if isinstance(piece, int)]
        order = self.order
        prefix_id, suffix_id = ids[:2] if order is FimOrder.PREFIX_FIRST else reversed(ids[:2])
        file, prompt_with_files = _compiled(self.file, spellings), _compiled(self.prompt_with_files, spellings)
        has_files = bool(file and prompt_with_files)
        return FimTokens(
            prefix_id,
            suffix_id,
            ids[2] if len(ids) > 2 else None,
            order,
            repository=_compiled(self.repository, spellings) or () if has_files else (),
            file=file or () if has_files else (),
            prompt_with_files=prompt_with_files or () if has_files else (),
            end_ids=tuple(token for spelling in self.end if (token := _id(spelling, spellings)) is not None),
            family=self.name,
            cut=self.cut,
        )


def _family(entry: Mapping[str, Any]) -> FimFamily:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return FimFamily(**{**fields, "cut": PromptCut(fields["cut"])})


_TABLE = tomllib.loads((resources.files(__package__) / "fim_families.toml").read_text(encoding="utf-8"))
FIM_FAMILIES = {family.name: family for family in map(_family, _TABLE["fim"])}
"""By name, in the order in which they are tried."""


def find_fim(metadata: Mapping[str, str], filename: str, specials: SpecialTokens) -> FimTokens | None:
    """The fill-in-the-middle format of a model file, or None if it has none.

    A family matches only if the vocabulary has its tokens. The names and the architecture in the metadata decide; then
    special tokens that only one family has; then the file's name. Tokens of an unknown family are used prefix first.
    """
    spellings = specials.spellings
    known = {family: tokens for family in FIM_FAMILIES.values() if (tokens := family.tokens(spellings))}
    architecture = metadata.get("general.architecture", "")
    named = " ".join(metadata.get(key, "") for key in _NAME_KEYS)
    by_evidence = {
        "metadata": [family for family in known if architecture in family.architectures or _is_named(family, named)],
        "vocabulary": [family for family in known if family.vocabulary and _has_all(family.vocabulary, spellings)],
        "file name": [family for family in known if _is_named(family, filename)],
    }
    for evidence, families in by_evidence.items():
        if families:
            return replace(known[families[0]], evidence=evidence)
    return specials.fim


def _is_named(family: FimFamily, name: str) -> bool:
    simple = name.lower().replace(" ", "-").replace("_", "-")
    return any(part in simple for part in family.names)


def _compiled(template: str, spellings: Mapping[str, int]) -> FimTemplate | None:
    pieces: list[int | str] = []
    for piece in _PIECES.split(template):
        if not _TOKEN.fullmatch(piece):
            pieces += [piece] if piece.strip(" ") else []  # blanks are SentencePiece's, which the tokenizer adds itself
        elif (token := _id(piece, spellings)) is not None:
            pieces.append(token)
        else:
            return None
    return tuple(pieces)


def _has_all(words: tuple[str, ...], spellings: Mapping[str, int]) -> bool:
    return all(_id(word, spellings) is not None for word in words)


def _id(spelling: str, spellings: Mapping[str, int]) -> int | None:
    return spellings.get(spelling, spellings.get(_BLANK + spelling))


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
    language = next((language for language in map(language_of, ids) if language.commented("path")), PLAIN)

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
    return [ids for *_, ids in sorted(taken, key=lambda piece: piece[:2])]


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
    right before the prefix. See `PromptCut` for the end of the prefix.
    """
    start, fim = token_ids(spec.start_ids), spec.fim
    is_prefix_only = spec.prompt_format is PromptFormat.PREFIX
    if fim is None and not is_prefix_only:
        raise ModelUnsupportedError(f"{spec.name} has no fill-in-the-middle tokens; choose another model")
    has_files = fim is not None and bool(fim.prompt_with_files) and not is_prefix_only
    comments = NOTHING if has_files else snippet_ids(prompt, tokenizer, spec, max_tokens)
    text = prompt.prefix or ("\n" if is_prefix_only else "")  # the prompt must not be empty
    prefix = encode_after(text, tokenizer, spec) if len(comments) else tokenizer.encode(text)
    removed = b""
    if spec.cut is PromptCut.TOKEN and prompt.prefix and not prompt.selection:  # a rewrite begins at the cursor
        prefix, removed = back_up(prefix, prompt.prefix, tokenizer.decode)
        if is_prefix_only and not len(prefix):
            prefix = tokenizer.encode("\n")
    room = max(0, max_tokens - len(start) - len(comments))
    if fim is None or is_prefix_only:
        before_ids = token_ids(np.concatenate([comments, end_of(prefix, room, prompt.ahead)]))
        return Layout(token_ids(np.concatenate([start, before_ids])), before_ids=before_ids, removed=removed)
    files = _files(prompt, tokenizer, spec, fim, max_tokens) if has_files else NOTHING
    template = fim.prompt_with_files if len(files) else fim.prompt
    words, fields = {"path": prompt.path or UNTITLED}, {**_EMPTY, "{files}": files}
    room = max(0, room - len(_rendered(template, fields, words, tokenizer, spec)))
    suffix = encode_after(prompt.suffix, tokenizer, spec)[: int(room * SUFFIX_SHARE)]
    prefix = token_ids(np.concatenate([comments, end_of(prefix, room - len(suffix), prompt.ahead)]))
    fields |= {"{prefix}": prefix, "{suffix}": suffix}
    prompt_ids = token_ids(np.concatenate([start, _rendered(template, fields, words, tokenizer, spec)]))
    before = tuple(piece for piece in template if isinstance(piece, str) and piece != "{suffix}")
    before_ids = _rendered(before, fields, words, tokenizer, spec)
    return Layout(prompt_ids, before_ids=before_ids, after_ids=suffix, removed=removed)


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
