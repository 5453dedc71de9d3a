"""JSON bodies of responses, as pydantic models."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.http.request_schemas import Count, Text

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
