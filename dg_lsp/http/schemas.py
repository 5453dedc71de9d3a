"""JSON bodies of requests and responses, as pydantic models, and errors.

Requests: unknown fields are ignored, since every dialect has some; known ones are strict: a number is no string. An
error is never an empty completion: clients cache those and do not request the same position again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import HTTPException
from fastapi.responses import JSONResponse, Response
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.request import CHAT_MAX_TOKENS
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

# clients in JavaScript and remote models may cut a character in two; UTF-8 has no halves
Text = Annotated[str, AfterValidator(lambda text: text.encode("utf-8", "replace").decode())]
Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[Text, Field(max_length=MAX_NAME_CHARS)]


def _listed(schema: Any) -> BeforeValidator:
    """A text stands for a list of it."""
    return BeforeValidator(lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=schema)


Texts = Annotated[list[Text], _listed(str | list[str])]
Names = Annotated[list[Name], Field(max_length=MAX_NAMES), _listed(str | list[Name])]
Count = Annotated[int, Field(ge=0)]
NumCandidates = Annotated[int, Field(ge=1, le=MAX_CANDIDATES)]


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
    """The model thinks before it answers; only models whose chat template has this switch."""


def _bounds(name: str) -> Any:
    """Those of a sampler option."""
    least, most = SAMPLER_BOUNDS[name]
    return Field(ge=least, le=most)


SAMPLER_FIELDS = {
    "max_denoising_steps": "n_denoise_steps",
    "t_max": "temperature_max",
    "t_min": "temperature_min",
    "thinking": "chat_template_kwargs.enable_thinking",
}
"""Sampler options whose fields in `SamplerBody` have other names."""


class SamplerBody(RequestBody):
    """How the model denoises, in place of its own values; the names are those of llama.cpp's DiffusionGemma server.

    A field that does not apply to the model is refused.
    """

    canvas_length: Annotated[int, _bounds("canvas_length")] | None = None
    """Tokens denoised at once."""
    n_denoise_steps: Annotated[int, _bounds("max_denoising_steps")] | None = None
    """Forward passes of one canvas at most."""
    entropy_bound: Annotated[float, _bounds("entropy_bound")] | None = None
    """Uniform noise: positions are accepted while their entropies, in nats, sum to less."""
    temperature_max: Annotated[float, _bounds("t_max")] | None = None
    """Uniform noise: temperature of the first step."""
    temperature_min: Annotated[float, _bounds("t_min")] | None = None
    """Uniform noise: temperature of the last step."""
    stability_threshold: Annotated[int, _bounds("stability_threshold")] | None = None
    """Uniform noise: steps without a change before a canvas may end."""
    confidence_threshold: Annotated[float, _bounds("confidence_threshold")] | None = None
    """Masks: probability that fills one. Uniform noise: mean entropy, in nats, below which a canvas ends."""
    chat_template_kwargs: TemplateOptions = TemplateOptions()

    @property
    def sampler(self) -> SamplerOptions:
        """The options of the engine."""
        numbers = {name: getattr(self, SAMPLER_FIELDS.get(name, name)) for name in SAMPLER_BOUNDS if name != "top_k"}
        return SamplerOptions(**numbers, thinking=self.chat_template_kwargs.enable_thinking)


class GenerationOptions(SamplerBody):
    """Fields of every dialect that generates text."""

    seed: Annotated[int, AfterValidator(lambda seed: min(max(0, seed), 2**63 - 1))] = 0
    """The same seed on the same text gives the same answer; negative is any."""
    stop: Names = []
    """Texts that end the answer and are not part of it."""
    stream: bool = False
    """Send server-sent events."""
    t_max_predict_ms: Number = 0
    """Deadline in milliseconds, counted from arrival; the answer is what is settled by then."""
    id_slot: Annotated[int, Field(ge=-1)] = -1
    """Slot of the prompt cache, see `/slots`; -1, and a number beyond, take the one that holds most of the prompt."""

    @property
    def deadline_ms(self) -> float | None:
        """The deadline, if there is one; clients of llama.cpp send 0 and -1 for none."""
        return min(self.t_max_predict_ms, MAX_DEADLINE_MS) if self.t_max_predict_ms > 0 else None


class TextOptions(GenerationOptions):
    """Fields of texts and conversations."""

    ignore_eos: bool = False
    """End tokens do not end the answer."""
    top_k: Annotated[int, Field(ge=-1, le=SAMPLER_BOUNDS["top_k"][1])] | None = None
    """Most probable tokens that one is drawn from; 0 and -1: all. Only uniform noise draws, from all or from one."""

    @property
    def sampler(self) -> SamplerOptions:
        """See `SamplerBody.sampler`."""
        return replace(super().sampler, top_k=None if self.top_k is None else max(0, self.top_k))


class TextBody(TextOptions):
    """llama.cpp's completion of a text."""

    prompt: Annotated[Texts, Field(max_length=1)] = []
    n_predict: Annotated[int, Field(ge=-2)] = -1
    """Longest text in tokens; 0 only fills the prompt cache, -1 and -2 are 4096."""
    response_fields: Names = []
    """Only these fields of the response; a slash reaches into an object."""


