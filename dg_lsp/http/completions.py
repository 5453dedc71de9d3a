"""`POST /v1/completions` and `POST /v1/fim/completions`: OpenAI's legacy completions with a suffix.

The second one puts the text where Mistral's, Codestral's and Inception's readers look for it, all at once.
"""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dg_lsp.engine.result import FillResult, Frame
from dg_lsp.http.asked import (
    DEFAULT_LANGUAGE,
    MAX_CANDIDATES,
    MAX_TOKENS,
    Asked,
    Choice,
    choices_of,
    deadline_of,
    seed_of,
)
from dg_lsp.http.drafts import Drafts
from dg_lsp.http.fields import Fields
from dg_lsp.http.refusal import Refusal, error_object
from dg_lsp.http.sentinels import language_in, parts_of
from dg_lsp.http.service import Service, Stream
from dg_lsp.http.tabby import tabby, tabbys
from dg_lsp.http.timings import diffusion, timings, usage
from dg_lsp.http.wire import DONE, answer, at_once, event, events

Tree = dict[str, Any]
_BLANK_SUFFIX = "<|endoftext|>"
"""What Continue sends to Inception when there is none."""


async def completions(request: Request) -> Response:
    """Plain or streamed; with `segments` instead of a prompt, as Tabby's clients ask."""
    service: Service = request.app.state.service
    fields = await service.read(request)
    asked = tabbys(fields)
    if asked is not None:
        return await tabby(asked, request)
    return await _complete(fields, request, is_fim=False)


async def fim_completions(request: Request) -> Response:
    """Plain or streamed."""
    service: Service = request.app.state.service
    return await _complete(await service.read(request), request, is_fim=True)


async def _complete(fields: Fields, request: Request, *, is_fim: bool) -> Response:
    service: Service = request.app.state.service
    asked = _asked(fields)
    options = fields.object("stream_options") or Fields({})
    is_streamed, has_usage = fields.flag("stream"), options.flag("include_usage")
    if fields.flag("diffusing") and is_streamed:
        stream = await service.stream_fill(asked, request)
        return events(_drafts(_frame(service.engine().spec.name), stream, asked, is_fim=is_fim))
    result = await service.fill(asked, request)
    choices = choices_of(asked, result)
    frame = _frame(result.model)
    if is_streamed:
        return events(at_once(*_chunks(frame, choices, result, is_fim=is_fim, has_usage=has_usage), DONE))
    found = [
        {**_said(choice.text, "message", is_fim=is_fim), "index": number, "finish_reason": choice.finish_reason}
        for number, choice in enumerate(choices)
    ]
    costs = {"usage": usage(result), "timings": timings(result), "diffusion": diffusion(result)}
    return answer({**frame, "choices": found, **costs})


def _asked(fields: Fields) -> Asked:
    prompt = _prompt(fields)
    prefix, marked_suffix = parts_of(prompt)
    suffix = fields.text("suffix")
    num_tokens = fields.integer("max_tokens", -1, least=-1, most=2**31)
    return Asked(
        prefix=prefix,
        suffix=marked_suffix if suffix in ("", _BLANK_SUFFIX) else suffix,
        language=fields.text("language") or language_in(prefix) or DEFAULT_LANGUAGE,
        num_candidates=fields.integer("n", 1, least=1, most=MAX_CANDIDATES),
        max_tokens=min(num_tokens, MAX_TOKENS) if num_tokens > 0 else None,
        deadline_ms=deadline_of(fields),
        seed=seed_of(fields),
        stops=fields.texts("stop"),
    )


def _prompt(fields: Fields) -> str:
    prompts = fields.texts("prompt")
    if len(prompts) > 1:
        fields.refuse("prompt", "one prompt at a time; send the others in requests of their own")
    return prompts[0] if prompts else ""


def _frame(model: str) -> Tree:
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }


def _said(text: str, where: str, *, is_fim: bool) -> Tree:
    """`text`; for a fill also the message, or its delta, that the readers of chats look for."""
    if not is_fim:
        return {"text": text, "logprobs": None}
    return {"text": text, where: {"role": "assistant", "content": text}}


def _chunks(
    frame: Tree, choices: tuple[Choice, ...], result: FillResult, *, is_fim: bool, has_usage: bool
) -> list[bytes]:
    """A text can be judged when it is complete, so it comes in one event; the reason of its end in another.

    Tabby stops at the reason and cannot read `[DONE]`, so that must not be the first thing to say it.
    """
    chunks = []
    for number, choice in enumerate(choices):
        said = {**_said(choice.text, "delta", is_fim=is_fim), "index": number, "finish_reason": None}
        ended = {**_said("", "delta", is_fim=is_fim), "index": number, "finish_reason": choice.finish_reason}
        chunks.append(event({**frame, "choices": [said]}))
        chunks.append(event({**frame, "choices": [ended], "timings": timings(result), "diffusion": diffusion(result)}))
    if has_usage:
        chunks.append(event({**frame, "choices": [], "usage": usage(result)}))
    return chunks


async def _drafts(frame: Tree, stream: Stream, asked: Asked, *, is_fim: bool) -> AsyncGenerator[bytes, None]:
    """Every chunk takes the place of the one before it; the last one is what was judged worth showing."""
    drafts = Drafts()
    async with aclosing(stream):
        async for news in stream:
            if isinstance(news, Refusal):
                yield event(error_object(news.status_code, news.detail))
                return
            if isinstance(news, Frame):
                said = _said(drafts.of(news), "delta", is_fim=is_fim)
                yield event({**frame, "choices": [{**said, "index": 0, "finish_reason": None}]})
                continue
            choice = choices_of(asked, news)[0]
            said = {**_said(choice.text, "delta", is_fim=is_fim), "index": 0, "finish_reason": choice.finish_reason}
            yield event({**frame, "choices": [said], "timings": timings(news), "diffusion": diffusion(news)})
            yield DONE
