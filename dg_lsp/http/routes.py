"""The endpoints: fills in the dialects of llama.cpp, OpenAI, Mistral, Tabby and Mercury, chats, reports, and status."""

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request

from dg_lsp import __version__
from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.canvas.fim import FIM_FAMILIES, FimFamily
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.context.document import TextStyle
from dg_lsp.context.languages import PLAIN_TEXT, language_id_of
from dg_lsp.context.snippets import Snippet, SnippetSource
from dg_lsp.engine.request import CHAT_DEADLINE_MS, CHAT_MAX_TOKENS, ChatRequest, FillRequest, FillResult, Priority
from dg_lsp.engine.scheduler import Scheduler, ready_engine
from dg_lsp.http import schemas
from dg_lsp.http.responses import (
    Completion,
    DraftText,
    EventStream,
    Native,
    OpenAiAnswer,
    SettledText,
    completions,
    cut_at_stops,
    native_completion,
    native_stream,
)
from dg_lsp.http.schemas import ApiError
from dg_lsp.http.service import RequestService, Service, allowed_snippets, language_header
from dg_lsp.settings import SAMPLER_NAMES
from dg_lsp.system import peak_bytes, resident_bytes, system_free

MAX_TOKENS = 4096
_DEFAULT_MAX_TOKENS = 16
"""OpenAI's documented default of a completion."""
_NO_SUFFIX = "<|endoftext|>"
"""Continue sends it to Inception instead of an empty suffix."""
_NO_EDIT = "None"
"""Clients of Mercury expect it instead of an unchanged region."""
_APPLY_PATH = "/v1/apply/completions"
_APPLY = Turn(Role.SYSTEM, "Apply the update to the original code. Answer with the whole new code and nothing else.")
"""Mercury's template for applying an update contains no instruction."""
_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_OTHER_FAMILIES = (
    FimFamily("", "<|fim_begin|>{prefix}<|fim_hole|>{suffix}<|fim_end|>", ("DeepSeek in ASCII",)),
    FimFamily("", "<|code_prefix|>{prefix}<|code_suffix|>{suffix}<|code_middle|>", ("GLM",)),
)
"""Templates that some clients send, besides those of the known families."""
_LANGUAGE_COMMENT = re.compile(r"(?:#|//|--|;|%|/\*|<!--) *language: *(\w[\w+#-]*)[^\n]*\n")
_REGION_START, _REGION_END, _CURSOR = "<|code_to_edit|>", "<|/code_to_edit|>", "<|cursor|>"
_FILE_START, _FILE_END, _PATH = "<|current_file_content|>\n", "<|/current_file_content|>", "current_file_path: "
ModelName = Annotated[str, Query(description="Of two models, the one to report on; without it that of completions.")]
_Fills = Native | list[Native]
_Answer = schemas.OpenAiResponse | Response
_OPENAI: dict[str, Any] = {
    "response_model": schemas.OpenAiResponse,
    "responses": schemas.streams(schemas.OpenAiResponse),
}
router = APIRouter()


class Gap(NamedTuple):
    """What a dialect's request says about its gap."""

    prefix: str
    suffix: str
    language: str = ""
    path: str = ""
    client: str = ""
    """With a path: a newer request of the same client replaces the older one."""


@router.post("/infill", response_model=_Fills, responses=schemas.streams())
async def infill(body: schemas.InfillBody, service: RequestService, http: Request) -> _Fills | Response:
    """Fills a gap for clients of llama.cpp; `n_predict` 0 only fills the prompt cache."""
    style = TextStyle()
    # clients send the newest snippet last, which is the most important one
    extra = (Snippet(SnippetSource.GIVEN, each.filename, style.to_model(each.text)) for each in body.input_extra[::-1])
    is_warm_up = body.n_predict == 0
    request = replace(
        _fill_request(service, Gap(body.input_prefix + body.prompt, body.input_suffix, body.language), body),
        num_candidates=body.n_cmpl,
        max_tokens=min(body.n_predict, MAX_TOKENS) if body.n_predict >= 0 else None,
        priority=Priority.WARM_UP if is_warm_up else _priority(body.n_cmpl, http),
        snippets=allowed_snippets(extra, service.engine.spec, service.settings),
    )
    if is_warm_up:
        request = replace(request, deadline_ms=CHAT_DEADLINE_MS)
    cut = partial(completions, stops=body.stop, min_indent=body.n_indent)
    if body.stream:
        stream = service.stream(request, http, has_frames=False)
        return EventStream(native_stream(stream, body, cut, body.response_fields))
    result = await service.run(request, http)
    responses = [
        native_completion(body, index, completion, result, body.response_fields)
        for index, completion in enumerate(cut(result))
    ]
    return responses if body.n_cmpl > 1 else responses[0]


