"""Responses of the endpoints that generate text: the shapes of llama.cpp and OpenAI, costs, and server-sent events."""

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi.sse import EventSourceResponse
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.types import Send

from dg_lsp.engine.request import Ending, FillResult, Frame
from dg_lsp.http.schemas import (
    ApiError,
    AssistantText,
    Choice,
    CompletionResponse,
    FinishReason,
    GenerationOptions,
    OpenAiResponse,
    SamplerBody,
    StopType,
    error_object,
)
from dg_lsp.http.service import Stream
from dg_lsp.postprocess.validate import Candidate

DONE = b"data: [DONE]\n\n"
"""Ends a stream of OpenAI's API."""
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""No proxy may hold events back."""
Events = AsyncGenerator[bytes, None]
Native = CompletionResponse | dict[str, Any]
"""A dictionary has only the fields that the client selected."""
_SETTINGS = {
    *("n_predict", "n_cmpl", "n_indent", "seed", "stop", "ignore_eos", "top_k"),
    *(name for name in SamplerBody.model_fields if name != "chat_template_kwargs"),
}


@dataclass(frozen=True, slots=True)
class Completion:
    """One text for the client."""

    text: str
    stop: str = ""  # the stop text that ended it, if one did
    is_cut: bool = False  # the limit of tokens, the context or the deadline ended it

    @property
    def finish_reason(self) -> FinishReason:
        """`stop` or `length`, as OpenAI's API names them."""
        return "length" if self.is_cut and not self.stop else "stop"

    @property
    def stop_type(self) -> StopType:
        """The same as llama.cpp names it."""
        return "word" if self.stop else "limit" if self.is_cut else "eos"


def completions(result: FillResult, stops: Sequence[str] = (), min_indent: int = 0) -> list[Completion]:
    """One completion per candidate, best first; an empty one if there is no candidate.

    A stop ends a completion, and so does a line after the first with fewer leading blanks than `min_indent`.
    """
    candidates = result.candidates or (Candidate("", 0.0, is_cut=result.ending.is_cut),)
    shown = []
    for candidate in candidates:
        kept = _cut_at_dedent(candidate.text, min_indent)
        shown.append(cut_at_stops(kept, stops, is_cut=candidate.is_cut and kept == candidate.text))
    return shown


def cut_at_stops(text: str, stops: Sequence[str], *, is_cut: bool) -> Completion:
    """`text` up to the first stop in it."""
    offsets = [(offset, stop) for stop in stops if stop and (offset := text.find(stop)) >= 0]
    offset, stop = min(offsets, default=(len(text), ""))
    return Completion(text[:offset], stop, is_cut=is_cut)


def _cut_at_dedent(text: str, min_indent: int) -> str:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines[1:], 1):
        if line.strip() and len(line) - len(line.lstrip(" \t")) < min_indent:
            return "".join(lines[:number]).rstrip("\r\n")
    return text


