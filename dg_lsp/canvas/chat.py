"""Conversations: turn after turn as a chat template writes them, up to where the next answer begins."""

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


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """What stands around the one thing that is asked, up to where the answer begins; thinking is off."""

    before: tuple[Piece, ...]
    after: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """What is asked, in words; `{path}`, `{language}`, `{fence}` and `{instruction}` are filled in.

    The code comes between `before` and `after`: what precedes the place, `opening`, for a rewrite what is to be
    rewritten and `closing`, then what follows.
    """

    before: str
    opening: str
    closing: str
    after: str
    answer: str
    """How the answer begins, frozen in the canvas: the code goes on from there."""


TEMPLATES = {
    # transformers' Gemma 4 processor: with thinking off the answer begins after an empty thought
    "gemma4": ChatTemplate(
        before=(Special("<bos>"), Special("<|turn>"), "user\n"),
        after=(
            Special("<turn|>"),
            "\n",
            Special("<|turn>"),
            "model\n",
            Special("<|channel>"),
            "thought\n",
            Special("<channel|>"),
        ),
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
EXTRA_BEFORE = "Other code, for reference:\n\n"
EXTRA_CHUNK = "{path}\n{fence}{language}\n{text}{fence}\n\n"
"""How each piece of code from elsewhere stands before a question; `{text}` ends its last line."""
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
    """A template by the name that a model's spec says.

    Raises:
        ModelUnsupportedError: the model has none, or one that this version does not know.
    """
    if name not in TEMPLATES:
        what = f"the chat template {name!r}, which this version does not know" if name else "no chat template"
        raise ModelUnsupportedError(f"{model} has {what}; choose the prompt format fim, infill or prefix")
    return TEMPLATES[name]


def encoded(pieces: Iterable[Piece], tokenizer: Tokenizer, model: str) -> TokenIds:
    """Shape (number of tokens,). Texts that follow each other are one text to the tokenizer.

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


class Role(StrEnum):
    """Who says something."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Turn:
    """One thing that was said."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class _Form:
    """What stands around each turn, and what a role is called."""

    start: tuple[Piece, ...]
    opening: tuple[Piece, ...]
    closing: tuple[Piece, ...]
    names: tuple[tuple[Role, str], ...]


_FORMS = {
    "gemma4": _Form(
        start=(Special("<bos>"),),
        opening=(Special("<|turn>"),),
        closing=(Special("<turn|>"), "\n"),
        names=((Role.SYSTEM, "system\n"), (Role.USER, "user\n"), (Role.ASSISTANT, "model\n")),
    ),
}


def chat_layout(turns: Sequence[Turn], tokenizer: Tokenizer, spec: ModelSpec) -> Layout:
    """The prompt of the answer to the last turn, on an open canvas.

    Raises:
        ModelUnsupportedError: the model has no chat template that is known here, or lacks a token of it.
        RequestError: nobody said anything, or more than the model can take.
    """
    template = template_of(spec.template, spec.name)
    form = _FORMS[spec.template]
    if not turns or turns[-1].role is Role.ASSISTANT:
        raise RequestError("there is nothing to answer: the last message must be the user's")
    pieces: list[Piece] = [*form.start]
    for turn in turns:
        pieces += [*form.opening, dict(form.names)[turn.role], turn.text.strip(), *form.closing]
    # a template's end closes the user's turn, which the last one is
    pieces = [*pieces[: -len(form.closing)], *template.after]
    prompt_ids = encoded(pieces, tokenizer, spec.name)
    if len(prompt_ids) > spec.max_prompt_tokens:
        raise RequestError(
            f"the conversation has {len(prompt_ids)} tokens, {spec.name} takes {spec.max_prompt_tokens}: say less"
        )
    return Layout(prompt_ids)


MAX_LINE_HEAD = 24
"""Tokens of the cursor's line that are frozen; what a longer one has before them is shown before the gap."""
_FENCES = re.compile(r"^[ \t]*(`{3,})", re.MULTILINE)
_NO_NAME = "a file"
_NO_LANGUAGE = "text"


def instruct_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """A fill: the answer begins with the cursor's own line.

    Raises:
        ModelUnsupportedError: the model has no chat template, or lacks a token of it.
    """
    cut = prompt.prefix.rfind("\n") + 1
    line = tokenizer.encode(prompt.prefix[cut:])
    excess = max(0, len(line) - MAX_LINE_HEAD)
    excess = -(-excess // MAX_LINE_HEAD) * MAX_LINE_HEAD  # in steps, so that typing rarely moves it
    above = np.concatenate([tokenizer.encode(prompt.prefix[:cut]), line[:excess]])
    asking = _Asking(FILL, prompt, tokenizer, spec)
    return asking.layout(token_ids(above), NOTHING, line[excess:], max_tokens)


def rewrite_layout(prompt: Prompt, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int) -> Layout:
    """A rewrite of the prompt's selection by its instruction: the answer begins with the selection's indentation.

    Raises:
        ModelUnsupportedError: the model has no chat template, or lacks a token of it.
    """
    lines = prompt.selection.removesuffix("\n") + "\n"
    indentation = lines[: len(lines) - len(lines.lstrip(" "))]
    asking = _Asking(REWRITE, prompt, tokenizer, spec)
    above = tokenizer.encode(prompt.prefix)
    return asking.layout(above, tokenizer.encode(lines), tokenizer.encode(indentation), max_tokens)


def fence_of(prompt: Prompt) -> str:
    """Backticks, more than any line of the code begins with."""
    others = (chunk.text for chunk in prompt.extra.chunks)
    code = "\n".join((prompt.prefix, prompt.selection, prompt.suffix, *others))
    longest = max((len(run) for run in _FENCES.findall(code)), default=0)
    return "`" * max(3, longest + 1)


@dataclass(frozen=True, slots=True)
class _Asking:
    """One question about one prompt."""

    question: PromptTemplate
    prompt: Prompt
    tokenizer: Tokenizer
    spec: ModelSpec

    def layout(self, above: TokenIds, selection: TokenIds, answer: TokenIds, max_tokens: int) -> Layout:
        """At most `max_tokens` of prompt, unless the selection alone is longer; the code around it gives way."""
        template = template_of(self.spec.template, self.spec.name)
        question, encode = self.question, self.tokenizer.encode
        begin, asked = template.before, self._text(question.before)
        extra = self._extra(int(max_tokens * self.prompt.extra.share))
        if len(extra):
            opening = encoded((*begin, EXTRA_BEFORE), self.tokenizer, self.spec.name)
            before = token_ids(np.concatenate([opening, extra, encode(asked)]))
        else:
            before = encoded((*begin, asked), self.tokenizer, self.spec.name)
        after = encoded((self._text(question.after), *template.after), self.tokenizer, self.spec.name)
        marked = [encode(question.opening), selection, encode(question.closing)]
        room = max(0, max_tokens - len(before) - len(after) - sum(map(len, marked)))
        suffix = encode(self.prompt.suffix)[: int(room * SUFFIX_SHARE)]
        shown = end_of(above, room - len(suffix))
        return Layout(
            token_ids(np.concatenate([before, shown, *marked, suffix, after])),
            head_ids=token_ids(np.concatenate([encode(self._text(question.answer)), answer])),
            before_ids=token_ids(np.concatenate([shown, answer])),
            after_ids=suffix,
            stop=fence_of(self.prompt),
        )

    def _extra(self, room: int) -> TokenIds:
        """Code from elsewhere, each piece tokenized apart; shape (0..room,)."""
        fence = fence_of(self.prompt)

        def encode(chunk: Snippet) -> TokenIds:
            text = chunk.text.strip("\n") + "\n"
            language = self.prompt.language
            return self.tokenizer.encode(EXTRA_CHUNK.format(path=chunk.path, fence=fence, language=language, text=text))

        return token_ids(np.concatenate([NOTHING, *fitting(self.prompt, room, encode)]))

    def _text(self, text: str) -> str:
        prompt = self.prompt
        return text.format(
            path=prompt.path or _NO_NAME,
            language=prompt.language or _NO_LANGUAGE,
            fence=fence_of(prompt),
            instruction=prompt.instruction,
        )
