"""JSON as it goes over the wire: compact and on one line, or as server-sent events.

llama.vim looks for `"content":"` in the raw body, without a blank after the colon, and Vim reads one line only.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Send

Tree = Mapping[str, Any]

DONE = b"data: [DONE]\n\n"
"""Ends a stream of OpenAI's."""


def compact(tree: Any) -> bytes:
    """One line of UTF-8; a lone surrogate, which UTF-8 does not know, becomes `?`."""
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def answer(tree: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(compact(tree), status, headers, media_type="application/json")


def event(tree: Tree) -> bytes:
    """One server-sent event."""
    return b"data: " + compact(tree) + b"\n\n"


def events(chunks: AsyncGenerator[bytes, None]) -> Response:
    """A stream of server-sent events that no proxy should keep back."""
    return _Events(chunks)


class _Events(StreamingResponse):
    """Starlette's, that tells what makes the events at once when nobody reads them any more."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(chunks, headers=headers, media_type="text/event-stream")
        self._chunks = chunks

    async def stream_response(self, send: Send) -> None:
        """Where sending is cut off, the generator would be closed whenever it is collected."""
        async with aclosing(self._chunks):
            await super().stream_response(send)


async def at_once(*chunks: bytes) -> AsyncGenerator[bytes, None]:
    """A stream of what is there already."""
    for chunk in chunks:
        yield chunk
