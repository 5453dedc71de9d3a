"""llama.cpp's own completion, of a gap or of a text: whole, in selected fields, and as events."""

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import Any

from dg_lsp.engine.result import Ending, FillResult, Frame
from dg_lsp.http.completion import Completion
from dg_lsp.http.request_schemas import GenerationOptions, SamplerBody
from dg_lsp.http.response_schemas import CompletionResponse
from dg_lsp.http.responses import Events, SettledText, costs, event
from dg_lsp.http.service import Stream

Native = CompletionResponse | dict[str, Any]
"""A dictionary has only the fields that the client selected."""
_SETTINGS = {
    *("n_predict", "n_cmpl", "n_indent", "seed", "stop", "ignore_eos", "top_k"),
    *(name for name in SamplerBody.model_fields if name != "chat_template_kwargs"),
}


def native_completion(
    body: GenerationOptions, index: int, completion: Completion, result: FillResult, names: Sequence[str] = ()
) -> Native:
    """One completion; with `names` only these fields of it."""
    response = CompletionResponse(
        index=index,
        content=completion.text,
        id_slot=result.slot,
        model=result.model,
        tokens_predicted=result.output_tokens,
        tokens_evaluated=result.prompt_tokens,
        generation_settings=body.model_dump(include=_SETTINGS, exclude_none=True),
        has_new_line="\n" in completion.text,
        truncated=result.ending is Ending.CONTEXT,
        stop_type=completion.stop_type,
        stopping_word=completion.stop,
        tokens_cached=result.slot_tokens,
        **costs(result),
    )
    return _select(response, names) if names else response


def native_events(response: Native) -> tuple[bytes, bytes]:
    """The checked text is one event; llama.cpp's last event has no text."""
    tree = response if isinstance(response, dict) else response.model_dump()
    return event(_piece(tree.get("content", ""), tree.get("index", 0))), _last(tree)


async def native_stream(
    stream: Stream, body: GenerationOptions, completion: Any, names: Sequence[str], stops: Sequence[str]
) -> Events:
    """The settled text as it grows, then all fields without a text; `completion` makes one from the result."""
    texts = SettledText(stops)
    async with aclosing(stream):
        async for item in stream:
            if isinstance(item, Frame):
                if text := texts.next(item):
                    yield event(_piece(text))
                continue
            one = completion(item)
            rest, _ = texts.last(one.text)
            if rest:
                yield event(_piece(rest))
            response = native_completion(body, 0, one, item, names)
            yield _last(response if isinstance(response, dict) else response.model_dump())


def _piece(text: str, index: int = 0) -> dict[str, Any]:
    return {"index": index, "content": text, "tokens": [], "stop": False}


def _last(tree: dict[str, Any]) -> bytes:
    return event({**tree, "content": "", "stop": True})


def _select(response: CompletionResponse, names: Iterable[str]) -> dict[str, Any]:
    """These fields only; `timings/prompt_n` selects a field of an object, under that very name."""
    tree, selected = response.model_dump(mode="json"), {}
    for name in names:
        value: Any = tree
        for key in name.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            selected[name] = value
    return selected
