"""Chat templates and the prompts built with them: conversations, instruct fills and instruct rewrites."""

import re
from collections.abc import Iterable, Sequence
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

    start: tuple[Piece, ...]
    opening: tuple[Piece, ...]
    """Before each message; the role's name follows."""
    closing: tuple[Piece, ...]
    names: tuple[tuple[Role, str], ...]
    answer: tuple[Piece, ...]
    """After the last message, up to the beginning of the answer's text."""

    @property
    def before(self) -> tuple[Piece, ...]:
        """Everything before a single question."""
        return (*self.start, *self.opening, dict(self.names)[Role.USER])

    @property
    def after(self) -> tuple[Piece, ...]:
        """Everything after a single question, up to the beginning of the answer's text."""
        return (*self.closing, *self.answer)


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """The text of a question; `{path}`, `{language}`, `{fence}` and `{instruction}` are filled in.

    The code comes between `before` and `after`: prefix, `opening`, for a rewrite the selection and `closing`, suffix.
    """

    before: str
    opening: str
    closing: str
    after: str
    answer: str
    """Beginning of the answer, frozen in the canvas; the code follows it."""


TEMPLATES = {
    # as transformers' Gemma 4 processor writes it: with thinking off, the answer follows an empty thought
    "gemma4": ChatTemplate(
        start=(Special("<bos>"),),
        opening=(Special("<|turn>"),),
        closing=(Special("<turn|>"), "\n"),
        names=((Role.SYSTEM, "system\n"), (Role.USER, "user\n"), (Role.ASSISTANT, "model\n")),
        answer=(Special("<|turn>"), "model\n", Special("<|channel>"), "thought\n", Special("<channel|>")),
    ),
}

FILL = PromptTemplate(
    before=(
        "A gap in {path} is marked <GAP>. Write the {language} code that belongs there, from the beginning of its"
        " line on. Say nothing that stands before or after the gap.\n\n{fence}{language}\n"
    ),
    opening="<GAP>",
    closing="",
    after="\n{fence}",
    answer="{fence}{language}\n",
)
SNIPPETS_HEADING = "Other code, for reference:\n\n"
SNIPPET_TEMPLATE = "{path}\n{fence}{language}\n{text}{fence}\n\n"
"""One snippet before a question; `{text}` ends with a line end."""
REWRITE = PromptTemplate(
    before=(
        "A part of {path} is marked <PART>. Rewrite this {language} code: {instruction}\n"
        "Answer with the whole part and nothing else.\n\n{fence}{language}\n"
    ),
    opening="<PART>\n",
    closing="</PART>\n",
    after="\n{fence}",
    answer="{fence}{language}\n",
)


def template_of(name: str, model: str) -> ChatTemplate:
    """The chat template with this name.

    Raises:
        ModelUnsupportedError: the model has no template, or an unknown one.
    """
    if name not in TEMPLATES:
        what = f"the unknown chat template {name!r}" if name else "no chat template"
        raise ModelUnsupportedError(f"{model} has {what}; choose the prompt format fim, infill or prefix")
    return TEMPLATES[name]


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
        ids += [tokenizer.encode(text), token_ids([_special(piece, tokenizer, model)])]
        text = ""
    return token_ids(np.concatenate([*ids, tokenizer.encode(text)]))


def _special(special: Special, tokenizer: Tokenizer, model: str) -> int:
    token = tokenizer.special(special.spelling)
    if token is None:
        raise ModelUnsupportedError(
            f"{model} has no token {special.spelling}, which its chat template needs; choose another prompt format"
        )
    return token


def chat_layout(turns: Sequence[Turn], tokenizer: Tokenizer, spec: ModelSpec) -> Layout:
    """The prompt of the answer to the last turn, on an open canvas.

    Raises:
        ModelUnsupportedError: the model has no known chat template, or lacks one of its tokens.
        RequestError: the last message is not the user's, or the conversation is too long.
    """
    template = template_of(spec.template, spec.name)
    if not turns or turns[-1].role is Role.ASSISTANT:
        raise RequestError("the conversation has no question: its last message must be the user's")
    pieces: list[Piece] = [*template.start]
    for turn in turns:
        pieces += [*template.opening, dict(template.names)[turn.role], turn.text.strip(), *template.closing]
    pieces += template.answer
    prompt_ids = encoded(pieces, tokenizer, spec.name)
    if len(prompt_ids) > spec.max_prompt_tokens:
        raise RequestError(
            f"the conversation has {len(prompt_ids)} tokens, {spec.name} takes {spec.max_prompt_tokens}: shorten it"
        )
    return Layout(prompt_ids)


