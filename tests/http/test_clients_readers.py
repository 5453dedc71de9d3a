"""Editors' plugins ask as they do, and take the answers by their own rules."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from chatty import chatty
from http_server import Starter
from plugins import CHATS, FILLS, MIME, continues, llama_vims, minuets, of_delta

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.errors import BackendError

FILL = "sum(items)  # é😋"
ANSWER = "def total(items):\n    return sum(items)  # é😋"


@pytest.fixture(scope="module")
def filling():
    starter = Starter()
    yield starter(ScriptedDenoiser(FILL))
    starter.stop()


@pytest.fixture(scope="module")
def talking():
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
def test_every_client_reads_its_fill(filling, path, body, headers, reader, pick):
    reply = filling.send("POST", path, body, headers)
    expected = "def total(items):\n    return " + FILL if path == "/v1/edit/completions" else FILL
    assert (reply.status, reader(reply, pick)) == (200, expected)


@pytest.mark.parametrize(("path", "body", "reader", "pick"), CHATS, ids=name_of)
def test_every_client_reads_its_answer(talking, path, body, reader, pick):
    reply = talking.send("POST", path, body, MIME)
    assert (reply.status, reader(reply, pick)) == (200, ANSWER)


@pytest.mark.parametrize(("path", "body", "headers", "reader", "pick"), FILLS, ids=name_of)
def test_nobody_takes_an_error_for_a_fill(failing, path, body, headers, reader, pick):
    """An empty fill would be kept for the place; an error is not."""
    reply = failing.send("POST", path, body, headers)
    assert (reply.status, reply.error["type"]) == (500, "server_error")
    if reader in (llama_vims, minuets):
        assert reader(reply, pick) is None
    else:
        with pytest.raises((AssertionError, KeyError, TypeError)):
            reader(reply, pick)


def test_minuets_three_of_the_same_are_answered_alike(filling):
    path, body, headers, reader, pick = FILLS[5]
    with ThreadPoolExecutor() as pool:
        replies = list(pool.map(lambda _: filling.send("POST", path, body, headers), range(3)))
    assert [reader(reply, pick) for reply in replies] == [FILL] * 3


def test_continues_edit_is_streamed_under_mercurys_marks(filling):
    body = json.loads(FILLS[-1][1])
    reply = filling.post("/v1/edit/completions", {**body, "stream": True, "max_tokens": 4096})
    assert continues(reply, of_delta) == f"```\ndef total(items):\n    return {FILL}\n```"
