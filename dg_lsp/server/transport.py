"""How messages come and go: standard input and output, or one TCP connection. Knows nothing of their content."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

from dg_lsp.errors import UsageError

_CHUNK = 1 << 16


class StdoutWriter:
    """The protocol's side of standard output.

    Takes the descriptor for itself: whatever else in the process prints to standard output, native code included,
    goes to standard error from then on and cannot break a message.
    """

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        with suppress(OSError):
            os.dup2(2, 1)

    def write(self, data: bytes) -> None:
        """Writes all of it; a client that is gone is noticed where its messages are read."""
        rest = memoryview(data)
        with suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        """The client sees the end of the stream."""
        os.close(self._descriptor)


def stdin_reader() -> asyncio.StreamReader:
    """Standard input as a stream, read by a daemon thread that never keeps the process alive.

    Reads the bare descriptor: a daemon thread inside `sys.stdin.buffer` would hold its lock when the interpreter ends.
    """
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()

    def pump() -> None:
        # RuntimeError: the loop is closed, the session over
        with suppress(RuntimeError):
            while chunk := _read(0):
                loop.call_soon_threadsafe(reader.feed_data, chunk)
            loop.call_soon_threadsafe(reader.feed_eof)

    threading.Thread(target=pump, name="dg-lsp-stdin", daemon=True).start()
    return reader


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:
        return b""


async def accept_one(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Waits for a client and stops listening once it is there; port 0 takes a free one. Says where on standard error.

    Raises:
        UsageError: the address cannot be listened on.
    """
    arrival: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    arrival = asyncio.get_running_loop().create_future()

    def arrive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if arrival.done():
            writer.close()
        else:
            arrival.set_result((reader, writer))

    try:
        listener = await asyncio.start_server(arrive, host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host}:{port} ({reason}); choose another --tcp HOST:PORT") from error
    taken = listener.sockets[0].getsockname()
    sys.stderr.write(f"dg-lsp: listening on {taken[0]}:{taken[1]}\n")
    sys.stderr.flush()
    try:
        return await arrival
    finally:
        listener.close()


async def bodies(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """One message after the other until the client leaves."""
    # ValueError: a header line longer than the reader's limit, so this is no LSP client
    with suppress(asyncio.IncompleteReadError, ConnectionError, ValueError):
        while (length := await _content_length(reader)) is not None:
            if length:
                yield await reader.readexactly(length)


async def _content_length(reader: asyncio.StreamReader) -> int | None:
    """From one message's header; 0 when it says none, None at the end of the stream."""
    length = 0
    while line := await reader.readline():
        if not line.strip():
            return length
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            length = int(value)
    return None