@router.post("/completion", response_model=Native, responses=schemas.streams())
@router.post("/completions", response_model=Native, responses=schemas.streams())
async def native_text(body: schemas.TextBody, service: RequestService, http: Request) -> Native | Response:
    """Continues a text for clients of llama.cpp; nothing is checked. `n_predict` 0 only fills the prompt cache."""
    request = _text_request(body, body.n_predict if body.n_predict >= 0 else MAX_TOKENS, text=_first(body.prompt))
    cut = partial(_text_completions, request)
    if not body.stream:
        result = await service.run(request, http)
        return native_completion(body, 0, cut(result)[0], result, body.response_fields)
    stream = service.stream(request, http, has_frames=True)
    texts = SettledText(request.stops) if body.n_predict else None
    return EventStream(native_stream(stream, body, cut, body.response_fields, texts))


@router.post(
    "/v1/completions",
    response_model=schemas.OpenAiResponse | schemas.TabbyResponse,
    responses=schemas.streams(schemas.OpenAiResponse),
)
async def legacy_completions(
    body: schemas.CompletionBody, service: RequestService, http: Request
) -> _Answer | schemas.TabbyResponse:
    """Fills a gap for clients of OpenAI or, with `segments`, of Tabby; continues a text without a language."""
    if (segments := body.segments) is None:
        if _is_raw_prompt(body):
            return await _continue(body, service, http)
        return await _complete(body, service, http, has_messages=False)
    client = body.user if segments.filepath else ""  # without a path, two requests of a user may be for two files
    language = body.language or language_id_of(segments.filepath)
    gap = Gap(segments.prefix, segments.suffix, language, segments.filepath, client)
    result = await service.run(_fill_request(service, gap, body), http)
    choices: list[dict[str, int | str]] = [
        {"index": index, "text": completion.text} for index, completion in enumerate(completions(result))
    ]
    return schemas.TabbyResponse(id=f"cmpl-{uuid.uuid4().hex}", choices=choices)


@router.post("/v1/fim/completions", **_OPENAI)
async def fim_completions(body: schemas.FimBody, service: RequestService, http: Request) -> _Answer:
    """Fills a gap for clients of Mistral, Codestral and Inception; every field that one of them reads has the text."""
    return await _complete(body, service, http, has_messages=True)


@router.post(_APPLY_PATH, **_OPENAI)
@router.post("/v1/chat/completions", **_OPENAI)
async def chat(body: schemas.ChatBody, service: RequestService, http: Request) -> _Answer:
    """Answers a conversation, or applies an update to code in Mercury's template."""
    engine = service.engine_of(service.models.rewrite)
    name = engine.spec.name
    if not engine.follows_instructions:
        raise ApiError(501, f"{name} follows no instructions; start dg-lsp serve with --model and one that does")
    turns = [_APPLY] if http.url.path == _APPLY_PATH else []
    turns += [Turn(_ROLES[message.role], message.text) for message in body.messages]
    request = _text_request(body, body.max_completion_tokens or body.max_tokens, turns=tuple(turns))
    answer = OpenAiAnswer(name, is_chat=True)
    return await _answer(answer, request, partial(_text_completions, request), body, service, http)


