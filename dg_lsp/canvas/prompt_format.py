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
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, replace
from typing import TypeVar

from dg_lsp.canvas.chat import Role, Turn, encoded, escaped, rendered
from dg_lsp.canvas.chat_template import TEMPLATES
from dg_lsp.canvas.layout import NOTHING, Layout, TokenIds, Tokenizer, back_up, concat, end_of, token_ids
from dg_lsp.canvas.spec import FimTemplate, ModelSpec, PromptCut, PromptFormat
from dg_lsp.context.document import Snapshot
from dg_lsp.context.languages import PLAIN, language_id_of, language_of
from dg_lsp.context.window import (
    CHARS_PER_TOKEN,
    NO_SNIPPETS,
    SUFFIX_SHARE,
    Prompt,
    Snippet,
    Snippets,
    SnippetSource,
    hidden_part,
    prompt_at,
    shown_path,
    similar_code,
)
from dg_lsp.errors import ModelUnsupportedError, RequestError

SNIPPETS_SHARE = 0.25
"""Largest fraction of a prompt's tokens for all snippets, where a model has no tokens for them beside the prompt."""
PREFIX_TAIL = 8
"""Prefix tokens in the canvas: they attend to the gap, and a keystroke tokenizes only them again."""
MAX_LINE_HEAD = 24
"""Frozen tokens of the cursor's line in an answer; the beginning of a longer line goes into the prompt."""
_FENCES = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)
_MAX_CHARS_PER_TOKEN = 16
"""Upper bound of the average token length: limits how much of the suffix is encoded."""
MIN_ROOM = 16
"""Smallest room for a snippet, in tokens."""
TOKEN_CHARS = 64
"""Upper bound of a token's length: longer snippets are cut before they are tokenized."""
_IMPORTANCE = ("test", "given", "similar", "edits", "open-files")  # order in which sources get room
UNTITLED = "untitled"
"""Path of a document without one, where a prompt needs it."""
_SINGLE = "☺"
_QUESTION = "\U000f1e58"  # stands for the question in a rendered chat
EncodedT = TypeVar("EncodedT", bound=Sized)


def takes_snippets(spec: ModelSpec, when: str) -> bool:
    """Whether the prompt includes snippets of other files; `auto`: for models trained on several files."""
    has_files = spec.fim is not None and bool(spec.fim.prompt_with_files)
    is_trained = has_files or spec.takes_snippets or spec.prompt_format is PromptFormat.INSTRUCT
    return when == "always" or (when == "auto" and is_trained)


def own_snippets(snapshot: Snapshot, offset: int, spec: ModelSpec, when: str = "auto") -> Snippets:
    """Similar code of what the prompt does not show of the file, for a request without other files."""
    if not takes_snippets(spec, when):
        return NO_SNIPPETS
    hidden = hidden_part(snapshot, offset, spec.max_prompt_tokens * CHARS_PER_TOKEN)
    path = shown_path(snapshot.file_uri)
    windows = (window for _, window in similar_code(snapshot, offset, [hidden]))
    return Snippets(tuple(Snippet(SnippetSource.SIMILAR, path, "\n".join(window.lines)) for window in windows))


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
    """The words that a `PromptTemplate` takes from a prompt. The code fence is longer than any in the code."""
    snippets = (chunk.text for chunk in prompt.snippets.chunks)
    code = "\n".join((prompt.prefix, prompt.selection, prompt.suffix, *snippets))
    longest = max((len(run) for run in _FENCES.findall(code)), default=3 * (prompt.language == "markdown"))
    return {
        "path": prompt.path or "a file",
        "language": prompt.language or "text",
        "fence": "`" * max(3, longest + 1),
        "instruction": prompt.instruction,
    }


def snippet_text(snippet: Snippet, fence: str, language: str) -> str:
    """One snippet before a question."""
    code = snippet.text.strip("\n")
    return f"{snippet.path}\n{fence}{language}\n{code}\n{fence}\n\n"


def answer_start(prompt: Prompt, spec: ModelSpec) -> str:
    """The blanks before the selection's first line, where they are frozen in the canvas of an answer."""
    blanks = prompt.selection[: len(prompt.selection) - len(prompt.selection.lstrip(" "))]
    return blanks if spec.sampling is not None else ""


