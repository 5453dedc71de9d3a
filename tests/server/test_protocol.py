"""Messages that are malformed, as one server in this process answers them.

`soak/messages.py` compares codes of errors, texts and positions for thousands of such messages, and breaks headers.
"""

import asyncio
import json
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import pytest
from gates import TIMEOUT, is_idle
from scripted import ScriptedDenoiser, engine_for

from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.server import transport
from dg_lsp.server.app import create_server
from dg_lsp.server.session import _end_tasks
from dg_lsp.settings import Settings

URI, TEXT = "file:///project/a.py", "def f(x):\n    return x\n"
AT = {"line": 1, "character": 4}
ACTION = {"textDocument": {"uri": URI}, "range": {"start": AT, "end": AT}, "context": {"diagnostics": []}}
CANCELLED, INVALID_PARAMS = -32800, -32602


class Session:
    """A server with one open document, and all that it sends."""

    def __init__(self, engine=None, **initialize):
        self.server = create_server(partial(Scheduler, lambda _: engine), Settings())
        self.sent = []
        self.server.protocol.set_writer(self)
        self.call("initialize", {"capabilities": {}, **initialize}, msg_id="first")
        item = {"uri": URI, "languageId": "python", "version": 1, "text": TEXT}
        self.call("textDocument/didOpen", {"textDocument": item})

    def write(self, data):
        self.sent.append(json.loads(data.partition(b"\r\n\r\n")[2]))

    def receive(self, **message):
        self.server.protocol.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def call(self, method, params=None, msg_id=None):
        self.receive(method=method, params=params, **({} if msg_id is None else {"id": msg_id}))

    def answers(self, msg_id):
        return [message for message in self.sent if "method" not in message and message["id"] == msg_id]

    def logged(self):
        return [message["params"]["message"] for message in self.sent if message.get("method") == "window/logMessage"]

    def requested(self, method):
        return next((message for message in self.sent if message.get("method") == method), None)

    async def until(self, happened):
        while not (value := happened()):
            await asyncio.sleep(0.001)
        return value

    async def close(self):
        self.server.close()
        await _end_tasks()


@pytest.fixture
def session():
    return Session()


@pytest.mark.parametrize(
    ("params", "field"),
    [
        pytest.param(None, "params.textDocument", id="missing"),
        pytest.param({**ACTION, "textDocument": {"uri": 5}}, "params.textDocument.uri", id="a number for a string"),
        pytest.param({**ACTION, "context": {"diagnostics": [1]}}, "params.context.diagnostics[0]", id="an element"),
    ],
)
def test_a_parameter_of_a_wrong_type_is_named(session, params, field):
    session.call("textDocument/codeAction", params, 1)
    [answer] = session.answers(1)
    assert answer["error"]["code"] == INVALID_PARAMS
    assert field in answer["error"]["message"]


def test_invalid_utf8_in_an_edit_loses_no_edit(session):
    change = {"range": {"start": AT, "end": AT}, "text": "caf?\n    "}
    params = {"textDocument": {"uri": URI, "version": 2}, "contentChanges": [change]}
    message = {"jsonrpc": "2.0", "method": "textDocument/didChange", "params": params}
    session.server.protocol.receive(json.dumps(message).encode().replace(b"?", b"\xe9"))
    assert session.server.documents.get(URI).lines.text == "def f(x):\n    caf\ufffd\n    return x\n"


async def started(fill, **script):
    session = Session(engine_for(ScriptedDenoiser(fill, **script)))
    session.call("initialized", {})
    await session.until(lambda: "ready" in " ".join(session.logged()))
    return session


@pytest.mark.parametrize(
    "answer",
    [{"result": {"applied": "yes"}}, {"result": []}, {}, {"error": 5}, {"error": {"code": 1, "message": "no"}}],
    ids=str,
)
@pytest.mark.asyncio
async def test_a_command_is_answered_when_the_client_answers_its_edit_with_anything(answer):
    session = await started("new")
    argument = {"uri": URI, "position": {"line": 2, "character": 0}}
    session.call("workspace/executeCommand", {"command": "dg-lsp.completeBlock", "arguments": [argument]}, 1)
    edit = await session.until(lambda: session.requested("workspace/applyEdit"))
    session.receive(id=edit["id"], **answer)
    [result] = await session.until(lambda: session.answers(1))
    assert not result["result"]["applied"]
    assert "the editor rejected the change" in result["result"]["reason"]
    await session.close()


@pytest.mark.asyncio
async def test_a_cancelled_command_changes_nothing():
    session = await started("a_name_that_takes_a_while = 1", step_seconds=0.002, tokens_per_step=1)
    argument = {"uri": URI, "position": {"line": 2, "character": 0}}
    session.call("workspace/executeCommand", {"command": "dg-lsp.completeBlock", "arguments": [argument]}, 1)
    await asyncio.sleep(0)
    session.call("$/cancelRequest", {"id": 1})
    [answer] = await session.until(lambda: session.answers(1))
    assert answer["error"]["code"] == CANCELLED
    await session.until(lambda: is_idle(session.server._models.completion))
    await asyncio.sleep(0.01)  # the loop's turn after the model's thread
    assert session.requested("workspace/applyEdit") is None
    await session.close()


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
