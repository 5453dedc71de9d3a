"""JSON bodies of requests and responses, as pydantic models.

Unknown fields of a request are ignored, since every dialect has some; known ones are strict: a number is no string.
"""

from typing import Annotated, Any, Literal

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

MAX_CANDIDATES = 8
MAX_DEADLINE_MS = 600_000.0
MAX_OBJECTS = 4096
"""Objects in an array; editors send a few."""
MAX_NAMES = 64
"""Stops and names of fields; clients send a few short ones."""
MAX_NAME_CHARS = 1024
FinishReason = Literal["stop", "length"]
UserAction = Literal["accept", "reject", "ignore", "view", "select", "dismiss"]


# clients in JavaScript and remote models may cut a character in two; UTF-8 has no halves
Text = Annotated[str, AfterValidator(lambda text: text.encode("utf-8", "replace").decode())]
Number = Annotated[float, Field(allow_inf_nan=False)]
Texts = Annotated[
    list[Text],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]),
]
Name = Annotated[Text, Field(max_length=MAX_NAME_CHARS)]
Names = Annotated[
    list[Name],
    Field(max_length=MAX_NAMES),
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[Name]
    ),
]
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


class GenerationOptions(RequestBody):
    """Fields of every dialect that generates text."""

    seed: Annotated[int, AfterValidator(lambda seed: min(max(0, seed), 2**63 - 1))] = 0
    """The same seed on the same text gives the same answer; negative is any."""
    stop: Names = []
    """Texts that end the answer and are not part of it."""
    stream: bool = False
    """Send server-sent events."""
    t_max_predict_ms: Number = 0
    """Deadline in milliseconds, counted from arrival; the answer is what is settled by then."""

    @property
    def deadline_ms(self) -> float | None:
        """The deadline, if there is one; clients of llama.cpp send 0 and -1 for none."""
        return min(self.t_max_predict_ms, MAX_DEADLINE_MS) if self.t_max_predict_ms > 0 else None


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


class StreamedBody(GenerationOptions):
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


Timings = dict[str, int | float]
"""Tokens and milliseconds under llama.cpp's names."""
DiffusionStats = dict[str, DecoderName | int | float]
"""How the answer was decoded; a canvas length of 0 means without a canvas."""


class InfillResponse(ResponseBody):
    """llama.cpp's completion."""

    index: Count
    content: Text
    tokens: list[int] = []
    id_slot: Count = 0
    stop: bool = True
    model: str
    tokens_predicted: Count
    tokens_evaluated: Count
    generation_settings: dict[str, int | list[str]]
    prompt: str = ""
    has_new_line: bool
    truncated: bool = False
    stop_type: Literal["word", "limit", "eos"]
    stopping_word: str
    tokens_cached: Count
    timings: Timings
    diffusion: DiffusionStats


class AssistantText(ResponseBody):
    """A message of the assistant, or a piece of one."""

    role: Literal["assistant"] = "assistant"
    content: Text


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


class MemoryResponse(ResponseBody):
    """Memory in bytes; null if the system does not report it."""

    resident_bytes: Count | None
    peak_bytes: Count | None
    free_bytes: Count
    weights_bytes: Count
    cache: dict[str, Count]
    """The prompt cache: `bytes`, `tokens` that fit, `tokens_used` by kept prompts, `tokens_at_most` that may fit."""
    devices: list[dict[str, str | Count | None]]
    """`name`, `free_bytes` and `total_bytes` of each GPU."""


def streams(event: type[ResponseBody] | None = None) -> dict[int | str, dict[str, Any]]:
    """Documents the server-sent events of a response, as OpenAPI 3.2 does."""
    schema = {"$ref": f"#/components/schemas/{event.__name__}"} if event else {"type": "object"}
    tree = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
    item = {"type": "object", "properties": {"data": {"anyOf": [{"const": "[DONE]"}, tree]}}, "required": ["data"]}
    return {200: {"content": {"text/event-stream": {"itemSchema": item}}}}