@router.post("/v1/edit/completions", **_OPENAI)
async def edit(body: schemas.EditBody, service: RequestService, http: Request) -> _Answer:
    """Fills at the cursor of Mercury's template; returns the region with the completion, or `None`."""
    gap, before, after = parse_edit_prompt(body.messages[-1].text)
    request = replace(
        _fill_request(service, gap), max_tokens=min(body.max_tokens, MAX_TOKENS) or None, priority=Priority.REWRITE
    )
    answer = OpenAiAnswer(service.engine.spec.name, is_chat=True)

    def cut(result: FillResult) -> Sequence[Completion]:
        [completion] = completions(result)
        content = f"```\n{before}{completion.text}{after}\n```" if completion.text else _NO_EDIT
        return [replace(completion, text=content)]

    if body.stream:
        stream = service.stream(request, http, has_frames=False)
        return EventStream(answer.events(stream, SettledText(), cut, has_usage=False))
    result = await service.run(request, http)
    return answer.whole(cut(result), result)


@router.post("/v1/events")
async def events(body: schemas.EventBody, service: RequestService) -> schemas.StatusResponse:
    """Counts a user action that a client of Tabby reports."""
    service.metrics.feedback.labels(body.type).inc()
    return schemas.StatusResponse()


@router.post("/feedback")
async def feedback(body: schemas.FeedbackBody, service: RequestService) -> schemas.StatusResponse:
    """Counts a user action that Cursortab reports."""
    service.metrics.feedback.labels(body.user_action).inc()
    return schemas.StatusResponse()


# requests for the engine


def _fill_request(service: Service, gap: Gap, body: schemas.GenerationOptions | None = None) -> FillRequest:
    """The request for a gap, with the options that dialects share."""
    snapshot = service.snapshot(gap.prefix + gap.suffix, gap.language or PLAIN_TEXT, gap.path, gap.client)
    request = FillRequest(snapshot, len(gap.prefix))
    if body is None:
        return request
    if isinstance(body, schemas.TextOptions) and body.ignore_eos:
        raise ApiError(400, "Field 'ignore_eos' does not apply to code: leave it out", field="ignore_eos")
    return replace(
        request,
        deadline_ms=body.deadline_ms,
        seed=body.seed,
        sampler=replace(body.sampler, top_k=None),  # clients send top_k with every request for code
        slot=body.id_slot,
    )


def _text_request(
    body: schemas.TextOptions, max_tokens: int, *, turns: tuple[Turn, ...] = (), text: str | None = None
) -> ChatRequest:
    """The request for a continuation of a text, or for an answer to turns."""
    return ChatRequest(
        turns,
        name="",
        text=text,
        max_tokens=min(max_tokens, MAX_TOKENS),
        deadline_ms=body.deadline_ms or CHAT_DEADLINE_MS,
        seed=body.seed,
        stops=tuple(body.stop),
        sampler=body.sampler,
        slot=body.id_slot,
        ignores_end=body.ignore_eos,
    )


def _text_completions(request: ChatRequest, result: FillResult) -> Sequence[Completion]:
    return [cut_at_stops(result.text, request.stops, is_cut=result.ending.is_cut)]


def _priority(num_candidates: int, http: Request) -> Priority:
    """Several candidates are requested by the user, one by typing; the header is sent by dg-lsp as a client."""
    is_invoked = num_candidates > 1 or http.headers.get("dg-lsp-trigger") == "invoked"
    return Priority.INVOKED if is_invoked else Priority.TYPED


async def _complete(body: schemas.FimBody, service: Service, http: Request, *, has_messages: bool) -> _Answer:
    prefix, suffix = split_fim_prompt(_first(body.prompt))
    suffix = suffix if body.suffix in ("", _NO_SUFFIX) else body.suffix
    request = replace(
        _fill_request(service, Gap(prefix, suffix, body.language or _comment_language(prefix)), body),
        num_candidates=body.n,
        max_tokens=min(body.max_tokens, MAX_TOKENS) if body.max_tokens > 0 else None,
        priority=_priority(body.n, http),
    )
    answer = OpenAiAnswer(service.engine.spec.name, is_chat=False, has_messages=has_messages)
    return await _answer(answer, request, partial(completions, stops=body.stop), body, service, http)


