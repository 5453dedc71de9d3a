"""`python -m dg_lsp lsp` as an editor starts it, with the bundled model."""

import re
import socket
from pathlib import Path

import pytest
from installation import PYTHON
from language_client import capabilities

COMMAND = [PYTHON, "-m", "dg_lsp", "lsp"]
SOURCE = """\
# é😋
class Basket:
    def __init__(self, owner, items):
        self.owner = owner
        self.items =\x20

    def total(self):
        return sum(item.price for item in self.\x20

    def add(self, item):
        self.items.append(

"""


def test_completions_of_the_bundled_model(launcher):
    client = launcher.launch([*COMMAND, "--stdio"])
    client.begin(SOURCE, capabilities("visual_studio_code_v1.139.1"))
    found = []
    for line, before in ((0, "# é😋"), (4, "        self.items = "), (9, "")):
        position = {"line": line, "character": client.units(before)}
        items = client.items(client.complete(**position))
        assert all(item["range"] == {"start": position, "end": position} for item in items)
        found += [item["insertText"] for item in items if item["insertText"].strip()]
    assert found
    assert "dg-mini ready" in client.wait_log("ready")["message"]
    assert client.shown() == []
    client.check()


def test_the_tutorial_shows_grey_text_in_an_editor(launcher):
    source = (Path(__file__).parents[2] / "samples/account.py").read_text()
    for line, text in (("raise", 'ValueError("amount must be positive")'), ("self.balance -=", "amount")):
        source = source.replace(f"{line} \n", f"{line} {text}\n")
    source = source.replace("append()", "append(amount)").replace("len()", "len(self.h)")
    client = launcher.launch(COMMAND).begin(source)
    [item] = client.items(client.complete(22, len("        return len(self.h")))
    assert item["insertText"] == "istory"
    client.check()


@pytest.mark.parametrize("is_exit", [True, False], ids=["exit", "disconnect"])
def test_a_tcp_server_serves_one_client_and_ends_with_it(launcher, is_exit):
    client = launcher.launch([*COMMAND, "--tcp", "127.0.0.1:0"])
    port = int(client.wait_until(lambda: re.search(r"listening on 127\.0\.0\.1:(\d+)", client.stderr))[1])
    token = client.wait_until(lambda: re.search(r"initializationOptions\.token = (\S+)\n", client.stderr))[1]
    for stranger in (b"GET / HTTP/1.1\r\n", client.encode(id=1, method="initialize", params={}), b"Content-"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(stranger)
            if stranger.endswith(b"}"):
                assert b"initializationOptions.token" in connection.recv(4096)
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        client.connect(stream, stream)
        client.begin(SOURCE, token=token)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
        assert "items" in client.result(client.complete(4, 99))
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
