"""The language server: its handlers, the lifecycle of a session, and how it is served.

Automatic completion never interrupts the user: errors are written to the client's log, and the answer is an empty list.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from lsprotocol import types

from dg_lsp.context.document import Encoding
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.scheduler import Scheduler
from dg_lsp.server import completion, configuration, copilot, rewrite
from dg_lsp.server.session import OpenScheduler, Server
from dg_lsp.server.transport import StdoutWriter, accept_client, read_messages, stdin_reader
from dg_lsp.settings import Settings

OpenEngine = Callable[[Settings], Engine]


def create_server(open_scheduler: OpenScheduler, settings: Settings) -> Server:
    """A server with its handlers, without a connection."""
    server = Server(open_scheduler, settings)
    server.feature(types.INITIALIZE)(initialize)
    server.feature(types.INITIALIZED)(initialized)
    server.feature(types.EXIT)(on_exit)
    server.feature(types.TEXT_DOCUMENT_DID_OPEN)(did_open)
    server.feature(types.TEXT_DOCUMENT_DID_CHANGE)(did_change)
    server.feature(types.TEXT_DOCUMENT_DID_CLOSE)(did_close)
    for module in (completion, rewrite, copilot, configuration):
        module.register(server)
    return server


def initialize(ls: Server, params: types.InitializeParams) -> None:
    """Sets encoding, folders and settings. pygls answers with the capabilities."""
    ls.documents.encoding = Encoding(ls.workspace.position_encoding or Encoding.UTF16)
    folders = [folder.uri for folder in params.workspace_folders or ()]
    ls.set_workspace_folders(folders or [uri for uri in (params.root_uri,) if uri])
    settings, ls.initial_errors = configuration.initial_settings(ls, params.initialization_options)
    ls.configure(settings)
    ls.status.is_enabled = configuration.has_status_bar(params.initialization_options)


async def initialized(ls: Server, _params: types.InitializedParams) -> None:
    """Shows invalid settings, then loads the model."""
    ls.show_settings_errors(ls.initial_errors)
    await ls.load_model()


def on_exit(ls: Server, _params: None) -> None:
    """Ends the session; the exit code is 1 without a `shutdown` before."""
    ls.exit_code = 0 if ls.protocol.is_shut_down else 1


def did_open(ls: Server, params: types.DidOpenTextDocumentParams) -> None:
    """Opens a document."""
    ls.documents.open(params.text_document)
    ls.update_status()


def did_change(ls: Server, params: types.DidChangeTextDocumentParams) -> None:
    """Edits a document, and cancels its rewrite."""
    document = ls.documents.get(params.text_document.uri)
    changes = [one for one in params.content_changes if isinstance(one, types.TextDocumentContentChangePartial)]
    if document is not None and changes:
        ls.context_provider.record_edit(document, changes[-1].range.start.line)
    if not ls.documents.change(params.text_document, params.content_changes):
        ls.log(types.MessageType.Warning, f"change of a document that is not open: {params.text_document.uri}")
    if (job := ls.rewrites.get(params.text_document.uri)) is not None:
        job.cancel()


def did_close(ls: Server, params: types.DidCloseTextDocumentParams) -> None:
    """Closes a document."""
    ls.context_provider.close(params.text_document.uri)
    ls.documents.close(params.text_document.uri)


def serve_stdio(open_engine: OpenEngine, settings: Settings) -> int:
    """Serves one client on standard input and output; returns the exit code of the process."""
    silence_pygls_logging()
    open_scheduler = partial(Scheduler.of, open_engine)
    with closing(StdoutWriter()) as writer:

        async def session() -> int:
            return await serve(create_server(open_scheduler, settings), stdin_reader(), writer)

        return asyncio.run(session())


def serve_tcp(host: str, port: int, open_engine: OpenEngine, settings: Settings) -> int:
    """Serves the first client that connects; returns the exit code of the process.

    Raises:
        UsageError: the address cannot be bound.
    """
    silence_pygls_logging()
    open_scheduler = partial(Scheduler.of, open_engine)

    async def session() -> int:
        reader, writer = await accept_client(host, port)
        try:
            return await serve(create_server(open_scheduler, settings), reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    return asyncio.run(session())


async def serve(server: Server, reader: asyncio.StreamReader, writer: StdoutWriter | asyncio.StreamWriter) -> int:
    """Handles messages until the client disconnects; returns the exit code of the session."""
    server.protocol.set_writer(writer)
    try:
        async for body in read_messages(reader):
            server.protocol.receive(body)
            # the handler starts before the next message is read, so it sees the buffer as it was at its request
            await asyncio.sleep(0)
            if server.exit_code is not None:
                break
    finally:
        server.close()
        await _end_tasks()
    return server.exit_code if server.exit_code is not None else int(not server.protocol.is_shut_down)


async def _end_tasks() -> None:
    """Cancels pending tasks, and sends their answers."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    # a finished task answers in a callback, which runs in the loop's next iteration
    await asyncio.sleep(0)


def silence_pygls_logging() -> None:
    """Keeps the log of pygls, which contains the text of buffers, away from standard error."""
    logger = logging.getLogger("pygls")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