async def _continue(body: schemas.CompletionBody, service: Service, http: Request) -> _Answer:
    """The model's own continuation of the prompt; nothing is judged."""
    if body.n > 1:
        raise ApiError(400, "n must be 1 for a text without a language; send the language to get several", field="n")
    is_set = "max_tokens" in body.model_fields_set
    limit = body.max_tokens if body.max_tokens > 0 else CHAT_MAX_TOKENS
    request = _text_request(body, limit if is_set else _DEFAULT_MAX_TOKENS, text=_first(body.prompt))
    answer = OpenAiAnswer(service.engine.spec.name, is_chat=False, has_messages=False)
    return await _answer(answer, request, partial(_text_completions, request), body, service, http)


async def _answer(
    answer: OpenAiAnswer,
    request: FillRequest | ChatRequest,
    cut: Callable[[FillResult], Sequence[Completion]],
    body: schemas.StreamedBody,
    service: Service,
    http: Request,
) -> _Answer:
    """The whole answer, or the stream of its drafts or of its text as it grows."""
    if not body.stream:
        result = await service.run(request, http)
        return answer.whole(cut(result), result)
    stops = request.stops if isinstance(request, ChatRequest) else ()
    texts = DraftText() if body.diffusing else SettledText(stops)
    stream = service.stream(request, http, has_frames=body.diffusing or isinstance(request, ChatRequest))
    return EventStream(answer.events(stream, texts, cut, has_usage=body.stream_options.include_usage))


# prompts in templates


def _first(prompts: Sequence[str]) -> str:
    return prompts[0] if prompts else ""


def split_fim_prompt(prompt: str) -> tuple[str, str]:
    """Prefix and suffix of a prompt in another model's template; a prompt without its tokens is all prefix.

    Clients without a `suffix` field (Zed, Continue for `openai` and `vllm`) send such a template.
    """
    families = (*FIM_FAMILIES.values(), *_OTHER_FAMILIES)
    return next((parts for family in families if (parts := family.split(prompt))), (prompt, ""))


def _is_raw_prompt(body: schemas.CompletionBody) -> bool:
    """Nothing in the request shows that the prompt is code around a gap: no language, no suffix, no sentinels."""
    prompt = _first(body.prompt)
    is_code = bool(body.language or _comment_language(prompt)) or "suffix" in body.model_fields_set
    return not is_code and split_fim_prompt(prompt) == (prompt, "")


def _comment_language(prefix: str) -> str:
    """The language in minuet's first line (`# language: python`), or an empty string."""
    match = _LANGUAGE_COMMENT.match(prefix)
    return match[1].lower() if match else ""


def parse_edit_prompt(text: str) -> tuple[Gap, str, str]:
    """The gap in Mercury's template, and the text of its region before and after the cursor.

    Raises:
        ApiError: a mark is missing.
    """
    path = ""
    file, is_file, _ = text.partition(_FILE_START)[2].rpartition(_FILE_END)
    if is_file:
        text = file
        if text.startswith(_PATH):
            path, _, text = text.removeprefix(_PATH).partition("\n")
    above, has_start, rest = text.partition(_REGION_START)
    region, has_end, below = rest.partition(_REGION_END)
    # each mark of the region is a line of its own
    before, has_cursor, after = region.removeprefix("\n").removesuffix("\n").partition(_CURSOR)
    for mark, is_there in ((_REGION_START, has_start), (_REGION_END, has_end), (_CURSOR, has_cursor)):
        if not is_there:
            raise ApiError(400, f"the last message has no {mark}: mark the region and the cursor", field="messages")
    if not is_file:
        above = below = ""
    below = below.removeprefix("\n")
    return Gap(above + before, f"{after}\n{below}", language_id_of(path), path), before, after


# status


@router.get("/v1/health")
@router.get("/health")
async def health(service: RequestService) -> schemas.StatusResponse:
    """200 when the model of completions is loaded, 503 before."""
    _ = service.engine
    return schemas.StatusResponse()