class _PromptBuilder:
    """The layouts of one prompt, each with at most `max_tokens` prompt tokens, and those of snippets beside them.

    A long prefix loses its beginning in steps of an eighth of its room, so that a typed character rarely moves the
    start of the prompt, which would invalidate the cache.
    """

    def __init__(self, prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> None:
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._spec = spec
        self._max_tokens = max_tokens + (spec.snippet_tokens if prompt.snippets.chunks else 0)
        start_ids = spec.start_ids
        if not start_ids and spec.template in TEMPLATES:
            # instruct models were trained with the template's first token on all texts
            token = tokenizer.special(TEMPLATES[spec.template].bos)
            start_ids = () if token is None else (token,)
        self._start = token_ids(start_ids)
        self._max_snippets = spec.snippet_tokens or int(SNIPPETS_SHARE * max_tokens)
        self._path = prompt.path or UNTITLED

    def fim(self) -> Layout:
        """A prompt of 1 token or more, followed by an open canvas; snippets belong to the code before the gap.

        Snippets stand where the model's format has other files, or right before the prefix. See `PromptCut` for the end
        of the prefix.
        """
        spec, prompt = self._spec, self._prompt
        is_prefix_only = spec.prompt_format is PromptFormat.PREFIX
        if spec.fim is None and not is_prefix_only:
            raise ModelUnsupportedError(f"{spec.name} has no fill-in-the-middle tokens; choose another model")
        fim = None if is_prefix_only else spec.fim
        has_files = fim is not None and bool(fim.prompt_with_files)
        files = self._files() if has_files else NOTHING
        comments = NOTHING if has_files else self._comments()
        text = prompt.prefix or ("\n" if is_prefix_only else "")  # the prompt must not be empty
        prefix = self._after(text) if len(comments) else self._tokenizer.encode(text)
        removed = b""
        if spec.cut is PromptCut.TOKEN and prompt.prefix and not prompt.selection:  # a rewrite begins at the cursor
            prefix, removed = back_up(prefix, prompt.prefix, self._tokenizer.decode)
            if is_prefix_only and not len(prefix):
                prefix = self._tokenizer.encode("\n")
        template: FimTemplate = ("{prefix}",)
        if fim is not None:
            template = fim.prompt_with_files if len(files) else fim.prompt
        frame = self._rendered(template, {"{files}": files})
        shown, suffix = self._cut(prefix, "" if fim is None else prompt.suffix, self._start, comments, frame)
        fields = {"{files}": files, "{prefix}": concat(comments, shown), "{suffix}": suffix}
        before = tuple(piece for piece in template if isinstance(piece, str) and piece != "{suffix}")
        return Layout(
            concat(self._start, self._rendered(template, fields)),
            before_ids=self._rendered(before, fields),
            after_ids=suffix,
            removed=removed,
        )

    def infill(self) -> Layout:
        """A prompt of 1 token or more; the tail fills the longest canvas."""
        prompt = self._prompt
        before = self._tokenizer.encode(prompt.prefix or "\n")  # the prompt must not be empty
        num_head = min(PREFIX_TAIL, len(before) - (not len(self._start)))
        cut = len(before) - num_head
        snippets = self._comments()
        room = max(1, self._max_tokens - len(self._start) - len(snippets))
        room_after = max(0, self._spec.longest_block - num_head - 1)
        after = self._tokenizer.encode(prompt.suffix[: room_after * _MAX_CHARS_PER_TOKEN])
        return Layout(
            concat(self._start, snippets, end_of(before[:cut], room, prompt.lookahead)),
            head_ids=before[cut:],
            tail_ids=after[:room_after],
            before_ids=before,
            after_ids=after,
        )

    def instruct(self) -> Layout:
        """A fill: the question shows the code below the cursor, and the answer begins with the code above it.

        The line of the cursor is frozen in the canvas; a model without canvases continues at a token boundary. Raises
        as `chat.rendered` does.
        """
        spec, prompt, encode = self._spec, self._prompt, self._tokenizer.encode
        removed = b""
        line = NOTHING
        if spec.cut is PromptCut.TOKEN and not prompt.selection:  # a rewrite begins at the cursor
            above, removed = back_up(encode(prompt.prefix), prompt.prefix, self._tokenizer.decode)
        elif spec.sampling is None:
            above = encode(prompt.prefix)
        else:
            at = prompt.prefix.rfind("\n") + 1
            line = encode(prompt.prefix[at:])
            start = max(0, len(line) - 1) // MAX_LINE_HEAD * MAX_LINE_HEAD  # in steps, so that typing rarely moves it
            above, line = concat(encode(prompt.prefix[:at]), line[:start]), line[start:]
        words = template_words(prompt)
        below = prompt.suffix if prompt.suffix.strip() else ""
        before, after = self._question(FILL if below else FILL_AT_END, words)
        opening = self._after(CODE_OPENING.format(**words))
        shown, suffix = self._cut(above, below, before, after, opening)
        return Layout(
            concat(before, suffix, after, opening, shown),
            head_ids=line,
            before_ids=concat(shown, line),
            after_ids=suffix,
            removed=removed,
            stop=words["fence"],
        )

    def rewrite(self) -> Layout:
        """A rewrite, with the code around the selection. Raises as `chat.rendered` does.

        On a canvas the answer begins with the selection's indentation. A model without canvases writes it itself,
        because many tokenizers join the last blank with the word behind it.
        """
        prompt, encode = self._prompt, self._tokenizer.encode
        words = template_words(prompt)
        selection = encode(prompt.selection.removesuffix("\n") + "\n")
        answer = encode(answer_start(prompt, self._spec))
        before, after = self._question(REWRITE, words)
        between = self._after(REWRITE.between.format(**words))
        shown, suffix = self._cut(encode(prompt.prefix), prompt.suffix, before, selection, between, selection, after)
        return Layout(
            concat(before, shown, selection, suffix, between, selection, after),
            head_ids=concat(self._after(CODE_OPENING.format(**words)), answer),
            before_ids=concat(shown, selection, answer),
            after_ids=suffix,
            stop=words["fence"],
        )

    def _after(self, text: str) -> TokenIds:
        """Ids of a text that follows other tokens: without the blank that SentencePiece puts before a text."""
        encode = self._tokenizer.encode
        if not self._spec.adds_blank:
            return encode(text)
        # as Code Llama and Mistral do: no token joins this character with the next one
        return encode(_SINGLE + text)[len(encode(_SINGLE)) :]

    def _cut(self, above: TokenIds, below: str, *fixed: TokenIds) -> tuple[TokenIds, TokenIds]:
        """The end of the code above a gap, and the beginning of that below it, in the room beside the fixed parts."""
        room = max(0, self._max_tokens - sum(map(len, fixed)))
        suffix = self._after(below)[: int(room * SUFFIX_SHARE)]
        return end_of(above, room - len(suffix), self._prompt.lookahead), suffix

    def _comments(self) -> TokenIds:
        """Snippets as code after comments with their paths, then the path of the file itself as a comment."""
        chunks = self._prompt.snippets.chunks
        if not chunks:
            return NOTHING
        ids = (self._prompt.language, *(language_id_of(chunk.path) for chunk in chunks))
        # a file without a name or a comment gets headings in the syntax of the other files
        language = next((language for language in map(language_of, ids) if language.commented("path")), PLAIN)

        def encode(chunk: Snippet) -> TokenIds:
            head = language.commented(chunk.path) or f"// {chunk.path}"
            return self._after(f"{head}\n{_whole_lines(chunk.text)}")

        own = encode(Snippet(chunks[0].source, self._path, ""))
        snippets = self._snippets(self._max_snippets - len(own), encode)
        return concat(*snippets, own) if snippets else NOTHING

    def _files(self) -> TokenIds:
        """Snippets in the model's format for several files."""
        fim = self._spec.fim
        if fim is None or not self._prompt.snippets.chunks:
            return NOTHING
        repository = self._prompt.snippets.repository
        first = self._rendered(fim.repository, {}, {"repository": repository}) if repository else NOTHING
        own = self._rendered(fim.prompt_with_files, {})

        def encode(chunk: Snippet) -> TokenIds:
            return self._rendered(fim.file, {}, {"path": chunk.path or self._path, "code": _whole_lines(chunk.text)})

        snippets = self._snippets(self._max_snippets - len(first) - len(own), encode)
        return concat(first, *snippets) if snippets else NOTHING

    def _rendered(
        self, template: FimTemplate, fields: Mapping[str, TokenIds], words: Mapping[str, str] | None = None
    ) -> TokenIds:
        """Token ids of a template. A field that is not given is empty; the words are inserted into other texts."""
        words = words or {"path": self._path}
        parts = [NOTHING]
        for piece in template:
            if isinstance(piece, int):
                parts.append(token_ids([piece]))
            elif piece in ("{files}", "{prefix}", "{suffix}"):
                parts.append(fields.get(piece, NOTHING))
            else:
                parts.append(self._after(piece.format(**words)))
        return concat(*parts)

    def _question(self, template: PromptTemplate, words: Mapping[str, str]) -> tuple[TokenIds, TokenIds]:
        """The ids of a chat of one question before the code, with snippets, and after it."""
        spec, language = self._spec, self._prompt.language
        chat = rendered((Turn(Role.USER, _QUESTION),), self._tokenizer, spec)
        opening, mark, closing = chat.partition(_QUESTION)
        if not mark:
            raise ModelUnsupportedError(f"the chat template of {spec.name} leaves the question out; use another file")
        first = template.before.format(**words)
        request = escaped(template.request.format(**words), self._tokenizer) + closing
        after = encoded(request, self._tokenizer)
        snippets = self._snippets(
            self._max_snippets, lambda chunk: self._after(snippet_text(chunk, words["fence"], language))
        )
        if not snippets:
            return encoded(opening + escaped(first, self._tokenizer), self._tokenizer), after
        heading = encoded(opening + SNIPPETS_HEADING, self._tokenizer)
        return concat(heading, *snippets, self._after(first)), after

    def _snippets(self, room: int, encode: Callable[[Snippet], TokenIds]) -> list[TokenIds]:
        """The snippets that fit into `room` tokens, in prompt order."""
        return [ids for _, ids in fitting(self._prompt.snippets.chunks, room, encode)]


def _whole_lines(text: str) -> str:
    return text.strip("\n") + "\n" if text else ""


def fitting(
    chunks: Iterable[Snippet], room: int, encode: Callable[[Snippet], EncodedT]
) -> list[tuple[Snippet, EncodedT]]:
    """The snippets that fit into `room`, cut to whole lines, and what `encode` makes of each, in prompt order.

    Room is the length of what `encode` returns. Important snippets get room first. The most important one of a source
    is nearest to the code.
    """
    taken: list[tuple[Snippet, EncodedT]] = []
    for chunk in sorted(chunks, key=lambda chunk: _IMPORTANCE.index(chunk.source)):
        if fitted := _fitted(chunk, room, encode):
            taken.insert(0, fitted)
            room -= len(fitted[1])
    return sorted(taken, key=lambda pair: list(SnippetSource).index(pair[0].source))


def _fitted(chunk: Snippet, room: int, encode: Callable[[Snippet], EncodedT]) -> tuple[Snippet, EncodedT] | None:
    """The beginning of a snippet, the end of a test's output; None if no whole line fits."""
    if room < MIN_ROOM:
        return None
    is_output = chunk.source is SnippetSource.TEST
    if len(chunk.text) > room * TOKEN_CHARS:
        text = chunk.text[-room * TOKEN_CHARS :].partition("\n")[2] if is_output else ""
        chunk = replace(chunk, text=text or chunk.text[: room * TOKEN_CHARS].rpartition("\n")[0])
        if not chunk.text:
            return None
    lines = chunk.text.split("\n")
    num = len(lines)
    while num:
        part = replace(chunk, text="\n".join(lines[-num:] if is_output else lines[:num]))
        content = encode(part)
        if len(content) <= room:
            return part, content
        num = num * room // len(content) if num == len(lines) else num - max(1, num // 8)
    return None


def layout_of(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """The layout of a fill in the spec's format, with at most `max_tokens` prompt tokens.

    Raises:
        ModelUnsupportedError: the vocabulary lacks tokens that the format needs.
    """
    builder = _PromptBuilder(prompt, tokenizer, spec, max_tokens)
    if spec.prompt_format is PromptFormat.INSTRUCT:
        return builder.instruct()
    return builder.infill() if spec.prompt_format is PromptFormat.INFILL else builder.fim()


def rewrite_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """The layout of a rewrite by instruction. Raises as `chat.rendered` does."""
    return _PromptBuilder(prompt, tokenizer, spec, max_tokens).rewrite()


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
