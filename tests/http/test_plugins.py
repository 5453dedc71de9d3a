"""Recorded requests of editor plugins, and their own rules for reading the response."""

import pytest
from chatty import chatty
from plugins import CHATS, FILLS, HEADERS
from scripted import ScriptedDenoiser

FILL = "sum(items)  # é😋"
ANSWER = "def total(items):\n    return sum(items)  # é😋"


@pytest.fixture(scope="module")
def completing(module_start):
    return module_start(ScriptedDenoiser(FILL))


@pytest.fixture(scope="module")
def chatting(module_start):
    return module_start(chatty(ANSWER, tokens_per_step=3))


@pytest.mark.parametrize(("path", "body", "reader", "pick"), FILLS.values(), ids=FILLS)
def test_every_plugin_reads_its_completion(completing, path, body, reader, pick):
    reply = completing.send("POST", path, body, HEADERS)
    text = "def total(items):\n    return " + FILL if path == "/v1/edit/completions" else FILL
    assert (reply.status, reader(reply, pick)) == (200, text)


@pytest.mark.parametrize(("path", "body", "reader", "pick"), CHATS.values(), ids=CHATS)
def test_every_plugin_reads_its_chat(chatting, path, body, reader, pick):
    reply = chatting.send("POST", path, body, HEADERS)
    assert (reply.status, reader(reply, pick)) == (200, ANSWER)
