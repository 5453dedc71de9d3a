"""Clients that read nothing, and clients without the token of a TCP server; `soak/messages.py` breaks headers."""

import asyncio
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import pytest
from e2e.scripted_server import UNHURRIED, open_engine
from gates import TIMEOUT, wait_until
from language_client import SocketClient

from dg_lsp.errors import UsageError
from dg_lsp.server import transport
from dg_lsp.server.app import create_server, serve_client
from dg_lsp.settings import Settings

PRINTED = re.compile(r"listening on 127\.0\.0\.1:(\d+)\n.*initializationOptions\.token = (\S+)\n")


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


@pytest.fixture
def tcp(capfd):
    """The port and the token of a TCP server in a thread, and its exit code."""
    open_scripted = partial(open_engine, scenario="fill")
    with ThreadPoolExecutor() as pool:
        code = pool.submit(serve_client, open_scripted, UNHURRIED, address=("127.0.0.1", 0))
        printed = []
        found = wait_until(lambda: printed.append(capfd.readouterr().err) or PRINTED.search("".join(printed)))
        yield int(found[1]), found[2], code


def connected(port):
    return SocketClient(socket.create_connection(("127.0.0.1", port)))


def test_a_tcp_server_answers_no_client_without_its_token(tcp):
    port, token, _ = tcp
    wrong = (None, "", token[:-1], f"{token}x", token.swapcase(), [token], {"token": token}, 0, "é" * len(token))
    options = (*({"token": value} for value in wrong), {}, None, [token], token, 7)
    encode = SocketClient.encode
    messages = [encode(id=1, method="initialize", params={"initializationOptions": given}) for given in options]
    messages += [encode(id=1, method="initialize", params=params) for params in (token, [{"token": token}])]
    messages += [encode(id=msg_id, method="shutdown") for msg_id in (1, "a", None, [])]
    messages += [encode(method="exit"), b"GET / HTTP/1.1\r\n\r\n", b"Content-Length: 5\r\n\r\n"]
    for message in messages:
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(message)
            stranger.shutdown(socket.SHUT_WR)
            answer = stranger.makefile("rb").read()
        assert b'"result"' not in answer, message
        assert (b"initializationOptions.token" in answer) is (b'"jsonrpc"' in message)
        assert token.encode() not in answer, message
    client = connected(port).begin(token=token)
    client.check()
    client.kill()


def test_a_tcp_server_ends_with_its_only_client(tcp):
    port, token, code = tcp
    client = connected(port).begin(token=token)
    with pytest.raises(ConnectionRefusedError):
        connected(port)
    assert client.texts(0, 0) == ["return total"]
    client.kill()
    assert code.result(TIMEOUT) == 1


def test_a_port_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="cannot listen on"):
        serve_client(open_engine, Settings(), address=taken.getsockname())


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
