"""Recorded requests of editor plugins, and their own rules for reading the response."""

from unittest.mock import Mock

import pytest
from chatty import chatty
from plugins import CHATS, FILLS, HEADERS, llama_vim, minuet
from scripted import ScriptedDenoiser

from dg_lsp.errors import BackendError

FILL = "sum(items)  # é😋"
ANSWER = "def total(items):\n    return sum(items)  # é😋"
EACH_FILL = pytest.mark.parametrize(("path", "body", "reader", "pick"), FILLS.values(), ids=FILLS)


@pytest.fixture(scope="module")
def completing(module_start):
    return module_start(ScriptedDenoiser(FILL))


@pytest.fixture(scope="module")
def chatting(module_start):
    return module_start(chatty(ANSWER, tokens_per_step=3))


@pytest.fixture(scope="module")
def failing(module_start):
    denoiser = ScriptedDenoiser(FILL)
    denoiser.predict = Mock(side_effect=BackendError("the graph failed; lower gpu_layers"))
    return module_start(denoiser)


@EACH_FILL
def test_every_plugin_reads_its_completion(completing, path, body, reader, pick):
    reply = completing.send("POST", path, body, HEADERS)
    text = "def total(items):\n    return " + FILL if path == "/v1/edit/completions" else FILL
    assert (reply.status, reader(reply, pick)) == (200, text)


@pytest.mark.parametrize(("path", "body", "reader", "pick"), CHATS.values(), ids=CHATS)
def test_every_plugin_reads_its_chat(chatting, path, body, reader, pick):
    reply = chatting.send("POST", path, body, HEADERS)
    assert (reply.status, reader(reply, pick)) == (200, ANSWER)


@EACH_FILL
def test_no_plugin_reads_an_error_as_a_completion(failing, path, body, reader, pick):
    """It would cache an empty completion for the position."""
    reply = failing.send("POST", path, body, HEADERS)
    assert (reply.status, reply.error["type"]) == (500, "server_error")
    if reader in (llama_vim, minuet):
        assert reader(reply, pick) is None
    else:
        with pytest.raises((AssertionError, KeyError, TypeError)):
            reader(reply, pick)
