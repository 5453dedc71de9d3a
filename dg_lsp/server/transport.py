"""Reads LSP messages from a stream; standard input and output as streams, and the end of a connection."""

import asyncio
import os
import queue
import re
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

MAX_MESSAGE_BYTES = 1 << 28
"""More than the longest document that is not excluded takes in JSON."""
CLOSE_SECONDS = 3.0
"""Time for a client to receive the last answers."""
MAX_POSITION = 2**31 - 1
_MAX_HEADER_LINES = 16
MAX_UNSENT = 10_000
"""Messages that wait for a client that does not read; then the server waits too."""
_HEADER_LINE = re.compile(rb"content-([\w-]+):[ \t]*(.*?)[ \t]*\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\d{1,9}")


class StdoutWriter:
    """Writes to standard output in a thread, so that a client that reads slowly does not stop the server.

    Keeps the descriptor for itself: other output of the process, also of native code, goes to standard error and cannot
    corrupt a message.
    """

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        with suppress(OSError):
            os.dup2(2, 1)
        self._unsent = queue.Queue[bytes](MAX_UNSENT)
        self._thread = threading.Thread(target=self._write_unsent, name="dg-lsp-stdout", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Sends the data soon. Errors are ignored, because the reader detects the end of the connection."""
        self._unsent.put(data)

    def close(self) -> None:
        """Closes the stream. A client that does not read what was sent is waited for `CLOSE_SECONDS` only."""
        with suppress(queue.Full):
            self._unsent.put_nowait(b"")
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():  # else the thread still uses it
            os.close(self._descriptor)

    def _write_unsent(self) -> None:
        while data := self._unsent.get():
            with suppress(OSError):
                while data:
                    data = data[os.write(self._descriptor, data) :]


def stdin_reader() -> asyncio.StreamReader:
    """Standard input as a stream, read by a daemon thread.

    Reads the descriptor: a daemon thread inside `sys.stdin.buffer` would hold its lock at interpreter exit.
    """
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()

    def pump() -> None:
        # RuntimeError: the loop is closed
        with suppress(RuntimeError):
            with suppress(OSError):
                while chunk := os.read(0, 1 << 16):
                    loop.call_soon_threadsafe(reader.feed_data, chunk)
            loop.call_soon_threadsafe(reader.feed_eof)

    threading.Thread(target=pump, name="dg-lsp-stdin", daemon=True).start()
    return reader


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Closes a connection. A client that does not read what was sent is waited for `CLOSE_SECONDS` only."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    except OSError:  # TimeoutError is one
        writer.transport.abort()


async def read_messages(reader: asyncio.StreamReader, on_error: Callable[[str], None]) -> AsyncGenerator[bytes, None]:
    """Bodies of the messages until the client disconnects.

    Ends also at a header that is not one of LSP, and passes its problem to `on_error`: the length of the message before
    was wrong, and an edit may be lost.
    """
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        try:
            while True:
                if length := await _read_length(reader):
                    yield await reader.readexactly(length)
        except asyncio.LimitOverrunError:
            on_error("the connection is closed: a header line is too long")
        except ValueError as error:
            on_error(f"the connection is closed: {error}")


async def _read_length(reader: asyncio.StreamReader) -> int:
    """Reads a header and returns the length of its body. Raises `ValueError` for what is none."""
    lengths = []
    for _ in range(_MAX_HEADER_LINES):
        line = await reader.readuntil(b"\n")
        if line == b"\r\n":
            break
        if (field := _HEADER_LINE.fullmatch(line)) is None:
            raise ValueError("a header line does not begin with Content-")
        if field[1].lower() == b"length":
            lengths.append(field[2])
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]) or int(lengths[0]) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a header needs one Content-Length of at most {MAX_MESSAGE_BYTES:,} bytes")
    return int(lengths[0])
