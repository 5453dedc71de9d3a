"""The streams of a session: standard input and output, or one TCP connection whose client has sent the token."""

import asyncio
import hmac
import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress

from pygls.exceptions import JsonRpcInvalidRequest

from dg_lsp.errors import UsageError
from dg_lsp.server import pipe
from dg_lsp.server.protocol import is_id, read_messages

MAX_FIRST_BYTES = 1 << 20
"""Longest first message of a client that has not sent the token yet."""
AUTHENTICATION_SECONDS = 10.0
"""Time for a client to send its first message."""
TOKEN = "token"
"""Option of `initialize` with the token of a TCP server."""
CLOSE_SECONDS = 3.0
"""Time for a client to receive the last answers."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]
"""The streams of a client, and the body of a message that has been read already, or nothing."""


@asynccontextmanager
async def stdio_streams() -> AsyncGenerator[Streams, None]:
    """Standard input and output as streams. Threads copy them, so a client that reads slowly does not stop the server.

    Other output of the process, also of native code, goes to standard error and cannot corrupt a message.
    """
    output = os.dup(1)
    with suppress(OSError):
        os.dup2(2, 1)
    ours, theirs = socket.socketpair()
    threading.Thread(target=pipe.copy_input, args=(theirs,), name="dg-lsp-stdin", daemon=True).start()
    copier = threading.Thread(target=pipe.copy_output, args=(theirs, output), name="dg-lsp-stdout", daemon=True)
    copier.start()
    try:
        async with socket_streams(ours) as streams:
            yield streams
    finally:
        copier.join(CLOSE_SECONDS)


@asynccontextmanager
async def socket_streams(connection: socket.socket) -> AsyncGenerator[Streams, None]:
    """The streams of a connected socket, which is closed at the end."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        yield reader, writer, b""
    finally:
        await close_writer(writer)


@asynccontextmanager
async def first_client(host: str, port: int, token: str) -> AsyncGenerator[Streams, None]:
    """The streams and the first message of the first client that sends the token; no other client is accepted.

    Prints the address on standard error, with a new token if the one given is empty; port 0 takes a free port.

    Raises:
        UsageError: the address cannot be bound.
    """
    accepted: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
    wanted = token or secrets.token_urlsafe(32)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(AUTHENTICATION_SECONDS):
                first = await _first_message(reader, writer, wanted)
        if first and not accepted.done():
            accepted.set_result((reader, writer, first))
        else:
            writer.close()

    try:
        listener = await asyncio.start_server(accept, host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host}:{port} ({reason}); choose another --tcp HOST:PORT") from error
    address = listener.sockets[0].getsockname()
    sys.stderr.write(f"dg-lsp: listening on {address[0]}:{address[1]}\n")
    if not token:
        sys.stderr.write(f"dg-lsp: the client must send initializationOptions.{TOKEN} = {wanted}\n")
    try:
        streams = await accepted
    finally:
        listener.close()
    try:
        yield streams
    finally:
        await close_writer(streams[1])


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Closes a connection. A client that does not read what was sent is waited for `CLOSE_SECONDS` only."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    except OSError:  # TimeoutError is one
        writer.transport.abort()


async def _first_message(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> bytes:
    """The body of an `initialize` with the token; empty for anything else, which is answered if it is a message."""
    async with aclosing(read_messages(reader, max_bytes=MAX_FIRST_BYTES)) as messages:
        body = await anext(messages, b"")
    if not body:
        return b""
    message, sent = None, None
    with suppress(ValueError, RecursionError, KeyError, TypeError):
        message = json.loads(body)
        sent = message["params"]["initializationOptions"][TOKEN]
    if isinstance(sent, str) and hmac.compare_digest(sent.encode("utf-8", "replace"), token.encode()):
        return body
    msg_id = message.get("id") if isinstance(message, dict) else None
    problem = f"the token is missing or wrong: send initialize with initializationOptions.{TOKEN}"
    error = {"code": JsonRpcInvalidRequest.CODE, "message": problem}
    answer = json.dumps({"jsonrpc": "2.0", "id": msg_id if is_id(msg_id) else None, "error": error})
    writer.write(f"Content-Length: {len(answer)}\r\n\r\n{answer}".encode())
    await writer.drain()
    return b""
