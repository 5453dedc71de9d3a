"""Endpoints of models that follow instructions, and Mercury's edits, which any model can answer."""

from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request

from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.engine.chat import DEADLINE_MS, ChatRequest
from dg_lsp.engine.request import Priority
from dg_lsp.engine.result import FillResult, Frame
from dg_lsp.http import schemas
from dg_lsp.http.completion import (
    DEFAULT_LANGUAGE,
    MAX_TOKENS,
    Completion,
    CompletionRequest,
    costs,
    cut_at_stops,
    num_output_tokens,
    response_frame,
    usage,
)
from dg_lsp.http.errors import ApiError
from dg_lsp.http.prompts import parse_edit_prompt
from dg_lsp.http.service import LoadedService, Service, Stream
from dg_lsp.http.streaming import DONE, DraftText, Events, EventStream, SettledText, event, event_list

_APPLY = Turn(Role.SYSTEM, "Apply the update to the original code. Answer with the whole new code and nothing else.")
"""Mercury's template for applying an update contains no instruction."""
_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_NO_EDIT = "None"
"""Clients of Mercury expect it instead of an unchanged region."""
router = APIRouter()


@router.post(
    "/v1/chat/completions", response_model=schemas.ChatResponse, responses=schemas.streams(schemas.ChatResponse)
)
async def chat(body: schemas.ChatBody, service: LoadedService, http: Request) -> schemas.ChatResponse | Response:
    """Answers a conversation."""
    return await _chat(body, service, http)


@router.post(
    "/v1/apply/completions", response_model=schemas.ChatResponse, responses=schemas.streams(schemas.ChatResponse)
)
async def apply(body: schemas.ChatBody, service: LoadedService, http: Request) -> schemas.ChatResponse | Response:
    """Applies an update to code, in Mercury's template."""
    return await _chat(body, service, http, _APPLY)


@router.post(
    "/v1/edit/completions", response_model=schemas.ChatResponse, responses=schemas.streams(schemas.ChatResponse)
)
async def edit(body: schemas.EditBody, service: LoadedService, http: Request) -> schemas.ChatResponse | Response:
    """Fills at the cursor of Mercury's template; returns the region with the completion, or `None`."""
    prompt = parse_edit_prompt(body.messages[-1].text)
    request = CompletionRequest(
        prompt.above + prompt.before,
        f"{prompt.after}\n{prompt.below}",
        language=prompt.language or DEFAULT_LANGUAGE,
        path=prompt.path,
        priority=Priority.REWRITE,
        max_tokens=min(body.max_tokens, MAX_TOKENS) or None,
    )
    result = await service.run(request, http)
    text = request.completions(result)[0].text
    content = f"```\n{prompt.before}{text}{prompt.after}\n```" if text else _NO_EDIT
    if body.stream:
        frame = response_frame("chat.completion.chunk", result.model)
        return EventStream(event_list(_chunk(frame, content), _chunk(frame, "", "stop"), DONE))
    return _response(result, Completion(content))


async def _chat(
    body: schemas.ChatBody, service: Service, http: Request, *turns: Turn
) -> schemas.ChatResponse | Response:
    spec = service.engine.spec
    if not service.engine.follows_instructions:
        raise ApiError(501, f"{spec.name} follows no instructions; start dg-lsp serve with --model and one that does")
    request = ChatRequest(
        (*turns, *(Turn(_ROLES[message.role], message.text) for message in body.messages)),
        name="",
        max_tokens=min(body.max_completion_tokens or body.max_tokens, MAX_TOKENS),
        deadline_ms=body.deadline_ms or DEADLINE_MS,
        seed=body.seed,
    )
    if body.stream:
        stream = await service.stream(request, http)
        return EventStream(_chunks(response_frame("chat.completion.chunk", spec.name), stream, request, body))
    result = await service.run(request, http)
    return _response(result, _completion(result, request, body))


def _completion(result: FillResult, request: ChatRequest, body: schemas.ChatBody) -> Completion:
    return cut_at_stops(result.text, body.stop, is_full=num_output_tokens(result) >= request.max_tokens)


def _response(result: FillResult, completion: Completion) -> schemas.ChatResponse:
    message = schemas.AssistantText(content=completion.text)
    choice = schemas.ChatChoice(index=0, message=message, finish_reason=completion.finish_reason)
    frame = response_frame("chat.completion", result.model)
    return schemas.ChatResponse(**frame, choices=[choice], usage=usage(result), **costs(result))


def _chunk(frame: dict[str, Any], text: str, finish_reason: schemas.FinishReason | None = None, **more: Any) -> bytes:
    choice = schemas.ChatChoice(index=0, delta=schemas.AssistantText(content=text), finish_reason=finish_reason)
    return event(schemas.ChatResponse(**frame, choices=[choice], **more))


async def _chunks(frame: dict[str, Any], stream: Stream, request: ChatRequest, body: schemas.ChatBody) -> Events:
    texts = DraftText() if body.diffusing else SettledText(body.stop)
    async with aclosing(stream):
        async for item in stream:
            if isinstance(item, Frame):
                if text := texts.next(item):
                    yield _chunk(frame, text)
                continue
            completion = _completion(item, request, body)
            rest, last = texts.last(completion.text)
            if rest:
                yield _chunk(frame, rest)
            yield _chunk(frame, last, completion.finish_reason, **costs(item))
            if body.stream_options.include_usage:
                yield event(schemas.ChatResponse(**frame, choices=[], usage=usage(item)))
    yield DONE
