"""Prompts of code: the text around a cursor in the format of a model, and the layout of each format.

- `fim` and `prefix`: an open canvas after a prompt with prefix and suffix, or with the prefix alone. If the suffix
  comes first, typing changes only the end of the prompt, and the KV cache keeps the rest. Prefix and suffix are
  tokenized separately, as in training.
- `infill`: for models that fill masks anywhere but have no fill-in-the-middle tokens. The prefix's tail and the
  suffix's head are frozen in the canvas around a gap. Its length is unknown, so several are tried in one pass; all
  canvases of a pass are equally long, and a shorter gap sees more of the suffix.
- `instruct`: a question in a chat template shows the code below the cursor, and the model's answer begins with the code
  above it. On a canvas the line of the cursor is frozen.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dg_lsp.canvas.chat import TEMPLATES, Role, Turn, encoded, escaped, rendered
from dg_lsp.canvas.layout import NOTHING, Layout, TokenIds, Tokenizer, back_up, end_of, token_ids
from dg_lsp.canvas.spec import FimTemplate, FimTokens, ModelSpec, PromptCut, PromptFormat
from dg_lsp.context.document import Snapshot
from dg_lsp.context.languages import PLAIN, language_id_of, language_of
from dg_lsp.context.snippets import Snippet, SnippetSource, by_importance, in_place
from dg_lsp.context.window import CHARS_PER_TOKEN, Prompt, prompt_at
from dg_lsp.errors import ModelUnsupportedError, RequestError

SUFFIX_SHARE = 0.3
"""Largest fraction of a prompt's tokens for the suffix; the prefix takes the rest."""
SNIPPETS_SHARE = 0.25
"""Largest fraction of a prompt's tokens for all snippets."""
GAP_LENGTHS = (4, 8, 16, 32)
"""Default gap lengths in tokens."""
PREFIX_TAIL = 8
"""Prefix tokens in the canvas: they attend to the gap, and a keystroke tokenizes only them again."""
MIN_SUFFIX = 8
"""Suffix tokens in the canvas, at least, if there are as many."""
PASS_TOKENS = 256
"""Tokens of all canvases of one pass: what every runtime has room for."""
MAX_LINE_HEAD = 24
"""Frozen tokens of the cursor's line in an answer; the beginning of a longer line goes into the prompt."""
_FENCES = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)
_MAX_CHARS_PER_TOKEN = 16
"""Upper bound of the average token length: limits how much of the suffix is encoded."""
MIN_ROOM = 16
"""Smallest number of tokens for a snippet."""
TOKEN_CHARS = 64
"""Upper bound of a token's length: longer snippets are cut before they are tokenized."""
UNTITLED = "untitled"
"""Path of a document without one, where a prompt needs it."""
_SINGLE = "☺"
_QUESTION = "\U000f1e58"  # stands for the question in a rendered chat
_EMPTY: Mapping[str, TokenIds] = dict.fromkeys(("{files}", "{prefix}", "{suffix}"), NOTHING)

Encode = Callable[[Snippet], TokenIds]


def takes_snippets(spec: ModelSpec, when: str) -> bool:
    """Whether the prompt includes snippets of other files; `auto`: for models trained on several files."""
    has_files = spec.fim is not None and bool(spec.fim.prompt_with_files)
    is_trained = has_files or spec.takes_snippets or spec.prompt_format is PromptFormat.INSTRUCT
    return when == "always" or (when == "auto" and is_trained)