@router.get("/models")
@router.get("/v1/models")
async def models(service: RequestService, http: Request) -> schemas.ModelsResponse:
    """The loaded models, that of completions first: a header names its languages, as in an answer."""
    http.state.headers = language_header(service.engine.spec)
    engines = filter(None, (ready_engine(scheduler.ready) for scheduler in service.models.schedulers))
    return schemas.ModelsResponse(data=[_model_object(engine.spec, service.started) for engine in engines])


def _model_object(spec: ModelSpec, created: int) -> schemas.ModelObject:
    meta: dict[str, str | int | list[int]] = {
        "n_vocab": spec.vocab_size,
        "n_ctx_train": spec.max_prompt_tokens,
        "noise": spec.noise,
        "prompt_format": spec.prompt_format.value,
        "canvas_lengths": list(spec.canvas_lengths),
    }
    return schemas.ModelObject(id=spec.name, created=created, meta=meta)


@router.get("/props")
async def props(service: RequestService, model: ModelName = "") -> schemas.PropsResponse:
    """What clients of llama.cpp read before they build a prompt: its length and the number of slots."""
    scheduler, completion = service.scheduler_named(model), service.settings.completion
    spec = service.engine_of(scheduler).spec
    params = {"n_predict": completion.max_tokens, "seed": 0, "t_max_predict_ms": completion.deadline_ms}
    return schemas.PropsResponse(
        default_generation_settings={"n_ctx": context_size(scheduler, spec), "params": {**params, **_sampler(spec)}},
        total_slots=service.settings.model.num_slots,
        model_alias=spec.name,
        is_sleeping=scheduler.is_asleep,
        build_info=f"dg-lsp {__version__}",
    )


def _sampler(spec: ModelSpec) -> dict[str, int | float]:
    """The model's own values of the sampler, under the names of the requests."""
    if spec.sampling is None:
        return {}
    names = [field.name for field in fields(spec.sampling) if field.name in SAMPLER_NAMES]
    values = {schemas.SAMPLER_FIELDS.get(name, name): getattr(spec.sampling, name) for name in names}
    return {**values, "canvas_length": spec.canvas_length or spec.longest_block}


@router.get("/slots")
async def slots(service: RequestService, http: Request, model: ModelName = "") -> list[schemas.SlotObject]:
    """One object per slot of the prompt cache; none for a remote server."""
    scheduler = service.scheduler_named(model)
    size = context_size(scheduler, service.engine_of(scheduler).spec)
    return [
        schemas.SlotObject(
            id=number,
            n_ctx=size,
            is_processing=slot.is_busy,
            n_prompt_tokens=slot.num_tokens if http.state.is_operator else None,
        )
        for number, slot in enumerate(scheduler.slots)
    ]


def context_size(scheduler: Scheduler, spec: ModelSpec) -> int:
    """Tokens of prompt and text that one slot takes; while the model is unloaded, those of a fill."""
    return scheduler.footprint.context_size or spec.max_prompt_tokens + spec.longest_block


@router.get("/memory")
async def memory(service: RequestService, http: Request, model: ModelName = "") -> schemas.MemoryResponse:
    """Memory of this process and of a model; 503 before it is loaded."""
    _ = service.engine
    footprint = service.scheduler_named(model).footprint
    return schemas.MemoryResponse(
        resident_bytes=resident_bytes(),
        peak_bytes=peak_bytes(),
        free_bytes=system_free(),
        weights_bytes=footprint.weights_bytes,
        cache={
            "bytes": footprint.cache_bytes,
            "tokens": footprint.cache_cells,
            **({"tokens_used": footprint.cache_used} if http.state.is_operator else {}),
            "tokens_at_most": footprint.cache_limit,
        },
        devices=[
            {"name": device.name, "free_bytes": device.free or None, "total_bytes": device.total or None}
            for device in footprint.devices
        ],
    )


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: RequestService, http: Request) -> Response:
    """Prometheus' text format, also before the model is loaded."""
    return Response(service.metrics.exposition(is_operator=http.state.is_operator), media_type=CONTENT_TYPE_PLAIN_0_0_4)
