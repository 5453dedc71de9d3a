"""`python -m dg_lsp lsp` as an editor starts it, with the bundled model."""

import re
import socket
from pathlib import Path

import pytest
from installation import PYTHON

COMMAND = [PYTHON, "-m", "dg_lsp", "lsp"]


def test_the_tutorial_shows_grey_text_in_an_editor(launcher):
    source = (Path(__file__).parents[2] / "samples/account.py").read_text()
    for line, text in (("raise", 'ValueError("amount must be positive")'), ("self.balance -=", "amount")):
        source = source.replace(f"{line} \n", f"{line} {text}\n")
    source = source.replace("append()", "append(amount)").replace("len()", "len(s)")
    client = launcher.launch(COMMAND).begin(source, model={"name": "dg-base"}, completion={"deadline_ms": 60_000})
    [item] = client.items(client.complete(22, len("        return len(s")))
    assert item["insertText"] == "elf.history"
    assert "dg-base ready" in client.wait_log("ready")["message"]
    assert client.shown() == []
    client.check()


@pytest.fixture
def tcp(launcher):
    """A client whose server listens, its port and its token."""
    client = launcher.launch([*COMMAND, "--tcp", "127.0.0.1:0"])
    port = client.wait_until(lambda: re.search(r"listening on 127\.0\.0\.1:(\d+)", client.stderr))[1]
    token = client.wait_until(lambda: re.search(r"initializationOptions\.token = (\S+)\n", client.stderr))[1]
    return client, int(port), token


def test_a_tcp_server_answers_no_client_without_its_token(tcp):
    client, port, token = tcp
    wrong = (None, "", token[:-1], f"{token}x", token.swapcase(), [token], {"token": token}, 0, "é" * len(token))
    options = (*({"token": value} for value in wrong), {}, None, [token], token, 7)
    messages = [client.encode(id=1, method="initialize", params={"initializationOptions": given}) for given in options]
    messages += [client.encode(id=1, method="initialize", params=params) for params in (token, [{"token": token}])]
    messages += [client.encode(id=msg_id, method="shutdown") for msg_id in (1, "a", None, [])]
    messages += [client.encode(method="exit"), b"GET / HTTP/1.1\r\n\r\n", b"Content-Length: 5\r\n\r\n"]
    for message in messages:
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(message)
            stranger.shutdown(socket.SHUT_WR)
            answer = stranger.makefile("rb").read()
        assert b'"result"' not in answer, message
        assert (b"initializationOptions.token" in answer) is (b'"jsonrpc"' in message)
        assert token.encode() not in answer, message
    assert not client.has_ended


@pytest.mark.parametrize("is_exit", [True, False], ids=["exit", "disconnect"])
def test_a_tcp_server_serves_one_client_and_ends_with_it(tcp, is_exit):
    client, port, token = tcp
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        client.connect(stream, stream)
        client.begin("self.items = \n", token=token)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
        assert "items" in client.result(client.complete(0, 13))
        if is_exit:
            client.notify("exit", None)
        else:
            connection.shutdown(socket.SHUT_RDWR)
        assert client.wait_end() == 1
    assert "Traceback" not in client.stderr


def test_a_port_in_use_is_reported_in_one_line(launcher):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        client = launcher.launch([*COMMAND, "--tcp", f"127.0.0.1:{port}"])
        assert client.wait_end() == 2
    assert client.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}" in client.stderr
