"""Prompts that are decoded before a completion is requested, and models that are replaced."""

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
from lsprotocol import types
from scripted import MASK_SPEC

from dg_lsp.canvas.spec import FimOrder
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.request import FillResult, RewriteRequest
from dg_lsp.engine.scheduler import ResidentModels
from dg_lsp.postprocess.validate import Candidate
from dg_lsp.server.app import create_server, did_open
from dg_lsp.server.completion import explain_position
from dg_lsp.server.rewrite import code_action
from dg_lsp.server.session import FIRST_CHARS
from dg_lsp.settings import Settings

from .conftest import URI, Editor, FakeScheduler

TEXT = "é = 1\n" * 1000
SUFFIX_FIRST = MASK_SPEC.fim
PREFIX_FIRST = replace(SUFFIX_FIRST, order=FimOrder.PREFIX_FIRST)


@pytest.fixture
def opened(request):
    """An editor with one document, which has just been opened."""
    editor = Editor(replace(MASK_SPEC, fim=request.param))
    did_open(editor.server, types.DidOpenTextDocumentParams(types.TextDocumentItem(URI, "python", 1, TEXT)))
    return editor


@pytest.mark.parametrize(
    ("opened", "length"), [(None, FIRST_CHARS), (PREFIX_FIRST, FIRST_CHARS), (SUFFIX_FIRST, 0)], indirect=["opened"]
)
def test_opening_a_document_prepares_its_first_completion(opened, length):
    assert [len(text) for _, text in opened.scheduler.warmed] == [length]


@pytest.mark.parametrize("opened", [None], indirect=True)
def test_a_cursor_that_rests_and_a_document_that_gets_the_focus_prepare_the_next_completion(opened):
    at = types.Position(3, 1)
    context = types.CodeActionContext([], trigger_kind=types.CodeActionTriggerKind.Automatic)
    code_action(opened.server, types.CodeActionParams(types.TextDocumentIdentifier(URI), types.Range(at, at), context))
    focus = opened.server.protocol.fm.features["textDocument/didFocus"]
    focus({"textDocument": {"uri": URI}})
    focus({"textDocument": {"uri": URI}, "position": {"line": 1, "character": 2}})
    focus({"textDocument": {"uri": "file:///other.py"}})
    assert [text for _, text in opened.scheduler.warmed[1:]] == [TEXT[:19], TEXT[:19], TEXT[:8]]


def test_documents_are_edited_while_a_model_is_closed():
    """The old model ends its pass first, which can take seconds."""
    is_edited, waited = threading.Event(), []

    async def replace_model(server):
        loading = asyncio.create_task(server.load_model())
        await asyncio.sleep(0)
        is_edited.set()
        await loading

    server = create_server(lambda _: FakeScheduler(), Settings())
    server.protocol.set_writer(SimpleNamespace(write=lambda _: None))
    old = FakeScheduler()
    old.leave = lambda: waited.append(is_edited.wait(10))
    server._models = ResidentModels(lambda _: old, Settings())
    asyncio.run(replace_model(server))
    assert waited == [True]
    assert server._models.completion is not old


def test_a_rewrite_ends_although_other_settings_replace_its_model_meanwhile(editor):
    def submit(*_):
        editor.server._models = None
        done = Future()
        done.set_result("rewritten")
        return done

    editor.scheduler.submit = submit
    assert asyncio.run(editor.server.rewrite(RewriteRequest(Snapshot(URI, TEXT), 0, 1))) == "rewritten"


def test_an_explanation_is_computed_again_if_a_completion_in_the_document_replaces_it(editor, monkeypatch):
    """Neovim drops the answer to a request that the server cancels, so its user would read nothing."""
    requests = []

    async def fill(request):
        requests.append(request.offset)
        if len(requests) == 1:
            raise asyncio.CancelledError
        return FillResult("m", (Candidate("b)", 0.0, confidence=1.0),), ())

    editor.open("f(a")
    monkeypatch.setattr(editor.server, "fill", fill)
    explanation = asyncio.run(explain_position(editor.server, editor.documents.get(URI), 3))
    assert requests == [3, 3]
    assert explanation.text == "b)"
