"""Conversations in a model's chat template, texts to continue, and the thought before an answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from dg_lsp.canvas.chat_template import TEMPLATES, TemplateError, TemplateRefusedError, render, render_here
from dg_lsp.canvas.layout import NOTHING, Layout, TokenIds, Tokenizer, concat, token_ids
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.errors import ModelUnsupportedError, RequestError


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


THINK = "<|think|>"
"""Gemma's token that turns thinking on."""
THOUGHT_MARKS = (("<|channel>", "<channel|>"), ("<think>", "</think>"))
"""The marks around a thought before an answer: tokens of Gemma; those of Qwen and others may be plain text."""
_CHANNEL_NAME = re.compile(r"\s*thought\b[ \t]*\n?")
_SPECIAL = re.compile(r"<[^<>\s]{1,64}>|\[[/|]?[A-Za-z_]{1,32}\|?\]")
"""What may spell a special token; the vocabulary decides."""


def rendered(turns: Sequence[Turn], tokenizer: Tokenizer, spec: ModelSpec, *, is_thinking: bool = False) -> str:
    """The conversation in the model's chat template, up to the beginning of the answer's text.

    Special tokens that are spelled in a message are broken by `escaped` and stay text in `encoded`.

    Raises:
        ModelUnsupportedError: the model has no chat template, or one that cannot be used.
        RequestError: the template accepts no such conversation.
    """
    template = spec.used_template
    if template is None:
        what = f"the unknown chat template {spec.template!r}" if spec.template else "no chat template"
        raise ModelUnsupportedError(f"{spec.name} has {what}; choose the prompt format fim, infill or prefix")
    is_own = template in TEMPLATES.values()
    for spelling in _SPECIAL.findall(template.bos + template.source) if is_own else ():
        if tokenizer.special(spelling) is None and (is_thinking or spelling != THINK):
            raise ModelUnsupportedError(
                f"{spec.name} has no token {spelling}, which its chat template needs; choose another prompt format"
            )
    messages = tuple((turn.role.value, escaped(turn.text, tokenizer)) for turn in turns)
    try:
        return (render_here if is_own else render)(template, messages, is_thinking)
    except TemplateRefusedError as error:
        raise RequestError(f"the chat template of {spec.name} refuses the conversation: {error}; change it") from error
    except TemplateError as error:
        raise ModelUnsupportedError(
            f"{spec.name} has a chat template that cannot be used ({error}); use another file of the model"
        ) from error


_BREAK = "\U000f1e57"
"""A private character inside a special token's spelling in a message; `encoded` removes it."""


def with_thoughts(spec: ModelSpec, tokenizer: Tokenizer) -> ModelSpec:
    """The spec of a model that can think, which may predict the tokens around a thought."""
    if not spec.can_think:
        return spec
    marks = {tokenizer.special(mark) for pair in THOUGHT_MARKS for mark in pair}
    return replace(spec, banned_ids=tuple(token for token in spec.banned_ids if token not in marks))


def split_thought(ids: TokenIds, tokenizer: Tokenizer, *, is_thinking: bool) -> tuple[str, str]:
    """The thought before an answer, which may be unfinished, and the answer.

    Without `is_thinking`, only text between the marks of a thought counts as one.
    """

    def text(part: TokenIds) -> str:
        return tokenizer.decode(part).decode("utf-8", "replace")

    def thought(marked: str) -> str:
        return _CHANNEL_NAME.sub("", marked, count=1).strip("\n")

    for opening, closing in ((tokenizer.special(start), tokenizer.special(end)) for start, end in THOUGHT_MARKS):
        ends = np.flatnonzero(ids == closing) if closing is not None else NOTHING
        if len(ends):
            return thought(text(ids[: ends[-1]])), text(ids[ends[-1] + 1 :]).lstrip("\n")
        if opening is not None and len(ids) and ids[0] == opening:
            return thought(text(ids)), ""
    whole, (opening_tag, closing_tag) = text(ids), THOUGHT_MARKS[1]
    before, end, after = whole.partition(closing_tag)
    before = before.lstrip()
    if not (before.startswith(opening_tag) or (is_thinking and (end or opening_tag.startswith(before)))):
        return "", whole
    if not end:  # the beginning of a tag is not shown
        tag = closing_tag if before.startswith(opening_tag) else opening_tag
        before = before[: -next((n for n in range(len(tag) - 1, 0, -1) if before.endswith(tag[:n])), 0) or None]
    return before.removeprefix(opening_tag).strip("\n"), after.lstrip("\n")


def escaped(text: str, tokenizer: Tokenizer) -> str:
    """Breaks the special tokens that are spelled in a text, so that `encoded` reads them as text."""

    def broken(spelling: re.Match[str]) -> str:
        return spelling[0][0] + _BREAK + spelling[0][1:] if tokenizer.special(spelling[0]) is not None else spelling[0]

    return _SPECIAL.sub(broken, text.replace(_BREAK, ""))


def encoded(text: str, tokenizer: Tokenizer) -> TokenIds:
    """Token ids of a text with special tokens spelled in it, as chat templates write it; shape (N,)."""
    ids, start = [NOTHING], 0
    for spelling in _SPECIAL.finditer(text):
        if (token := tokenizer.special(spelling[0])) is not None:
            ids += [_plain(text[start : spelling.start()], tokenizer), token_ids([token])]
            start = spelling.end()
    return concat(*ids, _plain(text[start:], tokenizer))


def _plain(text: str, tokenizer: Tokenizer) -> TokenIds:
    return tokenizer.encode(text.replace(_BREAK, "")) if text else NOTHING


def chat_layout(turns: Sequence[Turn], tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int = 0) -> Layout:
    """The prompt of the answer to the last turn, on an open canvas; `max_tokens` 0 is the longest prompt of a fill.

    Raises:
        ModelUnsupportedError: the model has no chat template, or one that cannot be used.
        RequestError: the last message is not the user's, the template refuses the conversation, or it is too long.
    """
    if not turns or turns[-1].role is Role.ASSISTANT:
        raise RequestError("the conversation has no question: its last message must be the user's")
    text = rendered(turns, tokenizer, spec, is_thinking=spec.is_thinking)
    return _checked(encoded(text, tokenizer), "conversation", spec, max_tokens)


def raw_layout(text: str, tokenizer: Tokenizer, spec: ModelSpec, max_tokens: int = 0) -> Layout:
    """A text to continue as it is; special tokens that are spelled in it are tokens. See `chat_layout`.

    Raises:
        RequestError: the text is empty or too long.
    """
    ids = concat(token_ids(spec.start_ids), encoded(text, tokenizer))
    if not len(ids):
        raise RequestError("there is no text to continue: send a prompt")
    return _checked(ids, "prompt", spec, max_tokens)


def _checked(prompt_ids: TokenIds, what: str, spec: ModelSpec, max_tokens: int) -> Layout:
    limit = max_tokens or spec.max_prompt_tokens
    if len(prompt_ids) > limit:
        advice = "shorten it, or raise model.context_length up to what the model was trained for"
        raise RequestError(f"the {what} has {len(prompt_ids)} tokens, {spec.name} takes {limit}: {advice}")
    return Layout(prompt_ids, before_ids=prompt_ids)
