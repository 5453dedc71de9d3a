"""The messages of a chat as OpenAI's clients send them, and frames around what is said."""

import time
import uuid
from typing import Any

from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.http.fields import Fields

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}


def turns_of(fields: Fields) -> tuple[Turn, ...]:
    """What was said so far.

    Raises:
        Refusal: it is nothing, or something else than text.
    """
    messages = fields.objects("messages")
    if not messages:
        fields.refuse("messages", "expected an array with at least one message")
    return tuple(Turn(_role(message), text_of(message)) for message in messages)


def text_of(message: Fields) -> str:
    """A message's content: a text, or an array of parts that are texts.

    Raises:
        Refusal: it is something else, such as an image.
    """
    if not message.is_array("content"):
        return message.text("content")
    parts = message.objects("content")
    for part in parts:
        if part.text("type", "text") != "text":
            part.refuse("type", "only parts of type text are understood")
    return "".join(part.text("text") for part in parts)


def chat_frame(model: str, kind: str) -> dict[str, Any]:
    """What every chunk of an answer says again; `kind` is `chat.completion` or its chunk."""
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def whole(content: str, finish_reason: str) -> dict[str, Any]:
    """The only choice of an answer."""
    return {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}


def piece(content: str, finish_reason: str | None = None) -> dict[str, Any]:
    """The only choice of a chunk."""
    return {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": finish_reason}


def _role(message: Fields) -> Role:
    name = message.text("role")
    if name not in _ROLES:
        message.refuse("role", f"expected one of {', '.join(_ROLES)}")
    return _ROLES[name]
