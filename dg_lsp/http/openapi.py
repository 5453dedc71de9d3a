"""`GET /openapi.json`: what may be asked and what is answered, as OpenAPI 3.1. Unknown fields are always allowed."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dg_lsp import __version__
from dg_lsp.http.asked import MAX_CANDIDATES
from dg_lsp.http.refusal import CANCELLED
from dg_lsp.http.tabby import KNOWN_ACTIONS, NEXT_EDIT, STANDARD
from dg_lsp.http.wire import answer

Schema = dict[str, Any]

_MOST = 2**31


def _text(sentence: str = "") -> Schema:
    return {"type": ["string", "null"], **({"description": sentence} if sentence else {})}


def _flag(sentence: str) -> Schema:
    return {"type": ["boolean", "null"], "description": sentence}


def _integer(least: int, most: int, sentence: str = "") -> Schema:
    return {"type": ["integer", "null"], "minimum": least, "maximum": most, "description": sentence}


def _object(properties: Schema, *required: str) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


_NUMBER: Schema = {"type": ["number", "null"]}
_STOP: Schema = {"type": ["string", "array", "null"], "items": {"type": "string"}}
_SEED = _integer(-(2**63), 2**63, "The same seed on the same text gives the same answer; negative is any.")
_USAGE_TOO: Schema = {"type": ["object", "null"], "properties": {"include_usage": {"type": ["boolean", "null"]}}}
_SHARED: Schema = {
    "seed": _SEED,
    "stop": _STOP,
    "stream": _flag("Server-sent events."),
    "t_max_predict_ms": {**_NUMBER, "description": "Milliseconds from arrival after which what is settled is shown."},
}
_CHUNK = _object({"text": {"type": "string"}, "filename": _text()}, "text")
_INFILL = _object(
    {
        **_SHARED,
        "input_prefix": _text("Lines above the cursor's."),
        "prompt": _text("The cursor's line up to the cursor."),
        "input_suffix": _text("All after the cursor."),
        "input_extra": {"type": ["array", "null"], "items": _CHUNK},
        "n_predict": _integer(-2, _MOST, "Tokens; 0 only readies the cache."),
        "n_cmpl": _integer(1, MAX_CANDIDATES, "Above 1 the answer is an array."),
        "n_indent": _integer(0, _MOST, "Blanks that later lines must begin with."),
        "response_fields": _STOP,
    }
)
_GAP: Schema = {
    **_SHARED,
    "prompt": _text("What stands before the gap."),
    "suffix": _text("What stands after it."),
    "language": _text("LSP language id."),
    "max_tokens": _integer(-1, _MOST),
    "n": _integer(1, MAX_CANDIDATES),
    "stream_options": _USAGE_TOO,
    "diffusing": _flag("With stream: every chunk is a whole draft that takes the place of the one before it."),
}
_SEGMENTS = {"prefix": _text(), "suffix": _text(), "filepath": _text()}
_COMPLETION = _object(
    {
        **_GAP,
        "segments": {"type": ["object", "null"], "properties": _SEGMENTS},
        "user": _text("With segments.filepath: a newer request takes the older one's place."),
        "mode": {"type": ["string", "null"], "enum": [STANDARD, NEXT_EDIT, None]},
    }
)
_PART = _object({"type": {"const": "text"}, "text": _text()})
_MESSAGE = _object(
    {
        "role": {"type": "string", "enum": ["system", "developer", "user", "assistant"]},
        "content": {
            "type": ["string", "array", "null"],
            "items": _object({"type": {"const": "text"}, "text": _text()}),
        },
    },
    "role",
)
_MESSAGES: Schema = {"type": "array", "items": _MESSAGE, "minItems": 1}
_CHAT = _object(
    {
        **_SHARED,
        "messages": _MESSAGES,
        "max_tokens": _integer(1, _MOST),
        "max_completion_tokens": _integer(1, _MOST),
        "n": _integer(1, 1),
        "stream_options": _USAGE_TOO,
        "diffusing": _flag("With stream: every chunk is a whole draft that takes the place of the one before it."),
    },
    "messages",
)
_EDIT = _object({"messages": _MESSAGES, "max_tokens": _integer(0, 4096), "stream": _flag("")}, "messages")
_ACTION: Schema = {"type": "string", "enum": list(KNOWN_ACTIONS)}

POSTS: dict[str, tuple[str, Schema]] = {
    "/infill": ("Fills a gap, as llama.cpp's clients ask it.", _INFILL),
    "/v1/completions": ("Fills a gap, as OpenAI's and Tabby's clients ask it.", _COMPLETION),
    "/v1/fim/completions": ("Fills a gap, as Mistral's and Inception's clients read it.", _object(_GAP)),
    "/v1/chat/completions": ("Answers a conversation; for models that follow instructions.", _CHAT),
    "/v1/edit/completions": ("Fills at the cursor of Mercury's template and gives its region back.", _EDIT),
    "/v1/apply/completions": ("Applies an update; for models that follow instructions.", _CHAT),
    "/v1/events": ("Counts what a user did, as Tabby's clients tell it.", _object({"type": _ACTION}, "type")),
    "/feedback": ("Counts what a user did, as Cursortab tells it.", _object({"user_action": _ACTION}, "user_action")),
}
GETS: dict[str, tuple[str, str]] = {
    "/health": ("Whether the model is there.", "application/json"),
    "/v1/models": ("The model.", "application/json"),
    "/props": ("How long a prompt may be.", "application/json"),
    "/slots": ("How many prompts are kept.", "application/json"),
    "/memory": ("Bytes that the process holds.", "application/json"),
    "/metrics": ("Prometheus' text format.", "text/plain"),
    "/openapi.json": ("This document.", "application/json"),
}
_REFUSED = {
    400: "A field or the body is wrong, or the model cannot take it.",
    401: "The key is missing or wrong.",
    403: "The Host or the Origin is not served.",
    405: "The method is not for this path.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    CANCELLED: "A newer request of this document took its place.",
    500: "The engine failed.",
    501: "This model cannot do that.",
    503: "The model is loading, or too many wait; Retry-After says when to ask again.",
    504: "Nothing was settled at the deadline.",
}


async def openapi(_request: Request) -> Response:
    """The document."""
    return answer(document())


def document() -> Schema:
    """All paths, built from the tables above."""
    paths: Schema = {path: {"get": _read(*about)} for path, about in GETS.items()}
    paths.update({path: {"post": _posted(*about)} for path, about in POSTS.items()})
    error = _object({"code": {"type": "integer"}, "message": {"type": "string"}, "type": {"type": "string"}})
    return {
        "openapi": "3.1.0",
        "info": {"title": "dg-lsp", "version": __version__, "license": {"name": "Apache-2.0"}},
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": {"Error": _object({"error": error}, "error")},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _read(sentence: str, media_type: str) -> Schema:
    return {"summary": sentence, "responses": {"200": _content("It.", media_type), **_refusals(401, 403, 405, 503)}}


def _posted(sentence: str, schema: Schema) -> Schema:
    done = {"description": "The answer.", "content": {"application/json": {"schema": {}}, "text/event-stream": {}}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"summary": sentence, "requestBody": body, "responses": {"200": done, **_refusals(*_REFUSED)}}


def _refusals(*statuses: int) -> Schema:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {str(status): {"description": _REFUSED[status], "content": error} for status in statuses}


def _content(sentence: str, media_type: str) -> Schema:
    return {"description": sentence, "content": {media_type: {"schema": {}}}}
