"""`python -m dg_lsp lsp` as an editor starts it, with the bundled model."""

import json
import re
import socket
import sys
import time
from pathlib import Path

import pytest

CAPTURED = Path(__file__).parent / "capabilities"
COMMAND = [sys.executable, "-m", "dg_lsp", "lsp"]
PATIENT = {"completion": {"deadline_ms": 60_000}}
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


@pytest.mark.parametrize("editor", ["neovim_v0.12.4", "visual_studio_code_v1.139.1"])
def test_completions_of_the_bundled_model(launcher, editor):
    began = time.monotonic()
    client = launcher.launch([*COMMAND, "--stdio"])
    client.handshake(json.loads((CAPTURED / f"{editor}.json").read_text())["capabilities"], PATIENT)
    shaken = time.monotonic() - began
    client.open(SOURCE)
    places = [
        (0, "# é😋"),
        (4, "        self.items = "),
        (7, "        return sum(item.price for item in self."),
        (9, ""),
    ]
    answers = []
    for line, before in places:
        column = client.units(before)
        items = client.items(client.complete(line, column))
        position = {"line": line, "character": column}
        assert all(item["range"] == {"start": position, "end": position} for item in items)
        answers += [item["insertText"] for item in items]
        print(f"{time.monotonic() - began:.2f} s after the start, at line {line + 1}: {items}")
    assert any(text.strip() for text in answers)
    assert "dg-mini ready" in client.wait_log("ready")["message"]
    assert client.told("window/showMessage") == []
    print(f"handshake after {shaken:.2f} s, {resident_mib(client)} MiB resident")
    assert client.leave() == 0
    client.check()
    assert client.stderr == ""


def test_every_request_of_a_typing_user_is_answered_once(launcher):
    """A request per keystroke without cancellations, as Neovim sends them."""
    client = launcher.launch(COMMAND)
    client.handshake(options=PATIENT)
    client.open(SOURCE)
    client.wait_log("ready")
    ids = []
    for number, character in enumerate("        return self.items[0] + self.it"):
        end = {"line": 11, "character": number}
        client.change(number + 2, {"range": {"start": end, "end": end}, "text": character})
        ids.append(client.complete(11, number + 1))
    assert "result" in client.answer(ids[-1])
    for msg_id in ids[:-1]:
        answer = client.answer(msg_id)
        assert "result" in answer or answer["error"]["code"] == client.CANCELLED
    assert client.leave() == 0
    client.check()
    assert client.stderr == ""


def test_a_session_may_end_while_the_bundled_model_loads(launcher):
    for _ in range(2):
        client = launcher.launch(COMMAND)
        client.handshake()
        client.open(SOURCE)
        client.complete(0, 1)
        assert client.leave() == 0
        client.check()
        assert client.stderr == ""


def test_a_missing_or_broken_model_is_shown_once(launcher, tmp_path):
    (tmp_path / "half.gguf").write_bytes(b"GGUF\3\0\0\0")
    for model in ("nowhere", "half.gguf"):
        client = launcher.launch([*COMMAND, "--model", model])
        client.handshake(options=PATIENT)
        client.open(SOURCE)
        assert client.items(client.complete(0, 1)) == []
        [message] = client.told("window/showMessage")
        assert model in message["message"]
        assert client.leave() == 0
        client.check()


def test_a_tcp_server_can_be_started_from_the_command_line(launcher):
    client = launcher.launch([*COMMAND, "--tcp", "127.0.0.1:0"])
    port = int(client.wait_until(lambda: re.search(r"listening on 127\.0\.0\.1:(\d+)", client.stderr))[1])
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        client.connect(stream, stream)
        client.handshake(options=PATIENT)
        client.open(SOURCE)
        assert "items" in client.result(client.complete(4, 99))
        client.notify("exit", None)
        assert client.wait_end() == 1


def resident_mib(client):
    status = Path(f"/proc/{client.process.pid}/status")
    return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) // 1024 if status.exists() else "?"
