"""The LSP session: a handler reads the buffer, asks the engine, builds the edit.

Automatic completion never interrupts: whatever goes wrong is logged at the client, and the answer is an empty list.
No text of a buffer and no fill reaches a log.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from dg_lsp import __version__
from dg_lsp.context.exclusion import Exclusion, Why
from dg_lsp.context.place import Place
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.filling import Progress
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.rewrite import RewriteRequest, RewriteResult
from dg_lsp.engine.worker import Worker
from dg_lsp.errors import BackendError, DgLspError
from dg_lsp.postprocess.candidate import Candidate
from dg_lsp.server import actions, rewriting
from dg_lsp.server.documents import Documents
from dg_lsp.server.edits import inline_item
from dg_lsp.server.ignored import Ignored
from dg_lsp.server.lines import Encoding
from dg_lsp.server.options import parse_options
from dg_lsp.server.protocol import Protocol
from dg_lsp.server.transport import StdoutWriter, accept_one, bodies, stdin_reader
from dg_lsp.settings import Settings

NUM_INVOKED = 3
"""Candidates when the user asks; automatic requests get one."""

OpenEngine = Callable[[Settings], Engine]


class Server(LanguageServer):
    """What one client's session holds."""

    protocol: Protocol

    def __init__(self, open_engine: OpenEngine, settings: Settings) -> None:
        super().__init__("dg-lsp", __version__, protocol_cls=Protocol)
        self.protocol.on_trouble = partial(self.log, types.MessageType.Warning)
        self.documents = Documents(Encoding.UTF16)
        self.settings = settings
        self.ignored = Ignored()
        self.rewrites: dict[str, asyncio.Future[RewriteResult]] = {}
        """What is being rewritten, by document: a change of it makes the result useless."""
        self._left_out: set[tuple[str, Why]] = set()
        self.complaints: tuple[str, ...] = ()
        """Options that could not be taken; said once the client listens."""
        self.exit_code: int | None = None
        """Set by `exit`, which ends the session."""
        self._open_engine = open_engine
        self._worker: Worker | None = None

    def log(self, kind: types.MessageType, message: str) -> None:
        """One line in the client's log of this server."""
        self.window_log_message(types.LogMessageParams(kind, message))

    def show(self, kind: types.MessageType, message: str) -> None:
        """One line that the user sees; for what is said once a session."""
        self.window_show_message(types.ShowMessageParams(kind, message))
        self.log(kind, message)

    def report_server_error(self, error: Exception, source: type[Exception]) -> None:
        """Fellow of `log` for what pygls caught: names the kind only, for the message may quote a buffer."""
        self.log(types.MessageType.Error, f"{source.__name__}: {type(error).__name__}")

    async def load_model(self) -> None:
        """Has the model opened by its own thread, and says how that went."""
        began = time.monotonic()
        self._worker = Worker(partial(self._open_engine, self.settings), self.settings.fill)
        ready = asyncio.wrap_future(self._worker.ready)
        [engine] = await asyncio.gather(ready, return_exceptions=True)
        if isinstance(engine, asyncio.CancelledError):
            raise engine
        if isinstance(engine, BaseException):
            self.show(types.MessageType.Error, f"dg-lsp has no model: {_said(engine)}")
        else:
            seconds = time.monotonic() - began
            self.log(types.MessageType.Info, f"dg-lsp {__version__}: {engine.spec.name} ready after {seconds:.2f} s")

    async def fill(self, request: FillRequest) -> tuple[Candidate, ...]:
        """The engine's candidates, best first; none when it has trouble.

        Raises:
            asyncio.CancelledError: by the client, or by a newer request of the document; the engine stops too.
        """
        if self._worker is None:
            self.log(types.MessageType.Warning, "inline completion asked for before initialized")
            return ()
        job = asyncio.wrap_future(self._worker.submit(request))
        [result] = await asyncio.gather(job, return_exceptions=True)
        if isinstance(result, asyncio.CancelledError):
            raise result
        if isinstance(result, BaseException):
            # why the model could not be opened was said when that became known
            if result is not self._worker.ready.exception():
                self.log(types.MessageType.Error, f"fill failed: {_said(result)}")
            return ()
        return result.candidates

    async def rewrite(self, request: RewriteRequest, on_step: Callable[[Progress], None]) -> RewriteResult:
        """The engine's rewrite; `on_step` is called by the model's thread.

        Raises:
            asyncio.CancelledError: by whoever waits, or by a newer rewrite of the document; the engine stops too.
            RequestError, BackendError, ModelError: as the engine does.
        """
        if self._worker is None:
            raise BackendError("the model is not loaded yet: try again in a moment")
        return await asyncio.wrap_future(self._worker.submit_rewrite(request, on_step))

    def client_knows(self, command: str) -> bool:
        """Whether the client says that it has this command of its own."""
        experimental = self.client_capabilities.experimental
        ours = experimental.get("dgLsp") if isinstance(experimental, dict) else None
        return isinstance(ours, dict) and command in (ours.get("commands") or ())

    def is_left_out(self, snapshot: Snapshot) -> bool:
        """Whether the model must not see this buffer; why is said once."""
        why = Exclusion(self.settings.exclude).why(snapshot)
        if why is None and self.settings.exclude.gitignored and self.ignored.has(snapshot.uri):
            why = Why.IGNORED
        if why is None:
            return False
        if (snapshot.uri, why) not in self._left_out:
            self._left_out.add((snapshot.uri, why))
            self.log(types.MessageType.Info, f"nothing is offered in {snapshot.uri}: {why}")
        return True

    def close(self) -> None:
        """Stops the model."""
        if self._worker is not None:
            self._worker.close()


