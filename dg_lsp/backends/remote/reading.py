"""An answer as it comes in: events of a stream, or one JSON value. Trusts nothing that a server says.

What a server says is never repeated in an error: it may quote the buffer.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from dg_lsp.backends.remote.call import Call
from dg_lsp.backends.remote.dialects import Dialect, costs_of
from dg_lsp.errors import RemoteError

_PER_TOKEN = 2048
_SPARE = 1 << 16
"""Bytes that an answer may have: events repeat names and ids around each token."""
_REFUSAL_BYTES = 4096
_NAME_LENGTH = 120
DONE = b"[DONE]"


def most_bytes(num_tokens: int) -> int:
    """Of an answer of so many tokens."""
    return _SPARE + _PER_TOKEN * num_tokens


def printable(text: str) -> str:
    """What a server calls something, without what a terminal would obey or no encoding takes."""
    return "".join(char for char in text if char.isprintable())


async def read(chunks: AsyncIterator[bytes], kind: str, dialect: Dialect, call: Call, limit: int) -> None:
    """Hands what comes in to the call, until it is over.

    Raises:
        RemoteError: it is no answer of this dialect, or longer than `limit` bytes.
    """
    if kind == "text/event-stream":
        await _read_events(chunks, dialect, call, limit)
    elif kind in ("application/json", "application/problem+json"):
        data = b"".join([chunk async for chunk in _limited(chunks, limit)])
        _take(_json(data), dialect, call)
    else:
        what = f"a page of {kind}" if kind else "something that says nothing of its kind"
        raise RemoteError(f"it answers with {what}; is remote.url the address of an API?")


async def beginning(chunks: AsyncIterator[bytes]) -> bytes:
    """Of what a server says when it refuses: enough to see which kind of refusal it is."""
    said = b""
    async for chunk in chunks:
        said += chunk
        if len(said) >= _REFUSAL_BYTES:
            break
    return said[:_REFUSAL_BYTES]


async def _read_events(chunks: AsyncIterator[bytes], dialect: Dialect, call: Call, limit: int) -> None:
    rest = b""
    async for chunk in _limited(chunks, limit):
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            name, colon, data = line.partition(b":")
            if not colon or name not in (b"data", b"error"):
                continue
            data = data.strip()
            if name == b"error" or data.startswith(b'{"error"'):  # some quote a text there that makes it no JSON
                raise RemoteError("it reports an error in the middle of its answer")
            if data == DONE:
                return
            _take(_json(data), dialect, call)
            if call.is_whole:
                return  # counts of tokens may follow; nobody waits for them


async def _limited(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    num_bytes = 0
    async for chunk in chunks:
        num_bytes += len(chunk)
        if num_bytes > limit:
            raise RemoteError("its answer does not end")
        yield chunk


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RemoteError("it answers with something that is no JSON") from error


def _take(tree: Any, dialect: Dialect, call: Call) -> None:
    if isinstance(tree, dict) and "error" in tree:
        raise RemoteError("it reports an error instead of an answer")
    try:
        pieces = list(dialect.read(tree))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise RemoteError(f"its answer is none of {dialect.path}; choose another remote.api") from error
    trees = tree if isinstance(tree, list) else [tree]
    costs = costs_of(trees[-1]) if trees else {}
    model = trees[-1].get("model") if trees else None
    call.add(pieces, costs, printable(model)[:_NAME_LENGTH] if isinstance(model, str) else "")
