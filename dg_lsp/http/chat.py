"""`POST /v1/chat/completions` and `POST /v1/apply/completions`: for models that follow instructions.

A stream says what is settled as it settles. With `"diffusing": true` every chunk is a whole draft instead and takes
the place of the one before it, as Inception's does.
"""

import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.engine.request import CHAT_DEADLINE_MS, CHAT_MAX_TOKENS, ChatRequest
from dg_lsp.engine.result import FillResult, Frame
from dg_lsp.http.asked import MAX_TOKENS, Choice, cut_at_stops, deadline_of, seed_of
from dg_lsp.http.drafts import Drafts, Saying, Settled
from dg_lsp.http.fields import Fields
from dg_lsp.http.messages import chat_frame, piece, turns_of, whole
from dg_lsp.http.refusal import Refusal, error_object
from dg_lsp.http.service import Service, Stream
from dg_lsp.http.timings import diffusion, timings, usage
from dg_lsp.http.wire import DONE, answer, event, events

MERGE = Turn(Role.SYSTEM, "Apply the update to the original code. Answer with the whole new code and nothing else.")
"""What Mercury's template for applying leaves to be guessed."""
_numbers = itertools.count(1)


async def chat(request: Request) -> Response:
    """The answer to the last message."""
    service: Service = request.app.state.service
    return await _answer(await service.read(request), request, ())


async def apply(request: Request) -> Response:
    """An update applied to the code it is for."""
    service: Service = request.app.state.service
    return await _answer(await service.read(request), request, (MERGE,))


async def _answer(fields: Fields, request: Request, before: tuple[Turn, ...]) -> Response:
    service: Service = request.app.state.service
    spec = service.engine().spec
    asked, stops = _asked(fields, before), fields.texts("stop")
    is_streamed, is_diffusing = fields.flag("stream"), fields.flag("diffusing")
    has_usage = (fields.object("stream_options") or Fields({})).flag("include_usage")
    if not service.engine().follows_instructions:
        raise Refusal(501, f"{spec.name} follows no instructions; start dg-lsp serve with --model and one that does")
    if is_streamed:
        stream = await service.stream_chat(asked, request)
        frame = chat_frame(spec.name, "chat.completion.chunk")
        said = Drafts() if is_diffusing else Settled(stops)
        return events(_chunks(frame, said, stream, asked, stops, has_usage=has_usage))
    result = await service.chat(asked, request)
    choice = _choice(result, asked, stops)
    costs = {"usage": usage(result), "timings": timings(result), "diffusion": diffusion(result)}
    found = [whole(choice.text, choice.finish_reason)]
    return answer({**chat_frame(result.model, "chat.completion"), "choices": found, **costs})


def _asked(fields: Fields, before: tuple[Turn, ...]) -> ChatRequest:
    turns = (*before, *turns_of(fields))
    num_tokens = fields.integer("max_tokens", CHAT_MAX_TOKENS, least=1, most=2**31)
    num_tokens = fields.integer("max_completion_tokens", num_tokens, least=1, most=2**31)
    fields.integer("n", 1, least=1, most=1)
    return ChatRequest(
        turns,
        f"http:{next(_numbers)}",
        max_tokens=min(num_tokens, MAX_TOKENS),
        deadline_ms=deadline_of(fields) or CHAT_DEADLINE_MS,
        seed=seed_of(fields),
    )


def _choice(result: FillResult, asked: ChatRequest, stops: tuple[str, ...]) -> Choice:
    return cut_at_stops(result.text, stops, is_full=result.output_tokens >= asked.max_tokens)


async def _chunks(
    frame: dict[str, Any],
    said: Saying,
    stream: Stream,
    asked: ChatRequest,
    stops: tuple[str, ...],
    *,
    has_usage: bool,
) -> AsyncGenerator[bytes, None]:
    async with aclosing(stream):
        async for news in stream:
            if isinstance(news, Refusal):
                yield event(error_object(news.status_code, news.detail))
                return
            if isinstance(news, Frame):
                if text := said.of(news):
                    yield event({**frame, "choices": [piece(text)]})
                continue
            choice = _choice(news, asked, stops)
            costs = {"timings": timings(news), "diffusion": diffusion(news)}
            rest, text = said.last(choice.text)
            if rest:
                yield event({**frame, "choices": [piece(rest)]})
            yield event({**frame, "choices": [piece(text, choice.finish_reason)], **costs})
            if has_usage:
                yield event({**frame, "choices": [], "usage": usage(news)})
            yield DONE
