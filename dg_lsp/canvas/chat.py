"""Chat templates and the prompts built with them: conversations, instruct fills and instruct rewrites."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dg_lsp.canvas.fim import SUFFIX_SHARE, fitting
from dg_lsp.canvas.layout import NOTHING, Layout, TokenIds, end_of, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.snippets import Snippet
from dg_lsp.context.window import Prompt
from dg_lsp.errors import ModelUnsupportedError, RequestError


@dataclass(frozen=True, slots=True)
class Special:
    """One token of the vocabulary, by its spelling."""

    spelling: str


Piece = Special | str
MAX_LINE_HEAD = 24
"""Frozen tokens of the cursor's line; the beginning of a longer line goes into the prompt."""
_FENCES = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)


class Role(StrEnum):
    """The author of a chat message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Turn:
    """One chat message."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Tokens around the messages of a conversation; thinking is off."""

    start: tuple[Special, ...]
    opening: tuple[Piece, ...]  # before each message; the role's name follows
    closing: tuple[Piece, ...]
    names: Mapping[Role, str]
    answer: tuple[Piece, ...]  # after the last message, up to the beginning of the answer's text

    @property
    def before(self) -> tuple[Piece, ...]:
        """Everything before a single question."""
        return (*self.start, *self.opening, self.names[Role.USER])

    @property
    def after(self) -> tuple[Piece, ...]:
        """Everything after a single question, up to the beginning of the answer's text."""
        return (*self.closing, *self.answer)


TEMPLATES = {
    # as transformers' Gemma 4 processor writes it: with thinking off, the answer follows an empty thought
    "gemma4": ChatTemplate(
        start=(Special("<bos>"),),
        opening=(Special("<|turn>"),),
        closing=(Special("<turn|>"), "\n"),
        names={Role.SYSTEM: "system\n", Role.USER: "user\n", Role.ASSISTANT: "model\n"},
        answer=(Special("<|turn>"), "model\n", Special("<|channel>"), "thought\n", Special("<channel|>")),
    )
}


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The text of a question; `{path}`, `{language}`, `{fence}` and `{instruction}` are filled in.

    After `before` come prefix, `opening`, for a rewrite the selection and `closing`, suffix and `CODE_CLOSING`.
    """

    before: str
    opening: str
    closing: str = ""


CODE_OPENING, CODE_CLOSING = "{fence}{language}\n", "\n{fence}"
"""Around the code of a question. An answer begins with the opening, frozen in the canvas."""
FILL = PromptTemplate(
    "A gap in {path} is marked <GAP>. Write the {language} code that belongs there, from the beginning of its"
    " line on. Say nothing that stands before or after the gap.\n\n" + CODE_OPENING,
    opening="<GAP>",
)
REWRITE = PromptTemplate(
    "A part of {path} is marked <PART>. Rewrite this {language} code: {instruction}\n"
    "Answer with the whole part and nothing else.\n\n" + CODE_OPENING,
    opening="<PART>\n",
    closing="</PART>\n",
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


def template_of(spec: ModelSpec) -> ChatTemplate:
    """The model's chat template. Raises `ModelUnsupportedError` if it has none, or an unknown one."""
    if spec.template not in TEMPLATES:
        what = f"the unknown chat template {spec.template!r}" if spec.template else "no chat template"
        raise ModelUnsupportedError(f"{spec.name} has {what}; choose the prompt format fim, infill or prefix")
    return TEMPLATES[spec.template]


def encoded(pieces: Iterable[Piece], tokenizer: Tokenizer, model: str) -> TokenIds:
    """Token ids of the pieces, shape (N,). Adjacent texts are tokenized as one text.

    Raises:
        ModelUnsupportedError: the vocabulary of `model` lacks a special token.
    """
    ids: list[TokenIds] = []
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        if (token := tokenizer.special(piece.spelling)) is None:
            raise ModelUnsupportedError(
                f"{model} has no token {piece.spelling}, which its chat template needs; choose another prompt format"
            )
        ids += [tokenizer.encode(text), token_ids([token])]
        text = ""
    return token_ids(np.concatenate([*ids, tokenizer.encode(text)]))


