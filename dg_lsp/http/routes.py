"""The endpoints: fills in the dialects of llama.cpp, OpenAI, Mistral, Tabby and Mercury, chats, and reports."""

import itertools
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request

from dg_lsp import __version__
from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.context.document import TextStyle
from dg_lsp.context.languages import PLAIN_TEXT, language_id_of
from dg_lsp.context.snippets import Snippet, SnippetSource
from dg_lsp.engine.request import CHAT_DEADLINE_MS, CHAT_MAX_TOKENS, ChatRequest, FillRequest, Priority
from dg_lsp.engine.result import FillResult
from dg_lsp.http import schemas
from dg_lsp.http.completion import (
    Completion,
    allowed_snippets,
    comment_language,
    completions,
    cut_at_stops,
    is_raw_prompt,
    parse_edit_prompt,
    split_fim_prompt,
)
from dg_lsp.http.errors import ApiError
from dg_lsp.http.responses import (
    DONE,
    DraftText,
    EventStream,
    OpenAiAnswer,
    SettledText,
    costs,
    event,
    events_response,
)
from dg_lsp.http.service import RequestService, Service, require_this_machine
from dg_lsp.system import peak_bytes, resident_bytes, system_free

MAX_TOKENS = 4096
_DEFAULT_MAX_TOKENS = 16
"""OpenAI's documented default of a completion."""
_PREFILL_ONLY_MS = 1e-6
"""A deadline before the first denoising step."""
_NO_SUFFIX = "<|endoftext|>"
"""Continue sends it to Inception instead of an empty suffix."""
_NO_EDIT = "None"
"""Clients of Mercury expect it instead of an unchanged region."""
_APPLY_PATH = "/v1/apply/completions"
_APPLY = Turn(Role.SYSTEM, "Apply the update to the original code. Answer with the whole new code and nothing else.")
"""Mercury's template for applying an update contains no instruction."""
_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_Infill = schemas.InfillResponse | dict[str, Any]
"""A dictionary has only the fields that the client selected."""
_Fills = _Infill | list[_Infill]
_Answer = schemas.OpenAiResponse | Response
_OPENAI: dict[str, Any] = {
    "response_model": schemas.OpenAiResponse,
    "responses": schemas.streams(schemas.OpenAiResponse),
}
THIS_MACHINE = [Depends(require_this_machine)]
router = APIRouter()


