"""`GET /openapi.json`: what may be asked and what is answered, as OpenAPI 3.1. Unknown fields are always allowed."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from dg_lsp import __version__
from dg_lsp.http import bodies
from dg_lsp.http.refusal import CANCELLED
from dg_lsp.http.replies import SCHEMAS
from dg_lsp.http.shapes import WORDS, Schema, array, named
from dg_lsp.http.wire import answer


@dataclass(frozen=True, slots=True)
class Posted:
    """A path that is asked with a body."""

    sentence: str
    body: Schema
    reply: Schema
    event: str = ""
    """Of what its stream is made, where it has one."""
    example: Schema | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A path that is only looked at."""

    sentence: str
    reply: Schema
    media_type: str = "application/json"


_STATUS = named("Status")
_REGION = "<|code_to_edit|>\nx = <|cursor|>\n<|/code_to_edit|>\n"
_MERCURYS: Schema = {
    "messages": [{"role": "user", "content": f"<|current_file_content|>\n{_REGION}<|/current_file_content|>\n"}]
}
_FILL = named("Fill")
POSTS = {
    "/infill": Posted(
        "Fills a gap, as llama.cpp's clients ask it.", bodies.INFILL, {"anyOf": [_FILL, array(_FILL)]}, "Fill"
    ),
    "/v1/completions": Posted(
        "Fills a gap, as OpenAI's and Tabby's clients ask it.",
        bodies.COMPLETION,
        {"anyOf": [named("Completion"), named("Tabby")]},
        "CompletionChunk",
    ),
    "/v1/fim/completions": Posted(
        "Fills a gap, as Mistral's and Inception's clients read it.", bodies.FIM, named("Fim"), "FimChunk"
    ),
    "/v1/chat/completions": Posted(
        "Answers a conversation; for models that follow instructions.", bodies.CHAT, named("Chat"), "ChatChunk"
    ),
    "/v1/edit/completions": Posted(
        "Fills at the cursor of Mercury's template and gives its region back.",
        bodies.EDIT,
        named("Chat"),
        "ChatChunk",
        _MERCURYS,
    ),
    "/v1/apply/completions": Posted(
        "Applies an update; for models that follow instructions.", bodies.CHAT, named("Chat"), "ChatChunk"
    ),
    "/v1/events": Posted("Counts what a user did, as Tabby's clients tell it.", bodies.EVENT, _STATUS),
    "/feedback": Posted("Counts what a user did, as Cursortab tells it.", bodies.FEEDBACK, _STATUS),
}
GETS = {
    "/health": Read("Whether the model is there.", _STATUS),
    "/v1/models": Read("The model.", named("Models")),
    "/props": Read("How long a prompt may be.", named("Props")),
    "/slots": Read("How many prompts are kept.", named("Slots")),
    "/memory": Read("Bytes that the process holds.", named("Memory")),
    "/metrics": Read("Prometheus' text format.", WORDS, "text/plain"),
    "/openapi.json": Read("This document.", named("Document")),
}
_REFUSED = {
    400: "A field or the body is wrong, or the model cannot take it.",
    401: "The key is missing or wrong.",
    403: "The Host or the Origin is not served.",
    405: "The method is not for this path.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    415: "The body is compressed.",
    429: "This client asks for too much at a time; Retry-After says when to ask again.",
    CANCELLED: "A newer request of this document took its place.",
    500: "The engine failed.",
    501: "This model cannot do that.",
    503: "The model is loading, or too many wait; Retry-After says when to ask again.",
    504: "Nothing was settled at the deadline.",
}
_SAID_WITH = {
    401: {"WWW-Authenticate": "How to send the key."},
    405: {"Allow": "The methods that are."},
    415: {"Accept-Encoding": "How to send it."},
    429: {"Retry-After": "Seconds."},
    501: {"X-Should-Retry": "false: OpenAI's client would ask again."},
    503: {"Retry-After": "Seconds."},
}
_OF_ALL = (401, 403, 405, 503)


async def openapi(_request: Request) -> Response:
    """The document."""
    return answer(document())


def document() -> Schema:
    """All paths, built from the tables above."""
    paths: Schema = {path: {"get": _read(about)} for path, about in GETS.items()}
    paths.update({path: {"post": _posted(about)} for path, about in POSTS.items()})
    return {
        "openapi": "3.1.0",
        "info": {"title": "dg-lsp", "version": __version__, "license": {"name": "Apache-2.0"}},
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _read(about: Read) -> Schema:
    done = {"description": "The answer.", "content": {about.media_type: {"schema": about.reply}}}
    return {"summary": about.sentence, "responses": {"200": done, **_refusals(*_OF_ALL)}}


def _posted(about: Posted) -> Schema:
    content: Schema = {"application/json": {"schema": about.reply}}
    if about.event:
        # OpenAPI 3.2 calls it itemSchema
        item = {"anyOf": [named(about.event), named("Error")]}
        content["text/event-stream"] = {"x-item-schema": item}
    example = {"example": about.example} if about.example else {}
    body = {"required": True, "content": {"application/json": {"schema": about.body, **example}}}
    done = {"description": "The answer.", "content": content}
    return {"summary": about.sentence, "requestBody": body, "responses": {"200": done, **_refusals(*_REFUSED)}}


def _refusals(*statuses: int) -> Schema:
    return {str(status): _refusal(status) for status in statuses}


def _refusal(status: int) -> Schema:
    error = {"application/json": {"schema": named("Error")}}
    headers = {
        name: {"description": sentence, "required": True, "schema": WORDS}
        for name, sentence in _SAID_WITH.get(status, {}).items()
    }
    return {"description": _REFUSED[status], "content": error, **({"headers": headers} if headers else {})}
