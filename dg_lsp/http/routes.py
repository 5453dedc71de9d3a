"""The endpoints: fills in the dialects of llama.cpp, OpenAI, Mistral, Tabby and Mercury, chats, and reports."""

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request

from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.context.document import TextStyle
from dg_lsp.context.languages import PLAIN_TEXT, language_id_of
from dg_lsp.context.snippets import Snippet, SnippetSource
from dg_lsp.engine.request import CHAT_DEADLINE_MS, CHAT_MAX_TOKENS, ChatRequest, FillRequest, Priority
from dg_lsp.engine.result import FillResult
from dg_lsp.http import request_schemas as requests
from dg_lsp.http import response_schemas as replies
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
    Native,
    OpenAiAnswer,
    SettledText,
    costs,
    events_response,
    native_completion,
    native_events,
    native_stream,
)
from dg_lsp.http.service import RequestService, Service
from dg_lsp.sampler_options import SamplerOptions

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
_Fills = Native | list[Native]
_Answer = replies.OpenAiResponse | Response
_OPENAI: dict[str, Any] = {
    "response_model": replies.OpenAiResponse,
    "responses": replies.streams(replies.OpenAiResponse),
}
router = APIRouter()


@router.post("/infill", response_model=_Fills, responses=replies.streams())
async def infill(body: requests.InfillBody, service: RequestService, http: Request) -> _Fills | Response:
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
        deadline_ms=CHAT_DEADLINE_MS if is_warm_up else body.deadline_ms,
        seed=body.seed,
        priority=Priority.WARM_UP if is_warm_up else _priority(body.n_cmpl, http),
        snippets=allowed_snippets(extra, service.engine.spec, service.settings),
        sampler=body.sampler,
        slot=body.id_slot,
    )
    result = await service.run(request, http)
    found = enumerate(completions(result, body.stop, body.n_indent))
    responses = [native_completion(body, index, one, result, body.response_fields) for index, one in found]
    if body.stream:
        return events_response(itertools.chain.from_iterable(map(native_events, responses)))
    return responses if body.n_cmpl > 1 else responses[0]


@router.post("/completion", response_model=Native, responses=replies.streams())
@router.post("/completions", response_model=Native, responses=replies.streams())
async def native_text(body: requests.TextBody, service: RequestService, http: Request) -> Native | Response:
    """Continues a text for clients of llama.cpp; nothing is checked. `n_predict` 0 only fills the prompt cache."""
    is_warm_up = body.n_predict == 0
    request = ChatRequest(
        (),
        name="",
        text=body.prompt[0] if body.prompt else "",
        max_tokens=min(body.n_predict, MAX_TOKENS) if body.n_predict >= 0 else MAX_TOKENS,
        deadline_ms=body.deadline_ms or CHAT_DEADLINE_MS,
        **_text_options(body),
    )

    def completion(result: FillResult) -> Completion:
        return cut_at_stops(result.text, request.stops, is_cut=result.ending.is_cut)

    if not body.stream or is_warm_up:
        result = await service.run(request, http, is_warm_up=is_warm_up)
        response = native_completion(body, 0, completion(result), result, body.response_fields)
        return events_response(native_events(response)) if body.stream else response
    stream = service.stream(request, http, has_frames=True)
    return EventStream(native_stream(stream, body, completion, body.response_fields, request.stops))


@router.post(
    "/v1/completions",
    response_model=replies.OpenAiResponse | replies.TabbyResponse,
    responses=replies.streams(replies.OpenAiResponse),
)
async def legacy_completions(
    body: requests.CompletionBody, service: RequestService, http: Request
) -> _Answer | replies.TabbyResponse:
    """Fills a gap for clients of OpenAI or, with `segments`, of Tabby; continues a text without a language."""
    if (segments := body.segments) is None:
        if is_raw_prompt(body):
            return await _continue(body, service, http)
        return await _complete(body, service, http, has_messages=False)
    client = body.user if segments.filepath else ""  # without a path, two requests of a user may be for two files
    text, language = segments.prefix + segments.suffix, body.language or language_id_of(segments.filepath)
    snapshot = service.snapshot(text, language, segments.filepath, client)
    _refuse_text_options(body)
    request = FillRequest(snapshot, len(segments.prefix), seed=body.seed, sampler=_code_sampler(body))
    result = await service.run(request, http)
    choices: list[dict[str, int | str]] = [
        {"index": index, "text": one.text} for index, one in enumerate(completions(result))
    ]
    return replies.TabbyResponse(id=f"cmpl-{uuid.uuid4().hex}", choices=choices)


