"""Server-sent events, and what of each denoising step a client receives."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.types import Send

from dg_lsp.engine.result import Frame
from dg_lsp.http.errors import ApiError, error_object

DONE = b"data: [DONE]\n\n"
"""Ends a stream of OpenAI's API."""
Events = AsyncGenerator[bytes, None]


def event(tree: BaseModel | Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(tree) + b"\n\n"


async def event_list(*events: bytes) -> Events:
    """A stream of events that exist already."""
    for one in events:
        yield one


class EventStream(StreamingResponse):
    """Server-sent events; an `ApiError` becomes the last one."""

    def __init__(self, events: Events) -> None:
        self._events = _with_error(events)
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy may hold events back
        super().__init__(self._events, headers=headers, media_type="text/event-stream")

    async def stream_response(self, send: Send) -> None:
        """Closes the generator when the client disconnects, not when it is collected."""
        async with aclosing(self._events):
            await super().stream_response(send)


async def _with_error(events: Events) -> Events:
    async with aclosing(events):
        try:
            async for one in events:
                yield one
        except ApiError as error:
            yield event(error_object(error))


class DraftText:
    """Each event replaces the one before it: the settled text, then what the model predicts at the moment."""

    def __init__(self) -> None:
        self._block = 0
        self._earlier_blocks = ""
        self._settled = ""

    def next(self, frame: Frame) -> str:
        """The text of the next event; empty sends none."""
        if frame.block != self._block:  # the canvas before this one is settled
            self._block, self._earlier_blocks = frame.block, self._settled
        self._settled = frame.settled_text
        shown = self._earlier_blocks
        for cell in frame.cells:
            if cell.is_end:
                break
            shown += cell.text
        return shown

    def last(self, text: str) -> tuple[str, str]:
        """The text before the last event and that of the last event, given the whole answer."""
        return "", text


class SettledText:
    """Each event continues the one before it; all together are the answer."""

    def __init__(self, stops: Sequence[str]) -> None:
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
        return self._unsent(settled[: max(0, len(settled) - self._num_held)])

    def last(self, text: str) -> tuple[str, str]:
        """As `DraftText.last`."""
        return self._unsent(text), ""

    def _unsent(self, text: str) -> str:
        unsent = text[self._num_sent :]
        self._num_sent = max(self._num_sent, len(text))
        return unsent