def chat_layout(turns: Sequence[Turn], tokenizer: Tokenizer, spec: ModelSpec) -> Layout:
    """The prompt of the answer to the last turn, on an open canvas.

    Raises:
        ModelUnsupportedError: the model has no known chat template, or lacks one of its tokens.
        RequestError: the last message is not the user's, or the conversation is too long.
    """
    template = template_of(spec)
    if not turns or turns[-1].role is Role.ASSISTANT:
        raise RequestError("the conversation has no question: its last message must be the user's")
    pieces: list[Piece] = [*template.start]
    for turn in turns:
        pieces += [*template.opening, template.names[turn.role], turn.text.strip(), *template.closing]
    prompt_ids = encoded((*pieces, *template.answer), tokenizer, spec.name)
    if len(prompt_ids) > spec.max_prompt_tokens:
        raise RequestError(
            f"the conversation has {len(prompt_ids)} tokens, {spec.name} takes {spec.max_prompt_tokens}: shorten it"
        )
    return Layout(prompt_ids)


def instruct_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """Layout of a fill: the answer begins with the line of the cursor. Raises as `template_of` and `encoded` do."""
    cut = prompt.prefix.rfind("\n") + 1
    line = tokenizer.encode(prompt.prefix[cut:])
    excess = max(0, len(line) - MAX_LINE_HEAD)
    excess = -(-excess // MAX_LINE_HEAD) * MAX_LINE_HEAD  # in steps, so that typing rarely moves it
    above = token_ids(np.concatenate([tokenizer.encode(prompt.prefix[:cut]), line[:excess]]))
    return _layout(FILL, prompt, tokenizer, spec, max_tokens, above=above, selection=NOTHING, answer=line[excess:])


def rewrite_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """Layout of a rewrite: the answer begins with the selection's indentation. Raises as `instruct_layout` does."""
    lines = prompt.selection.removesuffix("\n") + "\n"
    indentation = lines[: len(lines) - len(lines.lstrip(" "))]
    above, selection, answer = map(tokenizer.encode, (prompt.prefix, lines, indentation))
    return _layout(REWRITE, prompt, tokenizer, spec, max_tokens, above=above, selection=selection, answer=answer)


def _layout(
    template: PromptTemplate,
    prompt: Prompt,
    tokenizer: Tokenizer,
    spec: ModelSpec,
    max_tokens: int,
    *,
    above: TokenIds,
    selection: TokenIds,
    answer: TokenIds,
) -> Layout:
    """Layout with at most `max_tokens` of prompt, unless the selection is longer; the code around it is cut."""
    chat, words, encode = template_of(spec), template_words(prompt), tokenizer.encode
    fence, question = words["fence"], template.before.format(**words)
    room = int(max_tokens * prompt.snippets.share)
    if snippets := fitting(prompt, room, lambda chunk: encode(snippet_text(chunk, fence, prompt.language))):
        heading = encoded((*chat.before, SNIPPETS_HEADING), tokenizer, spec.name)
        before = np.concatenate([heading, *snippets, encode(question)])
    else:
        before = encoded((*chat.before, question), tokenizer, spec.name)
    after = encoded((CODE_CLOSING.format(**words), *chat.after), tokenizer, spec.name)
    marked = [encode(template.opening), selection, encode(template.closing)]
    room = max(0, max_tokens - len(before) - len(after) - sum(map(len, marked)))
    suffix = encode(prompt.suffix)[: int(room * SUFFIX_SHARE)]
    shown = end_of(above, room - len(suffix))
    return Layout(
        token_ids(np.concatenate([before, shown, *marked, suffix, after])),
        head_ids=token_ids(np.concatenate([encode(CODE_OPENING.format(**words)), answer])),
        before_ids=token_ids(np.concatenate([shown, answer])),
        after_ids=suffix,
        stop=fence,
    )
