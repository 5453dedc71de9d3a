"""Answers of the endpoints that generate text: the shapes of llama.cpp and OpenAI, costs, and server-sent events."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Send
from typing_extensions import override

from dg_lsp.engine.request import Ending, FillResult, Frame
from dg_lsp.http.schemas import ApiError, ChatBody, CompletionBody, GenerationBody, NativeBody, json_bytes
from dg_lsp.postprocess.validate import Candidate

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""No proxy may hold events back."""
Json = dict[str, Any]
Parts = AsyncGenerator[bytes, None]
Stream = AsyncGenerator[Frame | FillResult, None]
"""Frames, then the result; closing it stops the engine within one step."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One text for the client, and the result that it is from."""

    text: str
    stop: str  # the stop text that ended it, if one did
    is_cut: bool  # the limit of tokens, the context or the deadline ended it
    result: FillResult

    @property
    def finish_reason(self) -> str:
        """`stop` or `length`, as OpenAI's API names them."""
        return "length" if self.is_cut and not self.stop else "stop"

    @property
    def stop_type(self) -> str:
        """The same as llama.cpp names it."""
        return "word" if self.stop else "limit" if self.is_cut else "eos"


def _cut_at_dedent(text: str, min_indent: int) -> str:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines[1:], 1):
        if line.strip() and len(line) - len(line.lstrip(" \t")) < min_indent:
            return "".join(lines[:number]).rstrip("\r\n")
    return text


def event_bytes(tree: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + json_bytes(tree) + b"\n\n"


class AnswerResponse(StreamingResponse):
    """An answer as soon as its first part is there: the whole of it, or one of its events.

    An `ApiError` before the first part is the response, a later one is the last event. A disconnect of the client
    closes the generator of the parts.
    """

    def __init__(self, parts: Parts, *, is_whole: bool) -> None:
        self._parts = parts
        self._is_whole = is_whole
        kind = "application/json" if is_whole else "text/event-stream"
        super().__init__(parts, headers={} if is_whole else STREAM_HEADERS, media_type=kind)

    @override
    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._parts):
            first = await anext(self._parts)
            if self._is_whole:
                self.headers["content-length"] = str(len(first))
            self.body_iterator = self._all(first)
            await super().stream_response(send)

    async def _all(self, first: bytes) -> Parts:
        yield first
        try:
            async for part in self._parts:
                yield part
        except ApiError as error:
            yield event_bytes(error.tree)