class ExtraSnippet(RequestBody):
    """Code of another file."""

    text: Text
    filename: Text = ""


class InfillBody(GenerationOptions):
    """llama.cpp's fill-in-the-middle."""

    input_prefix: Text = ""
    """The lines above the cursor's line."""
    prompt: Text = ""
    """The cursor's line up to the cursor."""
    input_suffix: Text = ""
    """Everything after the cursor."""
    input_extra: Annotated[list[ExtraSnippet], Field(max_length=MAX_OBJECTS)] = []
    language: Text = ""
    """LSP language id; without it the syntax is not checked."""
    n_predict: Annotated[int, Field(ge=-2)] = -1
    """Longest answer in tokens; 0 only fills the prompt cache."""
    n_cmpl: NumCandidates = 1
    """Number of candidates; above 1 the response is an array."""
    n_indent: Count = 0
    """A later line with fewer leading blanks ends the answer."""
    response_fields: Names = []
    """Only these fields of the response; a slash reaches into an object."""


class StreamOptions(RequestBody):
    """OpenAI's options of a stream."""

    include_usage: bool = False


class StreamedBody(TextOptions):
    """Fields of OpenAI's streams."""

    stream_options: StreamOptions = StreamOptions()
    diffusing: bool = False
    """With `stream`: every event is a whole draft that replaces the one before it."""


class FimBody(StreamedBody):
    """OpenAI's legacy completion with a suffix."""

    prompt: Annotated[Texts, Field(max_length=1)] = []
    """The text before the gap."""
    suffix: Text = ""
    """The text after the gap."""
    language: Text = ""
    """LSP language id; without it, and without a file name, the syntax is not checked."""
    max_tokens: Annotated[int, Field(ge=-1)] = -1
    n: NumCandidates = 1


class Segments(RequestBody):
    """Tabby's gap."""

    prefix: Text = ""
    suffix: Text = ""
    filepath: Text = ""


class CompletionBody(FimBody):
    """OpenAI's legacy completion or, with `segments`, Tabby's."""

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


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_OBJECTS)]


class ChatBody(StreamedBody):
    """OpenAI's chat."""

    messages: Messages
    max_tokens: Annotated[int, Field(ge=1)] = CHAT_MAX_TOKENS
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=1)] = 1


class EditBody(RequestBody):
    """Mercury's edit."""

    messages: Messages
    max_tokens: Count = 0
    stream: bool = False


class EventBody(RequestBody):
    """Tabby's report of a user action."""

    type: UserAction


class FeedbackBody(RequestBody):
    """Cursortab's report of a user action."""

    user_action: UserAction


# responses

