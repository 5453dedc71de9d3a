"""JSON bodies of requests as pydantic models, and errors as JSON.

Unknown fields are ignored, because every dialect has some. Known fields are strict: a number is no string. An error is
never answered as an empty completion, because clients cache these and do not request the same position again.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import HTTPException
from fastapi.responses import Response
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from dg_lsp.errors import DgLspError, ModelError, ModelUnsupportedError, OptionError, RemoteError, RequestError
from dg_lsp.settings import SAMPLER_BOUNDS, SamplerOptions

MAX_CANDIDATES = 8
MAX_DEADLINE_MS = 600_000.0
MAX_OBJECTS = 4096
"""Objects in an array; editors send a few."""
MAX_NAMES = 64
"""Stops and names of fields; clients send a few short ones."""
MAX_NAME_CHARS = 1024
UserAction = Literal["accept", "reject", "ignore", "view", "select", "dismiss"]

# clients in JavaScript may cut a character in two; UTF-8 has no halves
Text = Annotated[str, AfterValidator(lambda text: text.encode("utf-8", "replace").decode())]
Name = Annotated[Text, Field(max_length=MAX_NAME_CHARS)]
Names = Annotated[
    list[Name],
    Field(max_length=MAX_NAMES),
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[Name]
    ),
]
"""Accepts one text in place of a list of texts."""
Prompt = Annotated[
    Text,
    BeforeValidator(
        lambda value: value[0] if isinstance(value, list) and len(value) == 1 else value,
        json_schema_input_type=str | Annotated[list[str], Field(min_length=1, max_length=1)],
    ),
]
"""Accepts a list of one text in place of the text."""
NumCandidates = Annotated[int, Field(ge=1, le=MAX_CANDIDATES)]


def _bounded(name: str) -> Any:
    least, most = SAMPLER_BOUNDS[name]
    return Field(ge=least, le=most)


class RequestBody(BaseModel):
    """A JSON object of a request. A field that is null counts as absent."""

    model_config = ConfigDict(strict=True, frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _normalize_fields(cls, tree: Any) -> Any:
        """8.0 becomes 8: Lua and Vim write whole numbers as floats."""
        if not isinstance(tree, dict):
            return tree
        whole = {name: int(value) for name, value in tree.items() if isinstance(value, float) and value.is_integer()}
        return {name: value for name, value in {**tree, **whole}.items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Adds null to every optional field."""
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        for name, field in schema["properties"].items():
            if name not in schema.get("required", ()):
                outer = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
                schema["properties"][name] = {"anyOf": [field, {"type": "null"}], **outer}
        return reference


class TemplateOptions(RequestBody):
    """Switches of a chat template."""

    enable_thinking: bool | None = None


class StreamOptions(RequestBody):
    """OpenAI's options of a stream."""

    include_usage: bool = False


SAMPLER_FIELDS = {
    "max_denoising_steps": "n_denoise_steps",
    "t_max": "temperature_max",
    "t_min": "temperature_min",
    "thinking": "chat_template_kwargs.enable_thinking",
}
"""Sampler options whose fields in `GenerationBody` have other names."""


class GenerationBody(RequestBody):
    """Fields of every request that generates text; those of the sampler are named as in llama.cpp's server."""

    seed: Annotated[int, AfterValidator(lambda seed: min(max(0, seed), 2**63 - 1))] = 0
    """The same seed on the same text gives the same answer; negative is any."""
    stop: Names = []
    """Texts that end the answer and are not part of it."""
    stream: bool = False
    """Send server-sent events."""
    stream_options: StreamOptions = StreamOptions()
    diffusing: bool = False
    """With `stream`: every event is a whole draft that replaces the one before it."""
    t_max_predict_ms: Annotated[float, Field(allow_inf_nan=False)] = 0
    """Deadline in milliseconds, counted from arrival; the answer is what is settled by then."""
    ignore_eos: bool = False
    """End tokens do not end a text or an answer; not for code."""
    top_k: Annotated[int, Field(ge=-1, le=SAMPLER_BOUNDS["top_k"][1])] | None = None
    """Number of the most probable tokens from which one is drawn; 0 and -1: all. Ignored for code."""
    top_k_start: Annotated[int, _bounded("top_k_start")] | None = None
    """With `top_k_end`, in place of `top_k`: the number at the first step, from which it changes linearly."""
    top_k_end: Annotated[int, _bounded("top_k_end")] | None = None
    """The number at the last step."""
    top_k_tail_correction: bool | None = None
    """The entropies of all tokens decide what is accepted."""
    canvas_length: Annotated[int, _bounded("canvas_length")] | None = None
    n_denoise_steps: Annotated[int, _bounded("max_denoising_steps")] | None = None
    entropy_bound: Annotated[float, _bounded("entropy_bound")] | None = None
    temperature_max: Annotated[float, _bounded("t_max")] | None = None
    temperature_min: Annotated[float, _bounded("t_min")] | None = None
    stability_threshold: Annotated[int, _bounded("stability_threshold")] | None = None
    stop_interval: Annotated[int, _bounded("stop_interval")] | None = None
    confidence_threshold: Annotated[float, _bounded("confidence_threshold")] | None = None
    chat_template_kwargs: TemplateOptions = TemplateOptions()

    @property
    def deadline_ms(self) -> float | None:
        """The deadline, if there is one; clients of llama.cpp send 0 and -1 for none."""
        return min(self.t_max_predict_ms, MAX_DEADLINE_MS) if self.t_max_predict_ms > 0 else None

    @property
    def sampler(self) -> SamplerOptions:
        """The options of the engine, without `top_k`, which clients send with every request for code."""
        numbers = {name: getattr(self, SAMPLER_FIELDS.get(name, name)) for name in SAMPLER_BOUNDS if name != "top_k"}
        return SamplerOptions(
            **numbers,
            top_k_tail_correction=self.top_k_tail_correction,
            thinking=self.chat_template_kwargs.enable_thinking,
        )