def event(tree: BaseModel | Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(tree) + b"\n\n"


class EventStream(EventSourceResponse):
    """Server-sent events. An `ApiError` before the first one is the response, a later one is the last event."""

    def __init__(self, events: Events) -> None:
        self._events = events
        super().__init__(events, headers=STREAM_HEADERS)

    async def stream_response(self, send: Send) -> None:
        """Closes the generator when the client disconnects, not when it is collected."""
        async with aclosing(self._events):
            self.body_iterator = self._all(await anext(self._events))
            await super().stream_response(send)

    async def _all(self, first: bytes) -> Events:
        yield first
        try:
            async for data in self._events:
                yield data
        except ApiError as error:
            yield event(error_object(error))


class DraftText:
    """Each event replaces the one before it: the text of earlier canvases, then what the model predicts now."""

    def next(self, frame: Frame) -> str:
        """The text of the event after a denoising step; empty sends none."""
        end = next((number for number, cell in enumerate(frame.cells) if cell.is_end), None)
        return frame.earlier_text + "".join(cell.text for cell in frame.cells[:end])

    def last(self, text: str) -> tuple[str, str]:
        """The text before the last event and that of the last event, given the whole answer."""
        return "", text


class SettledText:
    """Each event continues the one before it; all together are the answer."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(filter(None, stops))
        self._num_held = max(map(len, self._stops), default=1) - 1
        self._num_sent = 0
        self._newest = ""

    def next(self, frame: Frame) -> str:
        """As `DraftText.next`, but one frame late: the answer may leave out a part of the last one."""
        settled, self._newest = self._newest, frame.settled_text
        if any(stop in settled for stop in self._stops):
            return ""
        # hold back the start of a split character and what may be the start of a stop
        settled = settled.rstrip("\ufffd")
        start, self._num_sent = self._num_sent, max(self._num_sent, len(settled) - self._num_held)
        return settled[start : self._num_sent]

    def last(self, text: str) -> tuple[str, str]:
        """As `DraftText.last`."""
        return text[self._num_sent :], ""


class OpenAiAnswer:
    """One answer in the shape of OpenAI's API, whole or as events."""

    def __init__(self, model: str, *, is_chat: bool, has_messages: bool = True) -> None:
        """An answer that is no chat may have its text in a message as well."""
        prefix = "chatcmpl" if is_chat else "cmpl"
        self._fields = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._is_chat = is_chat
        self._has_messages = has_messages

    def whole(self, completions: Sequence[Completion], result: FillResult) -> OpenAiResponse:
        """One response with all completions."""
        texts = [(completion.text, completion.finish_reason) for completion in completions]
        fields = {"model": result.model, "usage": usage(result), **costs(result)}
        return self._object("message", texts, thought=result.thought, **fields)

    def event(self, text: str, finish_reason: FinishReason | None = None, index: int = 0, **fields: Any) -> bytes:
        """One event of a stream."""
        return event(self._object("delta", [(text, finish_reason)], index, **fields))

    async def events(
        self,
        stream: Stream,
        texts: DraftText | SettledText,
        completions: Callable[[FillResult], Sequence[Completion]],
        *,
        has_usage: bool,
    ) -> Events:
        """The events of a stream. The finish reason has an event of its own, at which Tabby stops reading."""
        num_sent = 0  # characters of the thought
        async with aclosing(stream):
            async for item in stream:
                # the start of a split character waits for the rest of it
                thought = item.thought if isinstance(item, FillResult) else item.thought.rstrip("\ufffd\n")
                if len(thought) > num_sent:
                    yield event(self._object("delta", [("", None)], thought=thought[num_sent:]))
                    num_sent = len(thought)
                if isinstance(item, Frame):
                    if text := texts.next(item):
                        yield self.event(text)
                    continue
                for index, completion in enumerate(completions(item)):
                    rest, last = texts.last(completion.text)
                    if rest:
                        yield self.event(rest, None, index)
                    yield self.event(last, completion.finish_reason, index, **costs(item))
                if has_usage:
                    yield event(self._object("delta", [], usage=usage(item)))
        yield DONE

    def _object(
        self,
        part: str,
        texts: Sequence[tuple[str, FinishReason | None]],
        start: int = 0,
        thought: str = "",
        **fields: Any,
    ) -> OpenAiResponse:
        """`part` is the field of a message, `message` or `delta`; the first one has the thought."""
        kind = "text_completion" if not self._is_chat else f"chat.completion{'.chunk' * (part == 'delta')}"
        choices = []
        for index, (text, finish_reason) in enumerate(texts, start):
            choice = Choice(index=index, finish_reason=finish_reason, text=None if self._is_chat else text)
            if self._has_messages:
                message = AssistantText(content=text, reasoning_content=thought or None)
                setattr(choice, part, message)
            choices.append(choice)
        return OpenAiResponse(**{**self._fields, "object": kind, **fields}, choices=choices)


def native_completion(
    body: GenerationOptions, index: int, completion: Completion, result: FillResult, names: Sequence[str]
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


async def native_stream(
    stream: Stream,
    body: GenerationOptions,
    completions: Callable[[FillResult], Sequence[Completion]],
    names: Sequence[str],
    texts: SettledText | None = None,
) -> Events:
    """The text, as it grows if there are `texts`, then all fields without a text, as llama.cpp's last event."""
    async with aclosing(stream):
        async for item in stream:
            if isinstance(item, Frame):
                if texts is not None and (text := texts.next(item)):
                    yield event(_piece(text))
                continue
            for index, completion in enumerate(completions(item)):
                rest = completion.text if texts is None else texts.last(completion.text)[0]
                if rest or texts is None:
                    yield event(_piece(rest, index))
                response = native_completion(body, index, completion, item, names)
                tree = response if isinstance(response, dict) else response.model_dump()
                yield event({**tree, "content": "", "stop": True})


def _piece(text: str, index: int = 0) -> dict[str, Any]:
    return {"index": index, "content": text, "tokens": [], "stop": False}


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


def usage(result: FillResult) -> dict[str, int | dict[str, int]]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.output_tokens,
        "total_tokens": result.prompt_tokens + result.output_tokens,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
    }


def costs(result: FillResult) -> dict[str, Any]:
    """`timings` as llama.cpp names them, `diffusion`, our own statistics, and why there is no text."""
    ms = result.timings.denoise
    shared = {
        "canvas_tokens": result.canvas_tokens,
        "steps_per_second": _ratio(1e3 * result.steps, ms),
        "ms_per_step": _ratio(ms, result.steps),
        "canvas_tokens_per_second": _ratio(1e3 * result.canvas_tokens, ms),
        "n_decode": result.num_decodes,
    }
    timings = {
        "cache_n": result.cached_tokens,
        **_stage("prompt", result.prompt_tokens - result.cached_tokens, result.timings.prefill),
        **_stage("predicted", result.output_tokens, ms),
        "diffusion": {"n_blocks": result.num_blocks, "n_steps": result.steps, **shared},
    }
    diffusion = {
        "decoder": result.decoder,
        "canvas_length": result.canvas_length,
        "blocks": result.num_blocks,
        "steps": result.steps,
        **shared,
        "tokens_per_forward": round(result.tokens_per_forward, 3),
        "reused_prompt_tokens": result.cached_tokens,
    }
    empty = {"dg_lsp": {"reason": result.reason.value}} if result.reason else {}
    return {"timings": timings, "diffusion": diffusion, **empty}


def _stage(name: str, num_tokens: int, ms: float) -> dict[str, int | float]:
    return {
        f"{name}_n": num_tokens,
        f"{name}_ms": round(ms, 3),
        f"{name}_per_token_ms": _ratio(ms, num_tokens),
        f"{name}_per_second": _ratio(1e3 * num_tokens, ms),
    }


def _ratio(amount: float, total: float) -> float:
    return round(amount / total, 3) if total else 0.0
