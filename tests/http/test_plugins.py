"""Recorded requests of editor plugins, and their own rules for reading the response."""

import pytest
from chatty import chatty
from http_server import Starter
from plugins import CHATS, FILLS, MIME, llama_vims, minuets

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.errors import BackendError

FILL = "sum(items)  # é😋"
ANSWER = "def total(items):\n    return sum(items)  # é😋"


@pytest.fixture(scope="module")
def completing():
    starter = Starter()
    yield starter(ScriptedDenoiser(FILL))
    starter.stop()


@pytest.fixture(scope="module")
def chatting():
    starter = Starter()
    yield starter(chatty(ANSWER, tokens_per_step=3))
    starter.stop()


@pytest.fixture(scope="module")
def failing():
    def fail(*_args, **_more):
        raise BackendError("the graph failed; lower gpu_layers")

    starter, denoiser = Starter(), ScriptedDenoiser(FILL)
    denoiser.predict = fail
    yield starter(denoiser)
    starter.stop()


def name_of(value):
    return value.__name__ if callable(value) else None


@pytest.mark.parametrize(("path", "body", "headers", "reader", "pick"), FILLS, ids=name_of)
def test_every_plugin_reads_its_completion(completing, path, body, headers, reader, pick):
    reply = completing.send("POST", path, body, headers)
    expected = "def total(items):\n    return " + FILL if path == "/v1/edit/completions" else FILL
    assert (reply.status, reader(reply, pick)) == (200, expected)


@pytest.mark.parametrize(("path", "body", "reader", "pick"), CHATS, ids=name_of)
def test_every_plugin_reads_its_chat(chatting, path, body, reader, pick):
    reply = chatting.send("POST", path, body, MIME)
    assert (reply.status, reader(reply, pick)) == (200, ANSWER)


@pytest.mark.parametrize(("path", "body", "headers", "reader", "pick"), FILLS, ids=name_of)
def test_no_plugin_reads_an_error_as_a_completion(failing, path, body, headers, reader, pick):
    """It would cache an empty completion for the position."""
    reply = failing.send("POST", path, body, headers)
    assert (reply.status, reply.error["type"]) == (500, "server_error")
    if reader in (llama_vims, minuets):
        assert reader(reply, pick) is None
    else:
        with pytest.raises((AssertionError, KeyError, TypeError)):
            reader(reply, pick)