class ExtraSnippet(RequestBody):
    """Code of another file."""

    text: Text
    filename: Text = ""


class NativeBody(GenerationBody):
    """llama.cpp's completion of a text, which is the prompt, or of a gap."""

    input_prefix: Text = ""
    """The lines above the cursor's line."""
    prompt: Prompt = ""
    """The text, or the cursor's line up to the cursor."""
    input_suffix: Text = ""
    """Everything after the cursor."""
    input_extra: Annotated[list[ExtraSnippet], Field(max_length=MAX_OBJECTS)] = []
    language: Text = ""
    """LSP language id; without it the syntax is not checked."""
    max_tokens: int = Field(default=-1, ge=-2, alias="n_predict")
    """Longest answer in tokens; 0 only decodes the prompt into the cache, a negative number takes the default."""
    num_candidates: NumCandidates = Field(default=1, alias="n_cmpl")
    """Above 1 the response is an array."""
    n_indent: Annotated[int, Field(ge=0)] = 0
    """A later line with fewer leading blanks ends the answer."""
    response_fields: Names = []
    """Only these fields of the response; a slash reaches into an object."""


class Segments(RequestBody):
    """Tabby's gap."""

    prefix: Text = ""
    suffix: Text = ""
    filepath: Text = ""


class CompletionBody(GenerationBody):
    """OpenAI's legacy completion with a suffix, Mistral's or, with `segments`, Tabby's."""

    prompt: Prompt = ""
    """The text before the gap."""
    suffix: Text = ""
    """The text after the gap."""
    language: Text = ""
    """LSP language id; without it, and without a file name, the syntax is not checked."""
    max_tokens: Annotated[int, Field(ge=-1)] = -1
    num_candidates: NumCandidates = Field(default=1, alias="n")
    segments: Segments | None = None
    user: Text = ""
    """With `segments.filepath`: a newer request replaces the older one."""
    mode: Literal["standard"] = "standard"


class ContentPart(RequestBody):
    """A part of a message; only text is supported."""

    type: Literal["text"] = "text"
    text: Text = ""


class ChatMessage(RequestBody):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        list[ContentPart],
        Field(max_length=MAX_OBJECTS),
        BeforeValidator(
            lambda value: [{"text": value}] if isinstance(value, str) else value,
            json_schema_input_type=str | list[ContentPart],
        ),
    ] = []

    @property
    def text(self) -> str:
        """The text of all parts."""
        return "".join(part.text for part in self.content)


class ChatBody(GenerationBody):
    """OpenAI's chat, and Mercury's edit."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_OBJECTS)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=1)] = 1


class ActionBody(RequestBody):
    """A report of Tabby's clients, or of Cursortab, about what the user did with a completion."""

    action: UserAction = Field(validation_alias=AliasChoices("type", "user_action"))


# responses

CANCELLED = 499
"""nginx's status for a request that its client gave up; no client retries because of it."""
_INVALID_REQUEST = "invalid_request_error"
_ERRORS: dict[int, tuple[str, dict[str, str]]] = {
    401: ("authentication_error", {"WWW-Authenticate": "Bearer"}),
    403: ("permission_error", {}),
    404: ("not_found_error", {}),
    408: ("timeout_error", {"Connection": "close"}),
    413: (_INVALID_REQUEST, {"Connection": "close"}),
    429: ("rate_limit_error", {"Retry-After": "1"}),
    CANCELLED: ("cancelled_error", {}),
    500: ("server_error", {}),
    501: ("not_supported_error", {"X-Should-Retry": "false"}),  # OpenAI's client would retry twice
    503: ("unavailable_error", {"Retry-After": "1"}),
    504: ("timeout_error", {}),
}
"""Type and headers by status; any other status is a fault of the request."""


class ApiError(HTTPException):
    """A status, a message with the next step for the user, and the invalid field, if one is invalid."""

    def __init__(self, status: int, message: str, *, field: str = "", headers: Mapping[str, str] | None = None) -> None:
        self.kind, own_headers = _ERRORS.get(status, (_INVALID_REQUEST, {}))
        self.field = field
        super().__init__(status, message, headers or own_headers)

    @classmethod
    def of(cls, error: BaseException) -> "ApiError":
        """The response to an error of the engine. Foreign messages are left out: they may quote a buffer."""
        if not isinstance(error, DgLspError):
            return cls(500, f"internal error: {type(error).__name__}")
        if isinstance(error, OptionError):
            name = SAMPLER_FIELDS.get(error.option, error.option)
            return cls(400, f"Field '{name}' {error.problem}", field=name)
        statuses = {RequestError: 400, ModelUnsupportedError: 501, ModelError: 503, RemoteError: 503}
        return cls(next((status for kind, status in statuses.items() if isinstance(error, kind)), 500), str(error))

    @property
    def tree(self) -> dict[str, Any]:
        """`{"error": {...}}`."""
        fields = {"code": self.status_code, "message": self.detail, "type": self.kind}
        return {"error": {**fields, "param": self.field} if self.field else fields}

    @property
    def response(self) -> Response:
        """The error as a response."""
        return Response(json_bytes(self.tree), self.status_code, self.headers, media_type="application/json")


def json_bytes(tree: Any) -> bytes:
    """JSON on one line and without blanks, as llama.vim requires; halves of characters become question marks."""
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
