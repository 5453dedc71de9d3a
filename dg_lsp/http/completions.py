"""Endpoints that fill a gap, in the dialects of llama.cpp, OpenAI, Mistral and Tabby; and reports of user actions."""

import itertools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.requests import Request

from dg_lsp.context.document import TextStyle
from dg_lsp.context.snippets import Snippet, SnippetSource
from dg_lsp.engine.result import FillResult, Frame
from dg_lsp.http import schemas
from dg_lsp.http.completion import (
    DEFAULT_LANGUAGE,
    MAX_TOKENS,
    Completion,
    CompletionRequest,
    costs,
    num_output_tokens,
    response_frame,
    usage,
)
from dg_lsp.http.errors import ApiError
from dg_lsp.http.prompts import comment_language, split_fim_prompt
from dg_lsp.http.service import LoadedService, Service, Stream
from dg_lsp.http.streaming import DONE, DraftText, Events, EventStream, event, event_list

_NO_SUFFIX = "<|endoftext|>"
"""Continue sends it to Inception instead of an empty suffix."""
_Infill = schemas.InfillResponse | dict[str, Any]
"""A dictionary has only the fields that the client selected."""
router = APIRouter()


@router.post("/infill", response_model=_Infill | list[_Infill], responses=schemas.streams())
async def infill(body: schemas.InfillBody, service: LoadedService, http: Request) -> _Infill | list[_Infill] | Response:
    """Fills a gap for clients of llama.cpp; `n_predict` 0 only fills the prompt cache."""
    request = _infill_request(body)
    result = await (service.warm_up(request, http) if body.n_predict == 0 else service.run(request, http))
    responses: list[_Infill] = []
    for number, completion in enumerate(request.completions(result)):
        response = _infill_response(body, number, completion, result)
        responses.append(_select(response, body.response_fields) if body.response_fields else response)
    if body.stream:
        return EventStream(event_list(*itertools.chain.from_iterable(map(_infill_events, responses))))
    return responses if body.n_cmpl > 1 else responses[0]


@router.post(
    "/v1/completions",
    response_model=schemas.CompletionResponse | schemas.TabbyResponse,
    responses=schemas.streams(schemas.CompletionResponse),
)
async def completions(
    body: schemas.CompletionBody, service: LoadedService, http: Request
) -> schemas.CompletionResponse | schemas.TabbyResponse | Response:
    """Fills a gap for clients of OpenAI or, with `segments`, of Tabby."""
    if body.mode != "standard":
        raise ApiError(501, "next edits are not supported; use mode standard", field="mode")
    if body.segments is None:
        return await _complete(body, service, http, is_fim=False)
    request = _tabby_request(body, body.segments)
    texts = [completion.text for completion in request.completions(await service.run(request, http))]
    choices = [schemas.TabbyChoice(index=number, text=text) for number, text in enumerate(texts)]
    return schemas.TabbyResponse(id=f"cmpl-{uuid.uuid4().hex}", choices=choices)


@router.post(
    "/v1/fim/completions",
    response_model=schemas.CompletionResponse,
    responses=schemas.streams(schemas.CompletionResponse),
)
async def fim_completions(
    body: schemas.FimBody, service: LoadedService, http: Request
) -> schemas.CompletionResponse | Response:
    """Fills a gap for clients of Mistral, Codestral and Inception; every field that one of them reads has the text."""
    return await _complete(body, service, http, is_fim=True)


@router.post("/v1/events")
async def events(body: schemas.EventBody, service: LoadedService) -> schemas.StatusResponse:
    """Counts a user action that a client of Tabby reports."""
    service.metrics.feedback.labels(body.type).inc()
    return schemas.StatusResponse()


@router.post("/feedback")
async def feedback(body: schemas.FeedbackBody, service: LoadedService) -> schemas.StatusResponse:
    """Counts a user action that Cursortab reports."""
    service.metrics.feedback.labels(body.user_action).inc()
    return schemas.StatusResponse()


def _infill_request(body: schemas.InfillBody) -> CompletionRequest:
    style = TextStyle()
    # clients send the newest snippet last, which is the most important one
    snippets = (
        Snippet(SnippetSource.GIVEN, one.filename, style.to_model(one.text)) for one in reversed(body.input_extra)
    )
    return CompletionRequest(
        prefix=body.input_prefix + body.prompt,
        suffix=body.input_suffix,
        num_candidates=body.n_cmpl,
        max_tokens=min(body.n_predict, MAX_TOKENS) if body.n_predict >= 0 else None,
        deadline_ms=body.deadline_ms,
        seed=body.seed,
        stops=tuple(body.stop),
        min_indent=body.n_indent,
        snippets=tuple(snippets),
    )


