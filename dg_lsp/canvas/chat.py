"""Conversations: turn after turn as a chat template writes them, up to where the next answer begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dg_lsp.canvas.layout import Layout
from dg_lsp.canvas.pieces import encoded
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.canvas.templates import Piece, Special, template_of
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.errors import RequestError


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