MAX_LINE_HEAD = 24
"""Frozen tokens of the cursor's line; the beginning of a longer line goes into the prompt."""
_FENCES = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)
_NO_NAME = "a file"
_NO_LANGUAGE = "text"


def instruct_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """Layout of a fill: the answer begins with the line of the cursor.

    Raises:
        ModelUnsupportedError: the model has no chat template, or lacks one of its tokens.
    """
    cut = prompt.prefix.rfind("\n") + 1
    line = tokenizer.encode(prompt.prefix[cut:])
    excess = max(0, len(line) - MAX_LINE_HEAD)
    excess = -(-excess // MAX_LINE_HEAD) * MAX_LINE_HEAD  # in steps, so that typing rarely moves it
    above = np.concatenate([tokenizer.encode(prompt.prefix[:cut]), line[:excess]])
    question = _Question(FILL, prompt, tokenizer, spec)
    return question.layout(token_ids(above), NOTHING, line[excess:], max_tokens)


def rewrite_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """Layout of a rewrite by instruction: the answer begins with the selection's indentation.

    Raises:
        ModelUnsupportedError: the model has no chat template, or lacks one of its tokens.
    """
    lines = prompt.selection.removesuffix("\n") + "\n"
    indentation = lines[: len(lines) - len(lines.lstrip(" "))]
    question = _Question(REWRITE, prompt, tokenizer, spec)
    above = tokenizer.encode(prompt.prefix)
    return question.layout(above, tokenizer.encode(lines), tokenizer.encode(indentation), max_tokens)


def fence_of(prompt: Prompt) -> str:
    """A code fence longer than any in the code."""
    others = (chunk.text for chunk in prompt.snippets.chunks)
    code = "\n".join((prompt.prefix, prompt.selection, prompt.suffix, *others))
    longest = max((len(run) for run in _FENCES.findall(code)), default=0)
    return "`" * max(3, longest + 1)


@dataclass(frozen=True, slots=True)
class _Question:
    """One question about one prompt."""

    template: PromptTemplate
    prompt: Prompt
    tokenizer: Tokenizer
    spec: ModelSpec

    def layout(self, above: TokenIds, selection: TokenIds, answer: TokenIds, max_tokens: int) -> Layout:
        """Layout with at most `max_tokens` of prompt, unless the selection is longer; the code around it is cut."""
        chat = template_of(self.spec.template, self.spec.name)
        template, encode = self.template, self.tokenizer.encode
        begin, asked = chat.before, self._text(template.before)
        snippets = self._snippet_ids(int(max_tokens * self.prompt.snippets.share))
        if len(snippets):
            opening = encoded((*begin, SNIPPETS_HEADING), self.tokenizer, self.spec.name)
            before = token_ids(np.concatenate([opening, snippets, encode(asked)]))
        else:
            before = encoded((*begin, asked), self.tokenizer, self.spec.name)
        after = encoded((self._text(template.after), *chat.after), self.tokenizer, self.spec.name)
        marked = [encode(template.opening), selection, encode(template.closing)]
        room = max(0, max_tokens - len(before) - len(after) - sum(map(len, marked)))
        suffix = encode(self.prompt.suffix)[: int(room * SUFFIX_SHARE)]
        shown = end_of(above, room - len(suffix))
        return Layout(
            token_ids(np.concatenate([before, shown, *marked, suffix, after])),
            head_ids=token_ids(np.concatenate([encode(self._text(template.answer)), answer])),
            before_ids=token_ids(np.concatenate([shown, answer])),
            after_ids=suffix,
            stop=fence_of(self.prompt),
        )

    def _snippet_ids(self, room: int) -> TokenIds:
        """Token ids of the snippets that fit, shape (0..room,)."""
        fence = fence_of(self.prompt)

        def encode(chunk: Snippet) -> TokenIds:
            text = chunk.text.strip("\n") + "\n"
            language = self.prompt.language
            return self.tokenizer.encode(
                SNIPPET_TEMPLATE.format(path=chunk.path, fence=fence, language=language, text=text)
            )

        return token_ids(np.concatenate([NOTHING, *fitting(self.prompt, room, encode)]))

    def _text(self, text: str) -> str:
        prompt = self.prompt
        return text.format(
            path=prompt.path or _NO_NAME,
            language=prompt.language or _NO_LANGUAGE,
            fence=fence_of(prompt),
            instruction=prompt.instruction,
        )
