"""`python -m dg_lsp lsp` as an editor starts it, with the bundled model."""

import re
import socket
from pathlib import Path

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


def test_a_tcp_server_serves_one_client_and_ends_with_it(launcher):
    client = launcher.launch([*COMMAND, "--tcp", "127.0.0.1:0"])
    port = client.wait_until(lambda: re.search(r"listening on 127\.0\.0\.1:(\d+)", client.stderr))[1]
    token = client.wait_until(lambda: re.search(r"initializationOptions\.token = (\S+)\n", client.stderr))[1]
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        client.connect(stream, stream)
        client.begin("self.items = \n", token=token)
        assert "items" in client.result(client.complete(0, 13))
        client.notify("exit", None)
        assert client.wait_end() == 1
    assert "Traceback" not in client.stderr