class SettledText:
    """Pieces of a growing text; all together are the answer."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(filter(None, stops))
        self._num_held = max(map(len, self._stops), default=1) - 1
        self._newest = ""
        self.num_sent = 0

    def next(self, frame: Frame) -> str:
        """What a frame adds, one frame late: the answer may leave out a part of the last one."""
        settled, self._newest = self._newest, frame.settled_text
        if any(stop in settled for stop in self._stops):
            return ""
        # hold back the start of a split character and what may be the start of a stop
        settled = settled.rstrip("\ufffd")
        start, self.num_sent = self.num_sent, max(self.num_sent, len(settled) - self._num_held)
        return settled[start : self.num_sent]


def _draft(frame: Frame) -> str:
    """The text of earlier canvases, then what the model predicts now."""
    end = next((number for number, cell in enumerate(frame.cells) if cell.is_end), None)
    return frame.earlier_text + "".join(cell.text for cell in frame.cells[:end])


class Answer(ABC):
    """The answer to one request in the shape of an API, whole or as events."""

    min_indent = 0
    """A line after the first with fewer leading blanks ends a completion."""

    def __init__(self, body: GenerationBody, *, is_text: bool = False) -> None:
        """`is_text`: the result is a text as the model wrote it, not a fill."""
        self.body = body
        self._is_text = is_text

    def completions(self, result: FillResult) -> Sequence[Completion]:
        """One completion per candidate up to a stop of the request, best first; an empty one without a candidate."""
        completions = []
        for candidate in result.candidates or (Candidate("", 0.0, is_cut=result.ending.is_cut),):
            text = _cut_at_dedent(candidate.text, self.min_indent)
            is_cut = result.ending.is_cut if self._is_text else candidate.is_cut and text == candidate.text
            offsets = [(offset, stop) for stop in self.body.stop if stop and (offset := text.find(stop)) >= 0]
            offset, stop = min(offsets, default=(len(text), ""))
            completions.append(Completion(text[:offset], stop, is_cut, result))
        return completions

    @abstractmethod
    def whole(self, completions: Sequence[Completion]) -> Json | list[Json]:
        """The response with all completions, at least one."""

    @abstractmethod
    def event(self, text: str, index: int, thought: str = "", ended: Completion | None = None) -> Json:
        """An event with more text of a completion, or with its end."""

    def tail(self, result: FillResult) -> bytes:
        """The events after those of the completions."""
        del result
        return b""

    def response(self, stream: Stream) -> AnswerResponse:
        """The response with the whole answer, or with its events, as the body requests."""
        return AnswerResponse(self._parts(stream), is_whole=not self.body.stream)

    async def _parts(self, stream: Stream) -> Parts:
        """The whole answer, or its events: each continues the one before it or, as a draft, replaces it.

        The end of a completion has an event of its own, at which Tabby stops reading.
        """
        is_draft = self.body.diffusing
        settled = SettledText(self.body.stop)
        num_thought = 0  # characters that were sent
        async with aclosing(stream):
            async for item in stream:
                if isinstance(item, FillResult) and not self.body.stream:
                    yield json_bytes(self.whole(self.completions(item)))
                    return
                # the start of a split character waits for the rest of it
                thought = item.thought if isinstance(item, FillResult) else item.thought.rstrip("\ufffd\n")
                if len(thought) > num_thought:
                    yield event_bytes(self.event("", 0, thought[num_thought:]))
                    num_thought = len(thought)
                if isinstance(item, Frame):
                    if text := _draft(item) if is_draft else settled.next(item):
                        yield event_bytes(self.event(text, 0))
                    continue
                for index, completion in enumerate(self.completions(item)):
                    if not is_draft and (rest := completion.text[settled.num_sent :]):
                        yield event_bytes(self.event(rest, index))
                    yield event_bytes(self.event(completion.text if is_draft else "", index, ended=completion))
                yield self.tail(item)


class OpenAiAnswer(Answer):
    """OpenAI's chat, or its legacy completion, which has the text also as the message that Mistral's clients read."""

    def __init__(self, model: str, body: ChatBody | CompletionBody, *, is_text: bool = False) -> None:
        super().__init__(body, is_text=is_text)
        self._is_chat = isinstance(body, ChatBody)
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        self._fields = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    @override
    def whole(self, completions: Sequence[Completion]) -> Json:
        result = completions[0].result
        choices = [
            self._choice("message", completion.text, index, result.thought, completion.finish_reason)
            for index, completion in enumerate(completions)
        ]
        kind = "chat.completion" if self._is_chat else "text_completion"
        fields = {**self._fields, "object": kind, "model": result.model or self._fields["model"]}
        return {**fields, "choices": choices, "usage": _usage(result), **costs(result)}

    @override
    def event(self, text: str, index: int, thought: str = "", ended: Completion | None = None) -> Json:
        choice = self._choice("delta", text, index, thought, ended.finish_reason if ended else None)
        return {**self._chunk([choice]), **(costs(ended.result) if ended else {})}

    @override
    def tail(self, result: FillResult) -> bytes:
        has_usage = self.body.stream_options.include_usage
        usage = event_bytes({**self._chunk([]), "usage": _usage(result)}) if has_usage else b""
        return usage + b"data: [DONE]\n\n"

    def _chunk(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {**self._fields, "object": kind, "choices": choices}

    def _choice(self, part: str, text: str, index: int, thought: str, finish_reason: str | None) -> Json:
        """`part` is the field of the message: `message`, or `delta` in an event."""
        message = {"role": "assistant", "content": text}
        if thought:
            message["reasoning_content"] = thought
        choice = {"index": index, "finish_reason": finish_reason, "logprobs": None, part: message}
        return choice if self._is_chat else {**choice, "text": text}


class NativeAnswer(Answer):
    """llama.cpp's completion of a gap or of a text."""

    def __init__(self, body: NativeBody, *, is_text: bool = False) -> None:
        super().__init__(body, is_text=is_text)
        self.min_indent = 0 if is_text else body.n_indent
        self._names = body.response_fields
        self._is_array = not is_text and body.num_candidates > 1

    @override
    def whole(self, completions: Sequence[Completion]) -> Json | list[Json]:
        trees = [self._selected(completion.text, index, completion) for index, completion in enumerate(completions)]
        return trees if self._is_array else trees[0]

    @override
    def event(self, text: str, index: int, thought: str = "", ended: Completion | None = None) -> Json:
        if ended is None:
            return {"index": index, "content": text, "stop": False}
        return {**self._selected(text, index, ended), "content": text, "stop": True}

    def _selected(self, text: str, index: int, completion: Completion) -> Json:
        """All fields, or those that are requested; `timings/prompt_n` names a field of an object, under that name."""
        result = completion.result
        tree = {
            "index": index,
            "content": text,
            "id_slot": result.slot,
            "stop": True,
            "model": result.model,
            "tokens_predicted": result.output_tokens,
            "tokens_evaluated": result.prompt_tokens,
            "truncated": result.ending is Ending.CONTEXT,
            "stop_type": completion.stop_type,
            "stopping_word": completion.stop,
            "tokens_cached": result.slot_tokens,
            **costs(result),
        }
        if not self._names:
            return tree
        fields = {name: _field(tree, name) for name in self._names}
        return {name: value for name, value in fields.items() if value is not None}