def snippet_ids(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> TokenIds:
    """Snippets as code after comments with their paths, then the path of the file itself as a comment; shape (N,).

    At most `SNIPPETS_SHARE` of `max_tokens`.
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
    chunks = fitting(prompt, int(SNIPPETS_SHARE * max_tokens) - len(own), encode)
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
    """Whole lines at the beginning of a snippet, at the end of a test's output."""
    is_output = chunk.source is SnippetSource.TEST
    if room < MIN_ROOM:
        return NOTHING
    if len(chunk.text) > room * TOKEN_CHARS:
        text = chunk.text[-room * TOKEN_CHARS :].partition("\n")[2] if is_output else ""
        chunk = replace(chunk, text=text or chunk.text[: room * TOKEN_CHARS].rpartition("\n")[0])
        if not chunk.text:
            return NOTHING
    ids = encode(chunk)
    if len(ids) <= room:
        return ids
    lines = chunk.text.split("\n")
    num = len(lines) * room // len(ids)
    while num > 0:
        ids = encode(replace(chunk, text="\n".join(lines[-num:] if is_output else lines[:num])))
        if len(ids) <= room:
            return ids
        num -= max(1, num // 8)
    return NOTHING


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
        before_ids = token_ids(np.concatenate([comments, end_of(prefix, room, prompt.lookahead)]))
        return Layout(token_ids(np.concatenate([start, before_ids])), before_ids=before_ids, removed=removed)
    files = _files(prompt, tokenizer, spec, fim, max_tokens) if has_files else NOTHING
    template = fim.prompt_with_files if len(files) else fim.prompt
    words, fields = {"path": prompt.path or UNTITLED}, {**_EMPTY, "{files}": files}
    room = max(0, room - len(_rendered(template, fields, words, tokenizer, spec)))
    suffix = encode_after(prompt.suffix, tokenizer, spec)[: int(room * SUFFIX_SHARE)]
    prefix = token_ids(np.concatenate([comments, end_of(prefix, room - len(suffix), prompt.lookahead)]))
    fields |= {"{prefix}": prefix, "{suffix}": suffix}
    prompt_ids = token_ids(np.concatenate([start, _rendered(template, fields, words, tokenizer, spec)]))
    before = tuple(piece for piece in template if isinstance(piece, str) and piece != "{suffix}")
    before_ids = _rendered(before, fields, words, tokenizer, spec)
    return Layout(prompt_ids, before_ids=before_ids, after_ids=suffix, removed=removed)


def _files(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, fim: FimTokens, max_tokens: int) -> TokenIds:
    if not prompt.snippets.chunks:
        return NOTHING

    def encode(chunk: Snippet) -> TokenIds:
        words = {"path": chunk.path, "code": _whole_lines(chunk.text)}
        return _rendered(fim.file, {}, words, tokenizer, spec)

    repository = prompt.snippets.repository
    first = _rendered(fim.repository, {}, {"repository": repository}, tokenizer, spec) if repository else NOTHING
    own = _rendered(fim.prompt_with_files, _EMPTY, {"path": prompt.path or UNTITLED}, tokenizer, spec)
    room = int(SNIPPETS_SHARE * max_tokens) - len(first) - len(own)
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


def infill_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """Layout with 1 to `max_tokens` prompt tokens; the tail fills the longest canvas."""
    start = token_ids(spec.start_ids)
    before = tokenizer.encode(prompt.prefix or "\n")  # the prompt must not be empty
    num_head = min(PREFIX_TAIL, len(before) - (not len(start)))
    cut = len(before) - num_head
    snippets = snippet_ids(prompt, tokenizer, spec, max_tokens)
    cached = end_of(before[:cut], max(1, max_tokens - len(start) - len(snippets)), prompt.lookahead)
    room = max(0, spec.longest_block - num_head - 1)
    after = tokenizer.encode(prompt.suffix[: room * _MAX_CHARS_PER_TOKEN])
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


CODE_OPENING, CODE_CLOSING = "{fence}{language}\n", "\n{fence}"
"""Around the code of a question. An answer begins with the opening."""
GAP_MARK = "<GAP>"  # stands for the missing code where a question shows a gap


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The texts of a question, around its code; `{path}`, `{language}`, `{fence}` and `{instruction}` are filled in."""

    before: str
    request: str  # the end
    between: str = ""  # of the file and the selection


# The answer goes on with the code before the cursor as if the model had written it, because small models that are asked
# for the code at a mark answer with other code.
FILL = PromptTemplate(
    "The end of {path} is:\n\n" + CODE_OPENING,
    request=CODE_CLOSING + "\n\nWrite the {language} code that stands before it. Answer with the code only.",
)
FILL_AT_END = PromptTemplate("Write {path}.", request=" Answer with the {language} code only.")
"""Where no code follows the cursor."""
# The selection is repeated and the request comes last, because small models otherwise answer with the whole file.
REWRITE = PromptTemplate(
    CODE_OPENING,
    request="{fence}\n\nRewrite this {language} code: {instruction}\nAnswer with the code only.",
    between=CODE_CLOSING + "\n\nNow look at this part of {path} alone:\n\n" + CODE_OPENING,
)
SNIPPETS_HEADING = "Other code, for reference:\n\n"


def template_words(prompt: Prompt) -> dict[str, str]:
    """The words that a `PromptTemplate` takes from a prompt."""
    path, language = prompt.path or "a file", prompt.language or "text"
    return {"path": path, "language": language, "fence": fence_of(prompt), "instruction": prompt.instruction}


def snippet_text(snippet: Snippet, fence: str, language: str) -> str:
    """One snippet before a question."""
    code = snippet.text.strip("\n")
    return f"{snippet.path}\n{fence}{language}\n{code}\n{fence}\n\n"


def fence_of(prompt: Prompt) -> str:
    """A code fence longer than any in the code."""
    snippets = (chunk.text for chunk in prompt.snippets.chunks)
    code = "\n".join((prompt.prefix, prompt.selection, prompt.suffix, *snippets))
    longest = max((len(run) for run in _FENCES.findall(code)), default=0)
    return "`" * max(3, longest + 1)


def instruct_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """Layout of a fill: the question shows the code below the cursor, and the answer begins with the code above it.

    The line of the cursor is frozen in the canvas; a model without canvases continues at a token boundary. Raises as
    `rendered` does.
    """
    removed = b""
    line = NOTHING
    if spec.cut is PromptCut.TOKEN and not prompt.selection:  # a rewrite begins at the cursor
        above, removed = back_up(tokenizer.encode(prompt.prefix), prompt.prefix, tokenizer.decode)
    elif spec.sampling is None:
        above = tokenizer.encode(prompt.prefix)
    else:
        above, line = _split_line(prompt.prefix, tokenizer)
    words = template_words(prompt)
    below = prompt.suffix if prompt.suffix.strip() else ""
    template = FILL if below else FILL_AT_END
    before, after = _question(template, words, prompt, tokenizer, spec, int(max_tokens * SNIPPETS_SHARE))
    opening = encode_after(CODE_OPENING.format(**words), tokenizer, spec)
    room = max(0, max_tokens - sum(map(len, [before, after, opening])))
    suffix = encode_after(below, tokenizer, spec)[: int(room * SUFFIX_SHARE)]
    shown = end_of(above, room - len(suffix), prompt.lookahead)
    return Layout(
        token_ids(np.concatenate([before, suffix, after, opening, shown])),
        head_ids=line,
        before_ids=token_ids(np.concatenate([shown, line])),
        after_ids=suffix,
        removed=removed,
        stop=words["fence"],
    )


def _split_line(prefix: str, tokenizer: Tokenizer) -> tuple[TokenIds, TokenIds]:
    """The ids of the text before a cursor, without and with the part of its line that is frozen in the canvas."""
    cut = prefix.rfind("\n") + 1
    line = tokenizer.encode(prefix[cut:])
    start = max(0, len(line) - 1) // MAX_LINE_HEAD * MAX_LINE_HEAD  # in steps, so that typing rarely moves it
    return token_ids(np.concatenate([tokenizer.encode(prefix[:cut]), line[:start]])), line[start:]


def rewrite_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """Layout of a rewrite; the code around the selection is cut to `max_tokens` of prompt. Raises as `rendered` does.

    On a canvas the answer begins with the selection's indentation. A model without canvases writes it itself, because
    many tokenizers join the last blank with the word behind it.
    """
    encode = partial(encode_after, tokenizer=tokenizer, spec=spec)
    words = template_words(prompt)
    lines = prompt.selection.removesuffix("\n") + "\n"
    above, selection, answer = map(tokenizer.encode, (prompt.prefix, lines, answer_start(prompt, spec)))
    before, after = _question(REWRITE, words, prompt, tokenizer, spec, int(max_tokens * SNIPPETS_SHARE))
    between = encode(REWRITE.between.format(**words))
    room = max(0, max_tokens - sum(map(len, [before, selection, between, selection, after])))
    suffix = encode(prompt.suffix)[: int(room * SUFFIX_SHARE)]
    shown = end_of(above, room - len(suffix), prompt.lookahead)
    return Layout(
        token_ids(np.concatenate([before, shown, selection, suffix, between, selection, after])),
        head_ids=token_ids(np.concatenate([encode(CODE_OPENING.format(**words)), answer])),
        before_ids=token_ids(np.concatenate([shown, selection, answer])),
        after_ids=suffix,
        stop=words["fence"],
    )


def answer_start(prompt: Prompt, spec: ModelSpec) -> str:
    """The blanks before the selection's first line, where they are frozen in the canvas of an answer."""
    blanks = prompt.selection[: len(prompt.selection) - len(prompt.selection.lstrip(" "))]
    return blanks if spec.sampling is not None else ""


def _question(
    template: PromptTemplate, words: Mapping[str, str], prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, room: int
) -> tuple[TokenIds, TokenIds]:
    """The ids of a chat of one question before the code, with snippets of at most `room` tokens, and after it."""
    encode = partial(encode_after, tokenizer=tokenizer, spec=spec)
    opening, closing = _around_question(tokenizer, spec)
    first = template.before.format(**words)
    after = _joined(closing, template.request.format(**words), tokenizer, is_before=True)
    snippets = fitting(prompt, room, lambda chunk: encode(snippet_text(chunk, words["fence"], prompt.language)))
    if not snippets:
        return _joined(opening, first, tokenizer), after
    pieces = [_joined(opening, SNIPPETS_HEADING, tokenizer), *snippets, encode(first)]
    return token_ids(np.concatenate(pieces)), after


def _around_question(tokenizer: Tokenizer, spec: ModelSpec) -> tuple[str, str]:
    before, mark, after = rendered((Turn(Role.USER, _QUESTION),), tokenizer, spec).partition(_QUESTION)
    if not mark:
        raise ModelUnsupportedError(f"the chat template of {spec.name} leaves the question out; use another file")
    return before, after


def _joined(template: str, text: str, tokenizer: Tokenizer, *, is_before: bool = False) -> TokenIds:
    """Ids of a part of a template and of the text after it, or before it, tokenized together."""
    text = escaped(text, tokenizer)
    return encoded(text + template if is_before else template + text, tokenizer)


_BUILDERS = {
    PromptFormat.FIM: fim_layout,
    PromptFormat.PREFIX: fim_layout,
    PromptFormat.INFILL: infill_layout,
    PromptFormat.INSTRUCT: instruct_layout,
}


def prompt_of(
    snapshot: Snapshot, offset: int, max_tokens: int, prefix_share: float = 1.0, *, lookahead: int = 0
) -> Prompt:
    """The text around a cursor, about as much of it as a prompt of `max_tokens` holds; see `prompt_at`.

    A tokenizer cuts it to the exact length. Without one, a prefix of `1 - SUFFIX_SHARE` leaves room for the suffix.
    """
    chars = max_tokens * CHARS_PER_TOKEN
    prefix_chars = int(chars * prefix_share)
    suffix_chars = int(chars * SUFFIX_SHARE)
    return prompt_at(snapshot, offset, prefix_chars=prefix_chars, suffix_chars=suffix_chars, lookahead=lookahead)


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


def in_infill_format(spec: ModelSpec) -> ModelSpec:
    """The spec with the prompt format `infill`.

    A causal pass does not see a suffix that is frozen in the canvas, so infill layouts have no causal head. Expected
    passes of the model file apply to the model's own format only.

    Raises:
        RequestError: the model has no canvas between frozen text.
    """
    if not spec.has_free_canvas:
        raise RequestError(f"{spec.name} has no canvas between frozen text, which infill needs; choose another decoder")
    expectations = spec.expectations if spec.prompt_format is PromptFormat.INFILL else ()
    return replace(spec, prompt_format=PromptFormat.INFILL, has_causal_head=False, expectations=expectations)