@router.post("/v1/fim/completions", **_OPENAI)
async def fim_completions(body: requests.FimBody, service: RequestService, http: Request) -> _Answer:
    """Fills a gap for clients of Mistral, Codestral and Inception; every field that one of them reads has the text."""
    return await _complete(body, service, http, has_messages=True)


@router.post(_APPLY_PATH, **_OPENAI)
@router.post("/v1/chat/completions", **_OPENAI)
async def chat(body: requests.ChatBody, service: RequestService, http: Request) -> _Answer:
    """Answers a conversation, or applies an update to code in Mercury's template."""
    spec = service.chat_engine.spec
    if not service.chat_engine.follows_instructions:
        raise ApiError(501, f"{spec.name} follows no instructions; start dg-lsp serve with --model and one that does")
    turns = [Turn(_ROLES[message.role], message.text) for message in body.messages]
    request = ChatRequest(
        (_APPLY, *turns) if http.url.path == _APPLY_PATH else tuple(turns),
        name="",
        max_tokens=min(body.max_completion_tokens or body.max_tokens, MAX_TOKENS),
        deadline_ms=body.deadline_ms or CHAT_DEADLINE_MS,
        **_text_options(body),
    )
    return await _generate(OpenAiAnswer(spec.name, is_chat=True), request, body, service, http)


@router.post("/v1/edit/completions", **_OPENAI)
async def edit(body: requests.EditBody, service: RequestService, http: Request) -> _Answer:
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
    [completion] = completions(result)
    text = completion.text
    content = f"```\n{prompt.before}{text}{prompt.after}\n```" if text else _NO_EDIT
    answer = OpenAiAnswer(result.model, is_chat=True)
    if body.stream:
        last = answer.event("", completion.finish_reason, **costs(result))
        return events_response((answer.event(content), last, DONE))
    return answer.whole([replace(completion, text=content)], result)


@router.post("/v1/events")
async def events(body: requests.EventBody, service: RequestService) -> replies.StatusResponse:
    """Counts a user action that a client of Tabby reports."""
    service.metrics.feedback.labels(body.type).inc()
    return replies.StatusResponse()


@router.post("/feedback")
async def feedback(body: requests.FeedbackBody, service: RequestService) -> replies.StatusResponse:
    """Counts a user action that Cursortab reports."""
    service.metrics.feedback.labels(body.user_action).inc()
    return replies.StatusResponse()


async def _complete(body: requests.FimBody, service: Service, http: Request, *, has_messages: bool) -> _Answer:
    _refuse_text_options(body)
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
        sampler=_code_sampler(body),
        slot=body.id_slot,
    )
    answer = OpenAiAnswer(service.engine.spec.name, is_chat=False, has_messages=has_messages)
    cut = partial(completions, stops=body.stop)
    return await _answer(answer, request, cut, SettledText(), body, service, http)


async def _continue(body: requests.CompletionBody, service: Service, http: Request) -> _Answer:
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
        **_text_options(body),
    )
    answer = OpenAiAnswer(service.engine.spec.name, is_chat=False, has_messages=False)
    return await _generate(answer, request, body, service, http)


async def _generate(
    answer: OpenAiAnswer, request: ChatRequest, body: requests.StreamedBody, service: Service, http: Request
) -> _Answer:
    def cut(result: FillResult) -> Sequence[Completion]:
        return [cut_at_stops(result.text, request.stops, is_cut=result.ending.is_cut)]

    return await _answer(answer, request, cut, SettledText(request.stops), body, service, http)


def _text_options(body: requests.TextOptions) -> dict[str, Any]:
    """Fields of a request for a text or an answer that all dialects have."""
    return {
        "seed": body.seed,
        "stops": tuple(body.stop),
        "sampler": body.sampler,
        "slot": body.id_slot,
        "ignores_end": body.ignore_eos,
    }


def _refuse_text_options(body: requests.TextOptions) -> None:
    if body.ignore_eos:
        raise ApiError(400, "Field 'ignore_eos' does not apply to code: leave it out", field="ignore_eos")


def _code_sampler(body: requests.TextOptions) -> SamplerOptions:
    """Without `top_k`, which clients send with every request for code."""
    return replace(body.sampler, top_k=None)


def _priority(num_candidates: int, http: Request) -> Priority:
    """Several candidates are requested by the user, one by typing; the header is sent by dg-lsp as a client."""
    is_invoked = num_candidates > 1 or http.headers.get("dg-lsp-trigger") == "invoked"
    return Priority.INVOKED if is_invoked else Priority.TYPED


async def _answer(
    answer: OpenAiAnswer,
    request: FillRequest | ChatRequest,
    cut: Callable[[FillResult], Sequence[Completion]],
    texts: DraftText | SettledText,
    body: requests.StreamedBody,
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
