"""What is answered, as JSON Schema: every object with all of its fields."""

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.http.shapes import AMOUNT, COUNT, WORDS, YES_OR_NO, Schema, array, named, one_of, said

_BYTES: Schema = {"type": ["integer", "null"], "minimum": 0}
_ENDED = one_of("stop", "length")
_GOES_ON = one_of("stop", "length", None)
_NONE: Schema = {"type": "null"}
_COSTS = {"timings": named("Timings"), "diffusion": named("Diffusion")}


def _stage(name: str) -> Schema:
    return {f"{name}_n": COUNT, **{f"{name}_{what}": AMOUNT for what in ("ms", "per_token_ms", "per_second")}}


def _framed(kind: str, choice: Schema, **more: Schema) -> Schema:
    return said(id=WORDS, object=one_of(kind), created=COUNT, model=WORDS, choices=array(choice), **more)


def _perhaps(schema: Schema, **properties: Schema) -> Schema:
    """`schema` with fields that need not be there."""
    return {**schema, "properties": {**schema["properties"], **properties}}


_MESSAGE = said(role=one_of("assistant"), content=WORDS)
_TEXT_CHOICE = said(text=WORDS, logprobs=_NONE, index=COUNT, finish_reason=_ENDED)
_FIM_CHOICE = said(text=WORDS, message=_MESSAGE, index=COUNT, finish_reason=_ENDED)
_TEXT_PIECE = said(text=WORDS, logprobs=_NONE, index=COUNT, finish_reason=_GOES_ON)
_FIM_PIECE = said(text=WORDS, delta=_MESSAGE, index=COUNT, finish_reason=_GOES_ON)
_SETTINGS = said(
    n_predict={"type": "integer"}, n_cmpl=COUNT, n_indent=COUNT, seed={"type": "integer"}, stop=array(WORDS)
)
_WHOLE_FILL = said(
    index=COUNT,
    content=WORDS,
    tokens=array(COUNT),
    id_slot=COUNT,
    stop=YES_OR_NO,
    model=WORDS,
    tokens_predicted=COUNT,
    tokens_evaluated=COUNT,
    generation_settings=_SETTINGS,
    prompt=WORDS,
    has_new_line=YES_OR_NO,
    truncated=YES_OR_NO,
    stop_type=one_of("word", "limit", "eos"),
    stopping_word=WORDS,
    tokens_cached=COUNT,
    **_COSTS,
)
_MODEL = said(
    id=WORDS,
    object=one_of("model"),
    created=COUNT,
    owned_by=WORDS,
    meta=said(n_vocab=COUNT, n_ctx_train=COUNT, noise=WORDS, prompt_format=WORDS, canvas_lengths=array(COUNT)),
)
_DEFAULTS = said(n_ctx=COUNT, params=said(n_predict=COUNT, seed=COUNT, t_max_predict_ms=AMOUNT))
_ERROR = said(code={"type": "integer", "minimum": 400, "maximum": 599}, message=WORDS, type=WORDS)

SCHEMAS: dict[str, Schema] = {
    "Error": said(error=_perhaps(_ERROR, param=WORDS)),
    "Timings": said(cache_n=COUNT, **_stage("prompt"), **_stage("predicted")),
    "Diffusion": said(
        decoder=one_of(*(decoder.value for decoder in DecoderName)),
        canvas_length=COUNT,
        canvas_tokens=COUNT,
        blocks=COUNT,
        steps=COUNT,
        steps_per_second=AMOUNT,
        ms_per_step=AMOUNT,
        tokens_per_forward=AMOUNT,
        reused_prompt_tokens=COUNT,
    ),
    "Usage": said(
        prompt_tokens=COUNT,
        completion_tokens=COUNT,
        total_tokens=COUNT,
        prompt_tokens_details=said(cached_tokens=COUNT),
    ),
    # `response_fields` picks some, and of what lies deeper by a path
    "Fill": {
        "type": "object",
        "properties": _WHOLE_FILL["properties"],
        "patternProperties": {"/": {}},
        "additionalProperties": False,
    },
    "Completion": _framed("text_completion", _TEXT_CHOICE, usage=named("Usage"), **_COSTS),
    "CompletionChunk": _perhaps(_framed("text_completion", _TEXT_PIECE), usage=named("Usage"), **_COSTS),
    "Fim": _framed("text_completion", _FIM_CHOICE, usage=named("Usage"), **_COSTS),
    "FimChunk": _perhaps(_framed("text_completion", _FIM_PIECE), usage=named("Usage"), **_COSTS),
    "Tabby": said(id=WORDS, choices=array(said(index=COUNT, text=WORDS)), mode=WORDS),
    "Chat": _framed(
        "chat.completion",
        said(index=COUNT, message=_MESSAGE, finish_reason=_ENDED),
        usage=named("Usage"),
        **_COSTS,
    ),
    "ChatChunk": _perhaps(
        _framed("chat.completion.chunk", said(index=COUNT, delta=_MESSAGE, finish_reason=_GOES_ON)),
        usage=named("Usage"),
        **_COSTS,
    ),
    "Status": said(status=one_of("ok")),
    "Models": said(object=one_of("list"), data=array(_MODEL)),
    "Props": said(
        default_generation_settings=_DEFAULTS,
        total_slots=COUNT,
        model_alias=WORDS,
        is_sleeping=YES_OR_NO,
        build_info=WORDS,
    ),
    "Slots": array(said(id=COUNT, n_ctx=COUNT, is_processing=YES_OR_NO)),
    "Memory": said(
        resident_bytes=_BYTES,
        peak_bytes=_BYTES,
        free_bytes=COUNT,
        weights_bytes=COUNT,
        cache=said(bytes=COUNT, tokens=COUNT, tokens_used=COUNT, tokens_at_most=COUNT),
        devices=array(said(name=WORDS, free_bytes=_BYTES, total_bytes=_BYTES)),
    ),
    "Document": {"type": "object", "required": ["openapi", "info", "paths", "components"]},
}