def create_server(open_engine: OpenEngine, settings: Settings) -> Server:
    """A server with its handlers, not yet connected to anybody."""
    server = Server(open_engine, settings)
    server.feature(types.INITIALIZE)(initialize)
    server.feature(types.INITIALIZED)(initialized)
    server.feature(types.EXIT)(leave)
    server.feature(types.TEXT_DOCUMENT_DID_OPEN)(did_open)
    server.feature(types.TEXT_DOCUMENT_DID_CHANGE)(did_change)
    server.feature(types.TEXT_DOCUMENT_DID_CLOSE)(did_close)
    # pygls advertises inline completion only when it is given options
    server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())(inline_completion)
    actions.register(server)
    rewriting.register(server)
    return server


def initialize(ls: Server, params: types.InitializeParams) -> None:
    """Agrees on units and settings; pygls answers with the capabilities."""
    ls.documents = Documents(Encoding(ls.workspace.position_encoding or Encoding.UTF16))
    ls.settings, ls.complaints = parse_options(params.initialization_options, ls.settings)
    folders = [folder.uri for folder in params.workspace_folders or ()]
    ls.ignored = Ignored(folders or [uri for uri in (params.root_uri,) if uri])


async def initialized(ls: Server, _params: types.InitializedParams) -> None:
    """The client listens: complains about its options, then loads the model."""
    if ls.complaints:
        ls.show(types.MessageType.Error, "dg-lsp settings: " + "; ".join(ls.complaints))
    await ls.load_model()


def leave(ls: Server, _params: None) -> None:
    """Ends the session; code 1 when `shutdown` did not come before."""
    ls.exit_code = 0 if ls.protocol.is_shut_down else 1


def did_open(ls: Server, params: types.DidOpenTextDocumentParams) -> None:
    """Takes the buffer over."""
    ls.documents.open(params.text_document)


def did_change(ls: Server, params: types.DidChangeTextDocumentParams) -> None:
    """Edits the buffer."""
    if not ls.documents.change(params.text_document, params.content_changes):
        ls.log(types.MessageType.Warning, f"change of a document that is not open: {params.text_document.uri}")
    if (job := ls.rewrites.get(params.text_document.uri)) is not None:
        job.cancel()


def did_close(ls: Server, params: types.DidCloseTextDocumentParams) -> None:
    """Forgets the buffer."""
    ls.documents.close(params.text_document.uri)


async def inline_completion(ls: Server, params: types.InlineCompletionParams) -> types.InlineCompletionList:
    """Ghost text at the cursor."""
    cursor = ls.documents.cursor(params)
    if cursor is None:
        ls.log(types.MessageType.Warning, f"completion in a document that is not open: {params.text_document.uri}")
        return types.InlineCompletionList(items=[])
    is_invoked = params.context.trigger_kind is types.InlineCompletionTriggerKind.Invoked
    is_unwanted = not is_invoked and Place.at(cursor.snapshot.text, cursor.offset).is_deep_inside_word
    if is_unwanted or ls.is_left_out(cursor.snapshot):
        return types.InlineCompletionList(items=[])
    request = FillRequest(cursor.snapshot, cursor.offset, num_candidates=NUM_INVOKED if is_invoked else 1)
    candidates = await ls.fill(request)
    if not is_invoked:
        candidates = tuple(one for one in candidates if one.chance >= ls.settings.fill.min_chance)
    return types.InlineCompletionList([inline_item(one, cursor, ls.documents.encoding) for one in candidates])


def serve_stdio(open_engine: OpenEngine, settings: Settings) -> int:
    """Serves the client on standard input and output until it leaves; returns the process's exit code."""
    _quieten()
    with closing(StdoutWriter()) as writer:

        async def session() -> int:
            return await _serve(create_server(open_engine, settings), stdin_reader(), writer)

        return asyncio.run(session())


def serve_tcp(host: str, port: int, open_engine: OpenEngine, settings: Settings) -> int:
    """Serves the first client that connects until it leaves; returns the process's exit code.

    Raises:
        UsageError: the address cannot be listened on.
    """
    _quieten()

    async def session() -> int:
        reader, writer = await accept_one(host, port)
        try:
            return await _serve(create_server(open_engine, settings), reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    return asyncio.run(session())


async def _serve(server: Server, reader: asyncio.StreamReader, writer: StdoutWriter | asyncio.StreamWriter) -> int:
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


def _quieten() -> None:
    """pygls logs whole messages, buffers included; nothing of that may reach standard error."""
    logger = logging.getLogger("pygls")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


def _said(error: BaseException) -> str:
    """Our own errors speak for themselves; of others only the kind is named, for they may quote a buffer."""
    return str(error) if isinstance(error, DgLspError) else type(error).__name__