def _field(tree: Json, name: str) -> Any:
    value: Any = tree
    for key in name.split("/"):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _usage(result: FillResult) -> Json:
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.output_tokens,
        "total_tokens": result.prompt_tokens + result.output_tokens,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
    }


def costs(result: FillResult) -> Json:
    """`timings` as llama.cpp's servers name them, `diffusion`, our own statistics, and why there is no text."""
    ms = result.timings.denoise
    timings = {
        "cache_n": result.cached_tokens,
        **_stage("prompt", result.prompt_tokens - result.cached_tokens, result.timings.prefill),
        **_stage("predicted", result.output_tokens, ms),
        "diffusion": {
            "n_blocks": result.num_blocks,
            "n_steps": result.steps,
            "canvas_tokens": result.canvas_tokens,
            "steps_per_second": _ratio(1e3 * result.steps, ms),
            "ms_per_step": _ratio(ms, result.steps),
            "canvas_tokens_per_second": _ratio(1e3 * result.canvas_tokens, ms),
        },
    }
    diffusion = {
        "decoder": result.decoder,
        "canvas_length": result.canvas_length,
        "blocks": result.num_blocks,
        "steps": result.steps,
        "canvas_tokens": result.canvas_tokens,
        "tokens_per_forward": round(result.tokens_per_forward, 3),
    }
    empty = {"dg_lsp": {"reason": result.reason.value}} if result.reason else {}
    return {"timings": timings, "diffusion": diffusion, **empty}


def _stage(name: str, num_tokens: int, ms: float) -> Json:
    return {
        f"{name}_n": num_tokens,
        f"{name}_ms": round(ms, 3),
        f"{name}_per_token_ms": _ratio(ms, num_tokens),
        f"{name}_per_second": _ratio(1e3 * num_tokens, ms),
    }


def _ratio(amount: float, total: float) -> float:
    return round(amount / total, 3) if total else 0.0