FinishReason = Literal["stop", "length"]
StopType = Literal["word", "limit", "eos"]
_OMITTED = Field(default=None, exclude_if=lambda value: value is None)
"""Default of a field that a response leaves out."""


class ResponseBody(BaseModel):
    """A JSON object of a response."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ErrorObject(ResponseBody):
    """Status, message and type of an error."""

    code: Annotated[int, Field(ge=400, le=599)]
    message: str
    type: str
    param: str | None = _OMITTED
    """The invalid field, if one is invalid."""


class ErrorResponse(ResponseBody):
    """Every error."""

    error: ErrorObject


Timings = dict[str, int | float | dict[str, int | float]]
"""Tokens and milliseconds under llama.cpp's names, with the object `diffusion` of its DiffusionGemma server."""
DiffusionStats = dict[str, DecoderName | int | float]
"""How the answer was decoded; a canvas length of 0 means without a canvas."""


class CompletionResponse(ResponseBody):
    """llama.cpp's completion, of a gap or of a text."""

    index: Count
    content: Text
    tokens: list[int] = []
    id_slot: Annotated[int, Field(ge=-1)] = -1
    stop: bool = True
    model: str
    tokens_predicted: Count
    tokens_evaluated: Count
    generation_settings: dict[str, bool | int | float | list[str]]
    prompt: str = ""
    has_new_line: bool
    truncated: bool = False
    stop_type: StopType
    stopping_word: str
    tokens_cached: Count
    timings: Timings
    diffusion: DiffusionStats
    dg_lsp: dict[Literal["reason"], str] | None = _OMITTED
    """Why there is no text, as the header `Dg-Lsp-Reason`."""


class AssistantText(ResponseBody):
    """A message of the assistant, or a piece of one."""

    role: Literal["assistant"] = "assistant"
    content: Text
    reasoning_content: Text | None = _OMITTED
    """What the model wrote before its answer, with thinking on."""


class Choice(ResponseBody):
    """One completion or answer, or a piece of it."""

    text: Text | None = _OMITTED
    """Only in completions."""
    logprobs: None = None
    index: Count
    finish_reason: FinishReason | None
    message: AssistantText | None = _OMITTED
    """Only in whole responses of chats and of `/v1/fim/completions`."""
    delta: AssistantText | None = _OMITTED
    """Only in their events."""


class OpenAiResponse(ResponseBody):
    """OpenAI's legacy completion or chat completion, or an event of one, which has the last three fields at the end."""

    id: str
    object: Literal["text_completion", "chat.completion", "chat.completion.chunk"]
    created: Count
    model: str
    choices: list[Choice]
    usage: dict[str, int | dict[str, int]] | None = _OMITTED
    timings: Timings | None = _OMITTED
    diffusion: DiffusionStats | None = _OMITTED
    dg_lsp: dict[Literal["reason"], str] | None = _OMITTED
    """Why there is no text, as the header `Dg-Lsp-Reason`."""


class TabbyResponse(ResponseBody):
    """Tabby's completion: the choices have `index` and `text`."""

    id: str
    choices: list[dict[str, Count | Text]]
    mode: Literal["standard"] = "standard"


class StatusResponse(ResponseBody):
    """The server is ready, or a report was counted."""

    status: Literal["ok"] = "ok"


class ModelObject(ResponseBody):
    """The model."""

    id: str
    object: Literal["model"] = "model"
    created: Count
    owned_by: str = "dg-lsp"
    meta: dict[str, str | int | list[int]]


class ModelsResponse(ResponseBody):
    """OpenAI's list of models."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class PropsResponse(ResponseBody):
    """llama.cpp's properties of the server; the default settings have `n_ctx` and `params`."""

    default_generation_settings: dict[str, int | dict[str, int | float]]
    total_slots: Count
    model_alias: str
    is_sleeping: bool
    build_info: str


