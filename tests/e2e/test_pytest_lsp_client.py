"""The server with the LanguageClient of pytest-lsp."""

import json
import os
import sys
from pathlib import Path

import pytest
import pytest_lsp
from lsprotocol import types
from lsprotocol.converters import get_converter
from pytest_lsp import ClientServerConfig, LanguageClient

HERE = Path(__file__).parent
URI = "file:///ghost.py"
LINE = "# é😋"
COLUMNS = {"utf-8": len(LINE.encode()), "utf-16": len(LINE.encode("utf-16-le")) // 2}
SERVER = [sys.executable, str(HERE / "scripted_server.py"), "echo"]


def capabilities_of(editor):
    tree = json.loads((HERE / "capabilities" / f"{editor}.json").read_text(encoding="utf-8"))
    return get_converter().structure(tree["capabilities"], types.ClientCapabilities)


@pytest_lsp.fixture(
    params=["neovim_v0.12.4", "visual_studio_code_v1.139.1"],
    config=ClientServerConfig(server_command=SERVER, server_env={**os.environ}),
)
async def client(lsp_client: LanguageClient, request: pytest.FixtureRequest):
    params = types.InitializeParams(capabilities=capabilities_of(request.param))
    result = await lsp_client.initialize_session(params)
    assert result.capabilities.inline_completion_provider is not None
    lsp_client.agreed_encoding = result.capabilities.position_encoding or "utf-16"
    yield
    await lsp_client.shutdown_session()


@pytest.mark.asyncio
async def test_a_completion_after_an_emoji_is_at_the_cursor(client: LanguageClient):
    client.text_document_did_open(
        types.DidOpenTextDocumentParams(types.TextDocumentItem(URI, "python", 1, f"x = 1\n{LINE}\n"))
    )
    cursor = types.Position(1, COLUMNS[client.agreed_encoding])
    answer = await client.text_document_inline_completion_async(
        types.InlineCompletionParams(
            types.InlineCompletionContext(types.InlineCompletionTriggerKind.Invoked),
            types.TextDocumentIdentifier(URI),
            cursor,
        )
    )
    (item,) = answer.items
    assert item.range == types.Range(cursor, cursor)
    assert json.loads(item.insert_text)["offset"] == len(f"x = 1\n{LINE}")
