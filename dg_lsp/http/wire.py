"""JSON as it goes over the wire: compact and on one line, or as server-sent events.

llama.vim looks for `"content":"` in the raw body, without a blank after the colon, and Vim reads one line only.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response, StreamingResponse

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


def events(chunks: AsyncIterator[bytes]) -> Response:
    """A stream of server-sent events that no proxy should keep back."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(chunks, headers=headers, media_type="text/event-stream")


async def at_once(*chunks: bytes) -> AsyncIterator[bytes]:
    """A stream of what is there already."""
    for chunk in chunks:
        yield chunk