class SlotObject(ResponseBody):
    """llama.cpp's slot: one cached prompt."""

    id: Count
    n_ctx: Count
    is_processing: bool
    n_prompt_tokens: Count | None = _OMITTED
    """Tokens of the prompt that it holds; for the operator only."""


class MemoryResponse(ResponseBody):
    """Memory in bytes; null if the system does not report it."""

    resident_bytes: Count | None
    peak_bytes: Count | None
    free_bytes: Count
    weights_bytes: Count
    cache: dict[str, Count]
    """The prompt cache: `bytes`, `tokens` that fit, `tokens_at_most` that may fit; for the operator `tokens_used`."""
    devices: list[dict[str, str | Count | None]]
    """`name`, `free_bytes` and `total_bytes` of each GPU."""


def streams(event: type[ResponseBody] | None = None) -> dict[int | str, dict[str, Any]]:
    """Documents the server-sent events of a response, as OpenAPI 3.2 does."""
    schema = {"$ref": f"#/components/schemas/{event.__name__}"} if event else {"type": "object"}
    tree = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
    item = {"type": "object", "properties": {"data": {"anyOf": [{"const": "[DONE]"}, tree]}}, "required": ["data"]}
    return {200: {"content": {"text/event-stream": {"itemSchema": item}}}}


# errors

CANCELLED = 499
"""nginx's status for a request that its client gave up; no client retries because of it."""
STATUSES = {
    400: ("invalid_request_error", "A field or the body is invalid, or the model cannot take the request."),
    401: ("authentication_error", "The key is missing or wrong."),
    403: ("permission_error", "The Host or the Origin is not allowed."),
    404: ("not_found_error", "The path does not exist."),
    405: ("invalid_request_error", "The path does not support this method."),
    408: ("timeout_error", "The body did not arrive in time."),
    413: ("invalid_request_error", "The body is too long."),
    415: ("invalid_request_error", "The body is compressed."),
    431: ("invalid_request_error", "The head is too long."),
    429: ("rate_limit_error", "This client has too many open requests."),
    CANCELLED: ("cancelled_error", "A newer request for the same document replaced this one."),
    500: ("server_error", "The engine failed."),
    501: ("not_supported_error", "The model does not support this."),
    503: ("unavailable_error", "The model is loading, or too many requests are open."),
    504: ("timeout_error", "Nothing was finished at the deadline."),
}
"""Type and meaning of each status."""
HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},
    413: {"Connection": "close"},
    415: {"Accept-Encoding": "identity"},
    429: {"Retry-After": "1"},
    501: {"X-Should-Retry": "false"},  # OpenAI's client would retry twice
    503: {"Retry-After": "1"},
}


class ApiError(HTTPException):
    """A status, a message with the next step for the user, and the invalid field, if one is invalid."""

    def __init__(self, status: int, message: str, *, field: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, headers or HEADERS.get(status))
        self.field = field


def api_error(error: BaseException) -> ApiError:
    """The response to an error of the engine. Foreign messages are left out: they may quote a buffer."""
    if not isinstance(error, DgLspError):
        return ApiError(500, f"internal error: {type(error).__name__}")
    if isinstance(error, OptionError):
        name = SAMPLER_FIELDS.get(error.option, error.option)
        return ApiError(400, f"Field '{name}' {error.problem}", field=name)
    statuses = {RequestError: 400, ModelUnsupportedError: 501, ModelError: 503, RemoteError: 503}
    return ApiError(next((status for kind, status in statuses.items() if isinstance(error, kind)), 500), str(error))


def error_object(error: ApiError) -> dict[str, Any]:
    """`{"error": {...}}`."""
    kind, _ = STATUSES.get(error.status_code, ("server_error", ""))
    fields = {"code": error.status_code, "message": error.detail, "type": kind}
    return {"error": {**fields, "param": error.field} if error.field else fields}


def error_response(error: ApiError) -> Response:
    """The error as a response."""
    return JSONResponse(error_object(error), error.status_code, error.headers)
