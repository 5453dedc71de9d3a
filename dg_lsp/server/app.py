"""The LSP session: a handler reads the buffer, asks the engine, builds the edit.

Automatic completion never interrupts: whatever goes wrong is logged at the client, and the answer is an empty list.
No text of a buffer and no fill reaches a log.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

from lsprotocol import types

from dg_lsp.context.document import Encoding
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.postprocess.validate import Candidate
from dg_lsp.server import configuring, copilot, rewrite
from dg_lsp.server.documents import CompletionPosition, DocumentStore, inline_item
from dg_lsp.server.session import OpenWorker, Server, names_editor, parse_options, workspace_settings
from dg_lsp.server.transport import StdoutWriter, accept_one, bodies, field_of, stdin_reader
from dg_lsp.settings import Settings

OpenEngine = Callable[[Settings], Engine]
DOCUMENT = "dg-lsp/document"
"""`{uri}`: what the server thinks the buffer is, `{uri, version, text}` or null."""
NUM_INVOKED = 3
"""Candidates when the user asks; automatic requests get one."""


def create_server(open_worker: OpenWorker, settings: Settings) -> Server:
    """A server with its handlers, not yet connected to anybody."""
    server = Server(open_worker, settings)
    server.feature(types.INITIALIZE)(initialize)
    server.feature(types.INITIALIZED)(initialized)
    server.feature(types.EXIT)(on_exit)
    server.feature(DOCUMENT)(document_text)
    server.feature(types.TEXT_DOCUMENT_DID_OPEN)(did_open)
    server.feature(types.TEXT_DOCUMENT_DID_CHANGE)(did_change)
    server.feature(types.TEXT_DOCUMENT_DID_CLOSE)(did_close)
    # pygls advertises inline completion only when it is given options
    server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())(inline_completion)
    rewrite.register_actions(server)
    rewrite.register_rewrites(server)
    copilot.register(server)
    configuring.register(server)
    return server


def initialize(ls: Server, params: types.InitializeParams) -> None:
    """Agrees on units and settings; pygls answers with the capabilities."""
    ls.documents = DocumentStore(Encoding(ls.workspace.position_encoding or Encoding.UTF16))
    folders = [folder.uri for folder in params.workspace_folders or ()]
    ls.look_into(folders or [uri for uri in (params.root_uri,) if uri])
    settings, bad_file = workspace_settings(ls.ignored.folder, ls.settings)
    ls.settings, bad_options = parse_options(params.initialization_options, settings, ls.ignored.folder)
    ls.complaints = bad_file + bad_options
    ls.status.is_wanted = names_editor(params.initialization_options)


async def initialized(ls: Server, _params: types.InitializedParams) -> None:
    """The client listens: complains about its options, then loads the model."""
    if ls.complaints:
        ls.show(types.MessageType.Error, "dg-lsp settings: " + "; ".join(ls.complaints))
    await ls.load_model()


def on_exit(ls: Server, _params: None) -> None:
    """Ends the session; code 1 when `shutdown` did not come before."""
    ls.exit_code = 0 if ls.protocol.is_shut_down else 1


def did_open(ls: Server, params: types.DidOpenTextDocumentParams) -> None:
    """Takes the buffer over."""
    ls.documents.open(params.text_document)
    ls.tell_place()


def did_change(ls: Server, params: types.DidChangeTextDocumentParams) -> None:
    """Edits the buffer."""
    document = ls.documents.get(params.text_document.uri)
    changes = [one for one in params.content_changes if isinstance(one, types.TextDocumentContentChangePartial)]
    if document is not None and changes:
        ls.elsewhere.edit(document, changes[-1].range.start.line)
    if not ls.documents.change(params.text_document, params.content_changes):
        ls.log(types.MessageType.Warning, f"change of a document that is not open: {params.text_document.uri}")
    if (job := ls.rewrites.get(params.text_document.uri)) is not None:
        job.cancel()


def document_text(ls: Server, params: Any) -> dict[str, Any] | None:
    """A buffer as it is here; for a relay, which has to open it elsewhere when this process ends."""
    document = ls.documents.get(str(field_of(params, "uri")))
    if document is None:
        return None
    return {"uri": document.uri, "version": document.version, "text": document.lines.text}


def did_close(ls: Server, params: types.DidCloseTextDocumentParams) -> None:
    """Forgets the buffer."""
    ls.elsewhere.close(params.text_document.uri)
    ls.documents.close(params.text_document.uri)


async def inline_completion(ls: Server, params: types.InlineCompletionParams) -> types.InlineCompletionList:
    """Ghost text at the cursor."""
    cursor = ls.documents.cursor(params)
    if cursor is None:
        ls.log(types.MessageType.Warning, f"completion in a document that is not open: {params.text_document.uri}")
        return types.InlineCompletionList(items=[])
    if ls.is_left_out(cursor.snapshot):
        return types.InlineCompletionList(items=[])
    is_invoked = params.context.trigger_kind is types.InlineCompletionTriggerKind.Invoked
    request = FillRequest(
        cursor.snapshot,
        cursor.offset,
        num_candidates=NUM_INVOKED if is_invoked else 1,
        min_confidence=0.0 if is_invoked else ls.settings.fill.min_confidence,
        priority=Priority.INVOKED if is_invoked else Priority.TYPED,
        extra=ls.extra(cursor.snapshot, cursor.offset),
    )
    if request.cursor.is_deep_inside_word and not is_invoked:
        return types.InlineCompletionList(items=[])
    return types.InlineCompletionList([_item(ls, one, cursor) for one in await ls.fill(request)])


def _item(ls: Server, candidate: Candidate, cursor: CompletionPosition) -> types.InlineCompletionItem:
    name = ls.acceptance.offer(cursor.selected + candidate.text)
    taken = types.Command("Accepted", copilot.ACCEPTED, arguments=[name])
    return inline_item(candidate, cursor, ls.documents.encoding, taken)


def serve_stdio(open_engine: OpenEngine, settings: Settings) -> int:
    """Serves the client on standard input and output until it leaves; returns the process's exit code."""
    silence_pygls_logging()
    open_worker = partial(Scheduler.of, open_engine)
    with closing(StdoutWriter()) as writer:

        async def session() -> int:
            return await serve(create_server(open_worker, settings), stdin_reader(), writer)

        return asyncio.run(session())


