"""`POST /infill`: llama.cpp's fill-in-the-middle, as llama.vim and llama.vscode ask it."""

import itertools
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dg_lsp.context.document import TextStyle
from dg_lsp.context.snippets import Snippet, SnippetSource
from dg_lsp.engine.result import FillResult
from dg_lsp.http.asked import (
    MAX_CANDIDATES,
    MAX_TOKENS,
    Asked,
    Choice,
    choices_of,
    deadline_of,
    seed_of,
)
from dg_lsp.http.fields import Fields
from dg_lsp.http.service import Service
from dg_lsp.http.timings import diffusion, timings
from dg_lsp.http.wire import answer, at_once, event, events

Tree = dict[str, Any]


async def infill(request: Request) -> Response:
    """One object, or with `n_cmpl` above 1 an array of them; `n_predict` 0 only readies the cache."""
    service: Service = request.app.state.service
    fields = await service.read(request)
    asked = _asked(fields)
    names = fields.texts("response_fields") if "response_fields" in fields else None
    is_streamed = fields.flag("stream")
    if asked.max_tokens == 0:
        result = await service.warm(asked, request)
    else:
        result = await service.fill(asked, request)
    replies = [
        _picked(_reply(asked, choice, number, result), names) for number, choice in enumerate(choices_of(asked, result))
    ]
    if is_streamed:
        return events(at_once(*itertools.chain.from_iterable(map(_events, replies))))
    return answer(replies if asked.num_candidates > 1 else replies[0])


def _asked(fields: Fields) -> Asked:
    num_tokens = fields.integer("n_predict", -1, least=-2, most=2**31)
    return Asked(
        prefix=fields.text("input_prefix") + fields.text("prompt"),
        suffix=fields.text("input_suffix"),
        num_candidates=fields.integer("n_cmpl", 1, least=1, most=MAX_CANDIDATES),
        max_tokens=min(num_tokens, MAX_TOKENS) if num_tokens >= 0 else None,
        deadline_ms=deadline_of(fields),
        seed=seed_of(fields),
        stops=fields.texts("stop"),
        min_indent=fields.integer("n_indent", 0, least=0, most=2**31),
        chunks=_chunks(fields),
    )


def _chunks(fields: Fields) -> tuple[Snippet, ...]:
    """Clients send the newest one last, and llama.cpp leaves out the first ones where there is not room for all."""
    chunks = []
    for chunk in fields.objects("input_extra"):
        if "text" not in chunk:
            chunk.refuse("text", 'extra_context chunk must contain a "text" field with a string value')
        text = TextStyle().to_model(chunk.text("text"))
        chunks.append(Snippet(SnippetSource.GIVEN, chunk.text("filename"), text))
    return tuple(reversed(chunks))


def _reply(asked: Asked, choice: Choice, number: int, result: FillResult) -> Tree:
    return {
        "index": number,
        "content": choice.text,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": result.model,
        "tokens_predicted": result.output_tokens,
        "tokens_evaluated": result.prompt_tokens,
        "generation_settings": {
            "n_predict": -1 if asked.max_tokens is None else asked.max_tokens,
            "n_cmpl": asked.num_candidates,
            "n_indent": asked.min_indent,
            "seed": asked.seed,
            "stop": list(asked.stops),
        },
        "prompt": "",
        "has_new_line": "\n" in choice.text,
        "truncated": False,
        "stop_type": "word" if choice.stopping_word else "limit" if choice.is_full else "eos",
        "stopping_word": choice.stopping_word,
        "tokens_cached": result.prompt_tokens,
        "timings": timings(result),
        "diffusion": diffusion(result),
    }


def _events(reply: Tree) -> tuple[bytes, bytes]:
    """A text can be judged when it is complete, so it comes in one event; llama.cpp's last one has none."""
    first = {"index": reply.get("index", 0), "content": reply.get("content", ""), "stop": False}
    return event(first), event({**reply, "content": "", "stop": True})


def _picked(reply: Tree, names: tuple[str, ...] | None) -> Tree:
    """Only these fields; one inside another, written with a slash, comes out under that very name."""
    if names is None:
        return reply
    picked = {}
    for name in names:
        value: Any = reply
        for key in name.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            picked[name] = value
    return picked
