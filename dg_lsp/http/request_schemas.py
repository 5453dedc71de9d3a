"""JSON bodies of requests, as pydantic models.

Unknown fields are ignored, since every dialect has some; known ones are strict: a number is no string.
"""

from dataclasses import replace
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

from dg_lsp.engine.request import CHAT_MAX_TOKENS
from dg_lsp.sampler_options import SAMPLER_BOUNDS, SamplerOptions

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