def serve_tcp(host: str, port: int, open_engine: OpenEngine, settings: Settings) -> int:
    """Serves the first client that connects until it leaves; returns the process's exit code.

    Raises:
        UsageError: the address cannot be listened on.
    """
    silence_pygls_logging()
    open_worker = partial(Scheduler.of, open_engine)

    async def session() -> int:
        reader, writer = await accept_one(host, port)
        try:
            return await serve(create_server(open_worker, settings), reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    return asyncio.run(session())


async def serve(server: Server, reader: asyncio.StreamReader, writer: StdoutWriter | asyncio.StreamWriter) -> int:
    """Has the server talk to its client until that leaves; returns the session's exit code."""
    server.protocol.set_writer(writer)
    try:
        async for body in bodies(reader):
            server.protocol.receive(body)
            # A handler begins before the next message is read: it sees the buffer as it was when it was asked.
            await asyncio.sleep(0)
            if server.exit_code is not None:
                break
    finally:
        server.close()
        await _end_tasks()
    return server.exit_code if server.exit_code is not None else int(not server.protocol.is_shut_down)


async def _end_tasks() -> None:
    """Cancels what is still pending and lets its answers out."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    # a task that ended just now answers from a callback, which the loop still has to come to
    await asyncio.sleep(0)


def silence_pygls_logging() -> None:
    """pygls logs whole messages, buffers included; nothing of that may reach standard error."""
    logger = logging.getLogger("pygls")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