@router.post("/infill", response_model=_Fills, responses=schemas.streams())
async def infill(body: schemas.InfillBody, service: RequestService, http: Request) -> _Fills | Response:
    """Fills a gap for clients of llama.cpp; `n_predict` 0 only fills the prompt cache."""
    style = TextStyle()
    prefix, is_warm_up = body.input_prefix + body.prompt, body.n_predict == 0
    # clients send the newest snippet last, which is the most important one
    extra = (Snippet(SnippetSource.GIVEN, one.filename, style.to_model(one.text)) for one in reversed(body.input_extra))
    request = FillRequest(
        service.snapshot(prefix + body.input_suffix, body.language or PLAIN_TEXT),
        len(prefix),
        num_candidates=body.n_cmpl,
        max_tokens=min(body.n_predict, MAX_TOKENS) if body.n_predict >= 0 else None,
        deadline_ms=_PREFILL_ONLY_MS if is_warm_up else body.deadline_ms,
        seed=body.seed,
        priority=Priority.WARM_UP if is_warm_up else _priority(body.n_cmpl, http),
        snippets=allowed_snippets(extra, service.engine.spec, service.settings),
    )
    result = await service.run(request, http)
    responses: list[_Infill] = []
    for index, completion in enumerate(completions(result, request.max_tokens, body.stop, body.n_indent)):
        response = _infill_response(body, index, completion, result)
        responses.append(_select(response, body.response_fields) if body.response_fields else response)
    if body.stream:
        return events_response(itertools.chain.from_iterable(map(_infill_events, responses)))
    return responses if body.n_cmpl > 1 else responses[0]


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
        if is_raw_prompt(body):
            return await _continue(body, service, http)
        return await _complete(body, service, http, has_messages=False)
    client = body.user if segments.filepath else ""  # without a path, two requests of a user may be for two files
    text, language = segments.prefix + segments.suffix, body.language or language_id_of(segments.filepath)
    snapshot = service.snapshot(text, language, segments.filepath, client)
    result = await service.run(FillRequest(snapshot, len(segments.prefix), seed=body.seed), http)
    choices: list[dict[str, int | str]] = [
        {"index": index, "text": one.text} for index, one in enumerate(completions(result, None))
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
    spec = service.engine.spec
    if not service.engine.follows_instructions:
        raise ApiError(501, f"{spec.name} follows no instructions; start dg-lsp serve with --model and one that does")
    turns = [Turn(_ROLES[message.role], message.text) for message in body.messages]
    request = ChatRequest(
        (_APPLY, *turns) if http.url.path == _APPLY_PATH else tuple(turns),
        name="",
        max_tokens=min(body.max_completion_tokens or body.max_tokens, MAX_TOKENS),
        deadline_ms=body.deadline_ms or CHAT_DEADLINE_MS,
        seed=body.seed,
        stops=tuple(body.stop),
    )
    return await _generate(OpenAiAnswer(spec.name, is_chat=True), request, body, service, http)


@router.post("/v1/edit/completions", **_OPENAI)
async def edit(body: schemas.EditBody, service: RequestService, http: Request) -> _Answer:
    """Fills at the cursor of Mercury's template; returns the region with the completion, or `None`."""
    prompt = parse_edit_prompt(body.messages[-1].text)
    prefix, suffix = prompt.above + prompt.before, f"{prompt.after}\n{prompt.below}"
    request = FillRequest(
        service.snapshot(prefix + suffix, prompt.language, prompt.path),
        len(prefix),
        max_tokens=min(body.max_tokens, MAX_TOKENS) or None,
        priority=Priority.REWRITE,
    )
    result = await service.run(request, http)
    text = completions(result, None)[0].text
    content = f"```\n{prompt.before}{text}{prompt.after}\n```" if text else _NO_EDIT
    answer = OpenAiAnswer(result.model, is_chat=True)
    if body.stream:
        return events_response((answer.event(content), answer.event("", "stop"), DONE))
    return answer.whole([Completion(content)], result)


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


@router.get("/health")
async def health(service: RequestService) -> schemas.StatusResponse:
    """200 when the model is loaded, 503 before."""
    _ = service.engine
    return schemas.StatusResponse()


@router.get("/v1/models")
async def models(service: RequestService) -> schemas.ModelsResponse:
    """The loaded model."""
    spec = service.engine.spec
    meta: dict[str, str | int | list[int]] = {
        "n_vocab": spec.vocab_size,
        "n_ctx_train": spec.max_prompt_tokens,
        "noise": spec.noise,
        "prompt_format": spec.prompt_format.value,
        "canvas_lengths": list(spec.canvas_lengths),
    }
    return schemas.ModelsResponse(data=[schemas.ModelObject(id=spec.name, created=service.started, meta=meta)])


@router.get("/props")
async def props(service: RequestService) -> schemas.PropsResponse:
    """What clients of llama.cpp read before they build a prompt: its length and the number of slots."""
    spec, completion = service.engine.spec, service.settings.completion
    params = {"n_predict": completion.max_tokens, "seed": 0, "t_max_predict_ms": completion.deadline_ms}
    return schemas.PropsResponse(
        default_generation_settings={"n_ctx": spec.max_prompt_tokens + spec.longest_block, "params": params},
        total_slots=service.settings.model.num_slots,
        model_alias=spec.name,
        is_sleeping=service.scheduler.is_asleep,
        build_info=f"dg-lsp {__version__}",
    )


@router.get("/slots")
async def slots(service: RequestService) -> list[schemas.SlotObject]:
    """One object per cached prompt; the first one is processing while the model runs."""
    spec = service.engine.spec
    num_tokens = spec.max_prompt_tokens + spec.longest_block
    return [
        schemas.SlotObject(id=number, n_ctx=num_tokens, is_processing=number == 0 and service.num_active > 0)
        for number in range(service.settings.model.num_slots)
    ]


@router.get("/memory", dependencies=THIS_MACHINE)
async def memory(service: RequestService) -> schemas.MemoryResponse:
    """Memory of this process and of the model; 503 before it is loaded."""
    _ = service.engine
    footprint = service.scheduler.footprint
    return schemas.MemoryResponse(
        resident_bytes=resident_bytes(),
        peak_bytes=peak_bytes(),
        free_bytes=system_free(),
        weights_bytes=footprint.weights_bytes,
        cache={
            "bytes": footprint.cache_bytes,
            "tokens": footprint.cache_cells,
            "tokens_used": footprint.cache_used,
            "tokens_at_most": footprint.cache_limit,
        },
        devices=[
            {"name": device.name, "free_bytes": device.free or None, "total_bytes": device.total or None}
            for device in footprint.devices
        ],
    )


@router.get("/metrics", dependencies=THIS_MACHINE, response_class=PlainTextResponse)
async def metrics(service: RequestService) -> Response:
    """Prometheus' text format, also before the model is loaded."""
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _infill_response(
    body: schemas.InfillBody, index: int, completion: Completion, result: FillResult
) -> schemas.InfillResponse:
    return schemas.InfillResponse(
        index=index,
        content=completion.text,
        model=result.model,
        tokens_predicted=result.output_tokens,
        tokens_evaluated=result.prompt_tokens,
        generation_settings=body.model_dump(include={"n_predict", "n_cmpl", "n_indent", "seed", "stop"}),
        has_new_line="\n" in completion.text,
        stop_type="word" if completion.stop else "limit" if completion.is_full else "eos",
        stopping_word=completion.stop,
        tokens_cached=result.prompt_tokens,
        **costs(result),
    )


def _infill_events(response: _Infill) -> tuple[bytes, bytes]:
    """The checked text is one event; llama.cpp's last event has no text."""
    tree = response if isinstance(response, dict) else response.model_dump()
    first = {"index": tree.get("index", 0), "content": tree.get("content", ""), "stop": False}
    return event(first), event({**tree, "content": "", "stop": True})


def _select(response: schemas.InfillResponse, names: list[str]) -> dict[str, Any]:
    """These fields only; `timings/prompt_n` selects a field of an object, under that very name."""
    tree, selected = response.model_dump(mode="json"), {}
    for name in names:
        value: Any = tree
        for key in name.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            selected[name] = value
    return selected


async def _complete(body: schemas.FimBody, service: Service, http: Request, *, has_messages: bool) -> _Answer:
    prefix, suffix = split_fim_prompt(body.prompt[0] if body.prompt else "")
    suffix = suffix if body.suffix in ("", _NO_SUFFIX) else body.suffix
    request = FillRequest(
        service.snapshot(prefix + suffix, body.language or comment_language(prefix) or PLAIN_TEXT),
        len(prefix),
        num_candidates=body.n,
        max_tokens=min(body.max_tokens, MAX_TOKENS) if body.max_tokens > 0 else None,
        deadline_ms=body.deadline_ms,
        seed=body.seed,
        priority=_priority(body.n, http),
    )
    answer = OpenAiAnswer(service.engine.spec.name, is_chat=False, has_messages=has_messages)
    cut = partial(completions, max_tokens=request.max_tokens, stops=body.stop)
    return await _answer(answer, request, cut, SettledText(), body, service, http)


async def _continue(body: schemas.CompletionBody, service: Service, http: Request) -> _Answer:
    """The model's own continuation of the prompt; nothing is judged."""
    if body.n > 1:
        raise ApiError(400, "n must be 1 for a text without a language; send the language to get several", field="n")
    is_set = "max_tokens" in body.model_fields_set
    limit = body.max_tokens if body.max_tokens > 0 else CHAT_MAX_TOKENS
    request = ChatRequest(
        (),
        name="",
        text=body.prompt[0] if body.prompt else "",
        max_tokens=min(limit, MAX_TOKENS) if is_set else _DEFAULT_MAX_TOKENS,
        deadline_ms=body.deadline_ms or CHAT_DEADLINE_MS,
        seed=body.seed,
        stops=tuple(body.stop),
    )
    answer = OpenAiAnswer(service.engine.spec.name, is_chat=False, has_messages=False)
    return await _generate(answer, request, body, service, http)


async def _generate(
    answer: OpenAiAnswer, request: ChatRequest, body: schemas.StreamedBody, service: Service, http: Request
) -> _Answer:
    def cut(result: FillResult) -> Sequence[Completion]:
        return [cut_at_stops(result.text, request.stops, is_full=result.output_tokens >= request.max_tokens)]

    return await _answer(answer, request, cut, SettledText(request.stops), body, service, http)


def _priority(num_candidates: int, http: Request) -> Priority:
    """Several candidates are requested by the user, one by typing; the header is sent by dg-lsp as a client."""
    is_invoked = num_candidates > 1 or http.headers.get("dg-lsp-trigger") == "invoked"
    return Priority.INVOKED if is_invoked else Priority.TYPED


async def _answer(
    answer: OpenAiAnswer,
    request: FillRequest | ChatRequest,
    cut: Callable[[FillResult], Sequence[Completion]],
    texts: DraftText | SettledText,
    body: schemas.StreamedBody,
    service: Service,
    http: Request,
) -> _Answer:
    """The whole answer, or the stream of its drafts or of `texts`."""
    if not body.stream:
        result = await service.run(request, http)
        return answer.whole(cut(result), result)
    if body.diffusing:
        texts = DraftText()
    stream = service.stream(request, http, has_frames=body.diffusing or isinstance(request, ChatRequest))
    return EventStream(answer.events(stream, texts, cut, has_usage=body.stream_options.include_usage))