def _tabby_request(body: schemas.CompletionBody, segments: schemas.Segments) -> CompletionRequest:
    return CompletionRequest(
        prefix=segments.prefix,
        suffix=segments.suffix,
        language=body.language or DEFAULT_LANGUAGE,
        path=segments.filepath,
        # without a path, two requests of a user may be for two files
        client=body.user if segments.filepath else "",
        seed=body.seed,
    )


def _openai_request(body: schemas.FimBody) -> CompletionRequest:
    prefix, suffix = split_fim_prompt(body.prompt[0] if body.prompt else "")
    return CompletionRequest(
        prefix=prefix,
        suffix=suffix if body.suffix in ("", _NO_SUFFIX) else body.suffix,
        language=body.language or comment_language(prefix) or DEFAULT_LANGUAGE,
        num_candidates=body.n,
        max_tokens=min(body.max_tokens, MAX_TOKENS) if body.max_tokens > 0 else None,
        deadline_ms=body.deadline_ms,
        seed=body.seed,
        stops=tuple(body.stop),
    )


def _infill_response(
    body: schemas.InfillBody, number: int, completion: Completion, result: FillResult
) -> schemas.InfillResponse:
    return schemas.InfillResponse(
        index=number,
        content=completion.text,
        model=result.model,
        tokens_predicted=num_output_tokens(result),
        tokens_evaluated=result.prompt_tokens,
        generation_settings=body.model_dump(include={"n_predict", "n_cmpl", "n_indent", "seed", "stop"}),
        has_new_line="\n" in completion.text,
        stop_type="word" if completion.stop else "limit" if completion.is_full else "eos",
        stopping_word=completion.stop,
        tokens_cached=result.prompt_tokens,
        **costs(result),
    )


def _infill_events(response: _Infill) -> tuple[bytes, bytes]:
    """The text, judged when it is complete, is one event; llama.cpp's last event has no text."""
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


async def _complete(
    body: schemas.FimBody, service: Service, http: Request, *, is_fim: bool
) -> schemas.CompletionResponse | EventStream:
    request = _openai_request(body)
    if body.stream and body.diffusing:
        stream = await service.stream(request, http)
        return EventStream(
            _drafts(response_frame("text_completion", service.engine.spec.name), stream, request, is_fim)
        )
    result = await service.run(request, http)
    frame, completions = response_frame("text_completion", result.model), request.completions(result)
    if body.stream:
        chunks = list(_chunks(frame, completions, result, is_fim))
        if body.stream_options.include_usage:
            chunks.append(schemas.CompletionResponse(**frame, choices=[], usage=usage(result)))
        return EventStream(event_list(*map(event, chunks), DONE))
    part = "message" if is_fim else ""
    choices = [_choice(one.text, one.finish_reason, index, part) for index, one in enumerate(completions)]
    return schemas.CompletionResponse(**frame, choices=choices, usage=usage(result), **costs(result))


def _choice(text: str, finish_reason: schemas.FinishReason | None, index: int, part: str) -> schemas.CompletionChoice:
    """`part` is `message`, `delta` or empty: the field of a chat that has the text as well."""
    also: dict[str, Any] = {part: schemas.AssistantText(content=text)} if part else {}
    return schemas.CompletionChoice(text=text, index=index, finish_reason=finish_reason, **also)


def _chunks(
    frame: dict[str, Any], completions: Sequence[Completion], result: FillResult, is_fim: bool
) -> Iterator[schemas.CompletionResponse]:
    """The text, judged when it is complete, is one event, and the finish reason is another.

    Tabby stops reading at the finish reason and cannot parse `[DONE]`.
    """
    part = "delta" if is_fim else ""
    for index, one in enumerate(completions):
        yield schemas.CompletionResponse(**frame, choices=[_choice(one.text, None, index, part)])
        yield schemas.CompletionResponse(
            **frame, choices=[_choice("", one.finish_reason, index, part)], **costs(result)
        )


async def _drafts(frame: dict[str, Any], stream: Stream, request: CompletionRequest, is_fim: bool) -> Events:
    """Each event replaces the one before it; the last one is the judged completion."""
    drafts, part = DraftText(), "delta" if is_fim else ""
    async with aclosing(stream):
        async for item in stream:
            if isinstance(item, Frame):
                yield event(schemas.CompletionResponse(**frame, choices=[_choice(drafts.next(item), None, 0, part)]))
            else:
                best = request.completions(item)[0]
                choice = _choice(best.text, best.finish_reason, 0, part)
                yield event(schemas.CompletionResponse(**frame, choices=[choice], **costs(item)))
    yield DONE
