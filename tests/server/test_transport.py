"""Clients that read nothing, and clients without the token of a TCP server; `soak/messages.py` breaks headers."""

import asyncio
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from gates import TIMEOUT

from dg_lsp.server import transport
from dg_lsp.server.app import create_server
from dg_lsp.settings import Settings


def test_no_more_is_read_of_a_client_that_does_not_read():
    writer = Mock(drain=lambda: asyncio.Event().wait())

    async def connection():
        reader = asyncio.StreamReader()
        reader.feed_data(b"Content-Length: 1\r\n\r\n{" * 2)
        async with asyncio.timeout(0.05):
            await create_server(None, Settings()).serve(nullcontext((reader, writer, b"")))

    with pytest.raises(TimeoutError):
        asyncio.run(connection())
    assert b"".join(call.args[0] for call in writer.write.call_args_list).count(b'"error"') == 1


@pytest.mark.parametrize(
    "sent", [b"", b"Content-Len", b"Content-Length: 100\r\n\r\n{", b"Content-Length: 0\r\n\r\n" * 9]
)
@pytest.mark.asyncio
async def test_a_client_without_the_token_that_trickles_is_disconnected(monkeypatch, capsys, sent):
    monkeypatch.setattr(transport, "AUTHENTICATION_SECONDS", 0.1)
    accepting = asyncio.create_task(transport.first_client("127.0.0.1", 0, "x" * 16).__aenter__())
    while not (listening := capsys.readouterr().err):
        await asyncio.sleep(0.001)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(listening.rpartition(":")[2]))
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(), TIMEOUT) == b""
    assert not accepting.done()
    accepting.cancel()
    writer.close()
    await asyncio.wait({accepting})
