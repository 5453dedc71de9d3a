"""One client's session: its documents, settings and status. No text of a buffer and no completion reaches a log."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from dg_lsp import __version__
from dg_lsp.canvas.prompt_format import takes_snippets
from dg_lsp.canvas.spec import FimOrder
from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Cause, Eligibility, Exclusion
from dg_lsp.context.window import CHARS_PER_TOKEN, NO_SNIPPETS, Snippets
from dg_lsp.engine.audit import AuditLog
from dg_lsp.engine.edit_source import NextEditRequest, NextEditResult
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest, FillResult, Frame, Priority, RewriteRequest, RewriteResult
from dg_lsp.engine.scheduler import ModelTime, OnFrame, OpenScheduler, ResidentModels, ready_engine
from dg_lsp.engine.ttfue import Outcome, Usage
from dg_lsp.errors import BackendError, DgLspError, RemoteError, RequestError
from dg_lsp.server.acceptance import Acceptance
from dg_lsp.server.context_provider import ContextProvider
from dg_lsp.server.documents import NOTEBOOKS, DocumentStore
from dg_lsp.server.next_edit import NextEditProvider
from dg_lsp.server.protocol import Protocol, read_messages
from dg_lsp.server.status import State, Status, denoising
from dg_lsp.server.transport import Streams
from dg_lsp.settings import Settings, parse_settings

NO_OVERRIDES: Mapping[str, Any] = {}
T = TypeVar("T")
MAX_UNSENT_BYTES = 1 << 24
"""Bytes that wait for a client that does not read; then the server reads no more of its messages."""
FIRST_CHARS = 2048
"""Characters at the beginning of a file that are decoded when it is opened. Every prompt near its beginning starts with
them, so the first completion there decodes the rest only."""


class Server(LanguageServer):
    """The session of one client."""

    protocol: Protocol

    def __init__(
        self,
        open_scheduler: OpenScheduler,
        settings: Settings,
        overrides: Mapping[str, Any] = NO_OVERRIDES,
        usage: Usage | None = None,
    ) -> None:
        """`overrides` is the settings tree of the command line, which wins over the client's settings.

        `usage` counts the outcomes of all sessions that share it; without it, those of this session.
        """
        super().__init__("dg-lsp", __version__, notebook_document_sync=NOTEBOOKS, protocol_cls=Protocol)
        self.protocol.on_error = partial(self.log, types.MessageType.Warning)
        self.settings = settings
        self.file_settings = settings
        """Without the options of the client."""
        self.documents = DocumentStore()
        self.exclusion = Exclusion(settings.privacy)
        self.context_provider = ContextProvider(self.documents, self.exclusion)
        self.acceptance = Acceptance(self.documents, self._record_outcome)
        self.next_edits = NextEditProvider(self.documents, self.exclusion, self._model_edits, self.acceptance.offer)
        self.usage = usage or Usage()
        self.status = Status(
            self.protocol.notify, numbers=lambda: {**self.acceptance.counts, "today": self.usage.edits_today()}
        )
        self.active_document = ""
        """URI of the document with the focus, if the client reports it. It may not be open yet."""
        self.is_restricted = False
        """The editor does not trust the workspace, so no test of it is run."""
        self.sends_canvases = False
        """The client requested the notification `dg-lsp/denoising` after each pass over a canvas."""
        self.commands: dict[str, asyncio.Future[Any]] = {}
        """The last rewrite, or completion of a block, in the present text of each document."""
        self._pauses: dict[str, asyncio.Future[None]] = {}
        """The pause before the last automatic completion of each document; cancelling it cancels the completion."""
        self.initial_errors: tuple[str, ...] = ()  # settings that `initialize` refused, shown after `initialized`
        self.exit_code: int | None = None  # set at the end, by `exit` or by `serve`
        self._cursors: dict[str, int] = {}  # last cursor of each open document; one beyond the end means the end
        self._reported: set[int] = set()
        """Hashes of messages that are shown or logged only once in a session."""
        self._open_scheduler = open_scheduler
        self._overrides = overrides
        self._models: ResidentModels | None = None
        self._closing = asyncio.Lock()
        """Held while models are replaced, because new models are opened after the old ones have freed their memory."""
        self._audit_log: AuditLog | None = None

    def log(self, kind: types.MessageType, message: str) -> None:
        """Writes one line to the client's log."""
        self.window_log_message(types.LogMessageParams(kind, message))

    def show(self, kind: types.MessageType, message: str) -> None:
        """Shows one line to the user, and logs it."""
        self.window_show_message(types.ShowMessageParams(kind, message))
        self.log(kind, message)

    def show_settings_errors(self, errors: Sequence[str]) -> None:
        """Shows each error once a session."""
        if new := [error for error in errors if self._is_new(error)]:
            self.show(types.MessageType.Error, "dg-lsp settings: " + "; ".join(new))

    def _is_new(self, message: str) -> bool:
        is_new = hash(message) not in self._reported
        self._reported.add(hash(message))
        return is_new

    def report_server_error(self, error: Exception, source: type[Exception]) -> None:
        """Logs the type of an error that pygls caught. Its message is left out: it may quote a buffer."""
        self.log(types.MessageType.Error, f"{source.__name__}: {type(error).__name__}")

    async def load_model(self) -> None:
        """Loads the models of the settings in place of the present ones, and reports the results to the client.

        The documents stay editable meanwhile: closing a model waits for its thread.
        """
        start = time.monotonic()
        async with self._closing:
            old, self._models = self._models, None
            self.status.update(state=State.LOADING, message="loading the model", rewrite_model="")
            if old is not None:
                await asyncio.to_thread(old.close)
            self._audit_log = self._open_audit_log()
            settings = parse_settings(self._overrides, self.settings)
            models = self._models = ResidentModels(self._open_scheduler, settings)
            models.listen(self._audit_log)
        for scheduler, purpose in zip(models.schedulers, ("", " for rewrites"), strict=False):
            engine = await _outcome(scheduler.ready)
            if models is not self._models:  # other settings have replaced it
                return
            if isinstance(engine, BaseException):
                self.show(types.MessageType.Error, f"dg-lsp has no model{purpose}: {_error_message(engine)}")
                if not purpose:
                    self.status.update(state=State.ERROR, message=_error_message(engine))
            else:
                self._report_ready(engine, purpose, time.monotonic() - start)

    def _report_ready(self, engine: Engine, purpose: str, seconds: float) -> None:
        if purpose:
            self.status.update(rewrite_model=engine.spec.name)
        else:
            self.status.update(state=State.READY, message="", model=engine.spec.name)
            self.update_status()
        message = f"dg-lsp {__version__}: {engine.spec.name}{purpose} ready after {seconds:.2f} s"
        self.log(types.MessageType.Info, message)

    async def pause(self, request: FillRequest) -> None:
        """Waits for `completion.debounce_ms` before an automatic completion; `cancel_stale` cancels the wait."""
        uri = request.snapshot.uri
        seconds = self.settings.completion.debounce_ms / 1e3
        if (older := self._pauses.pop(uri, None)) is not None:
            older.cancel()
        if seconds and request.priority is Priority.TYPED:
            pause = self._pauses[uri] = asyncio.ensure_future(asyncio.sleep(seconds))
            await pause

    async def fill(self, request: FillRequest) -> FillResult | None:
        """The result of the engine; None after an error, and if the model that was loading does not know the language.

        Raises:
            asyncio.CancelledError: by the client or by a newer request of the document; the engine stops too.
        """
        if self._models is None:
            self.log(types.MessageType.Warning, "no completion: no model is open yet")
            return None
        scheduler = self._models.completion
        was_loading = self.engine() is None
        with self.status.busy():
            result = await _outcome(self._models.submit(request, self._canvas_sender(request.snapshot.uri)))
        if isinstance(result, BaseException):
            # an error of loading has been reported by `load_model`
            if result is not scheduler.ready.exception():
                self._report_error(result)
            return None
        if self.documents.get(request.snapshot.uri) is not None:
            self._cursors[request.snapshot.uri] = request.offset - request.snapshot.num_before
        self._report_success(result)
        if was_loading and not self.eligibility(request.snapshot).is_served:
            return None
        return result

    def warm_up(self, uri: str, offset: int | None = None) -> None:
        """Decodes a prompt in idle time, for the next completion in a document.

        Without an offset, that of the last cursor; where no cursor is known, the beginning of the file: with the text
        before the cursor first, it is the beginning of every prompt there.
        """
        document = self.documents.get(uri)
        engine = self.engine()
        models = self._models
        if document is None or models is None or not self.eligibility(document.snapshot()).is_served:
            return
        snapshot = self.documents.snapshot(document)
        if offset is None:
            spec = engine.spec if engine is not None else None
            is_suffix_first = spec is not None and spec.fim is not None and spec.fim.order is FimOrder.SUFFIX_FIRST
            offset = self._cursors.get(uri, 0 if is_suffix_first else FIRST_CHARS)
        else:
            self._cursors[uri] = offset
        offset = min(snapshot.num_before + offset, len(snapshot.text))
        request = FillRequest(snapshot, offset, snippets=self.snippets(snapshot, offset))
        models.warm_up(request)

    async def rewrite(self, request: RewriteRequest) -> RewriteResult:
        """The result.

        Raises:
            asyncio.CancelledError: by the caller, or by a newer rewrite of the document; the engine stops too.
            RequestError, BackendError, ModelError: as the engine does; RequestError also if the model does not know the
                language.
        """
        models = self._models  # other settings may replace it meanwhile
        if models is None:
            raise BackendError("the model is not loaded yet: try again in a moment")
        scheduler = models.scheduler_for(request)
        request = replace(request, endpoint="dg-lsp.rewrite")
        on_frame = self._canvas_sender(request.snapshot.uri) if request.gaps else None
        result = await asyncio.wrap_future(models.submit(request, on_frame))
        engine = ready_engine(scheduler.ready)  # it may have been loading at the request
        if engine is not None and (problem := engine.spec.language_problem(request.snapshot.language)):
            raise RequestError(problem)
        return result

    async def _model_edits(self, request: NextEditRequest) -> NextEditResult | None:
        """See `AskModel`; raises as the model does."""
        models = self._models
        if models is None or (scheduler := models.edit_source) is None:
            return None
        if not self.eligibility(request.snapshot, of_rewrites=scheduler is models.rewrite).is_served:
            return None
        snippets = self.snippets(request.snapshot, request.cursor)
        request = replace(request, snippets=snippets, endpoint="dg-lsp.nextEdit")
        return await asyncio.wrap_future(models.submit(request))

    def cancel_stale(self, uri: str) -> None:
        """Stops the command in a document that has changed or was closed, and a completion that waits for a pause."""
        for work in (self._pauses.pop(uri, None), self.commands.pop(uri, None)):
            if work is not None:
                work.cancel()

    def open_documents(self, items: Iterable[types.TextDocumentItem], notebook: str = "") -> None:
        """Opens documents, or cells of the notebook with this URI."""
        for item in items:
            self.documents.open(item, notebook)
            self.cancel_stale(item.uri)
        self.update_status()

    def change_document(
        self,
        identifier: types.VersionedTextDocumentIdentifier,
        changes: Sequence[types.TextDocumentContentChangeEvent],
    ) -> None:
        """Edits a document, and ends what was requested for the text before."""
        document = self.documents.get(identifier.uri)
        if document is None:
            self.log(types.MessageType.Warning, f"change of a document that is not open: {identifier.uri}")
            return
        partial_changes = [change for change in changes if isinstance(change, types.TextDocumentContentChangePartial)]
        if partial_changes:
            self.context_provider.record_edit(document, partial_changes[-1].range.start.line)
        self.acceptance.settle()  # what is due is judged by the text before the change
        applied = self.documents.change(identifier, changes)
        is_accepted = self.acceptance.change(document.uri, [change for _, change in applied])
        if self.exclusion.is_excluded(document.snapshot()):
            self.next_edits.close(document.uri)
        else:
            self.next_edits.change(document.uri, document.lines, applied, is_accepted=is_accepted)
        self.settle()
        self.cancel_stale(document.uri)

    def close_documents(self, uris: Iterable[str]) -> None:
        """Closes documents. Their recent edits, and snippets of them in the prompt of an open document, are kept."""
        for uri in uris:
            self.context_provider.close(uri)
            self.acceptance.close(uri)
            self.next_edits.close(uri)
            self.documents.close(uri)
            self.cancel_stale(uri)
            self._cursors.pop(uri, None)
        self.update_status()
        self.settle()

    def configure(self, settings: Settings) -> bool:
        """Replaces the settings; True if the model must be loaded again."""
        old, self.settings = self.settings, settings
        self.exclusion.settings = settings.privacy
        if self._models is None:
            return False
        if old.model_key != settings.model_key or old.rewrite.model != settings.rewrite.model:
            return True
        if old.privacy != settings.privacy:
            self._audit_log = self._open_audit_log()
            self._models.listen(self._audit_log)
        if old.completion != settings.completion:
            self._models.configure(settings.completion)
        return False

    def update_status(self) -> None:
        """Reports whether the active document is open and excluded, or in a language that the model does not know."""
        if self.status.state in (State.LOADING, State.ERROR):
            return
        document = self.documents.get(self.active_document)
        eligibility = Eligibility() if document is None else self.eligibility(document.snapshot())
        self.status.update(state=State(eligibility.cause or State.READY), message=eligibility.reason)

    def focus(self, uri: str) -> None:
        """Makes a document the active one, because the client reports its focus or requests a completion in it."""
        self.active_document = uri
        self.update_status()

    def eligibility(self, snapshot: Snapshot, typed_at: int | None = None, *, of_rewrites: bool = False) -> Eligibility:
        """Whether the model of completions, or of rewrites, is used in a document, or at an offset while a user types.

        A model that is loading counts as one that knows every language. Each reason against a document is logged once.
        """
        engine = self.engine(of_rewrites=of_rewrites)
        language = snapshot.language
        problem = "" if engine is None else engine.spec.language_problem(language)
        eligibility = Eligibility.of_document(snapshot, self.exclusion, problem)
        if not eligibility.is_served:
            where = snapshot.uri if eligibility.cause is Cause.EXCLUDED else f"{language} files"
            message = f"no completions in {where}: {eligibility.reason}"
            if self._is_new(message):
                self.log(types.MessageType.Info, message)
        if typed_at is None:
            return eligibility
        return eligibility.while_typing(snapshot, typed_at, self.settings.completion.trigger)

    def report_ineligible(self, eligibility: Eligibility, snapshot: Snapshot, offset: int) -> None:
        """Shows why a completion that the user requested is not computed, and records that in the audit log."""
        self.status.explain(eligibility.sentence)
        if self._audit_log is not None:
            request = FillRequest(snapshot, offset, endpoint=types.TEXT_DOCUMENT_INLINE_COMPLETION)
            self._audit_log.write_unserved(request, "ineligible", str(eligibility.cause))

    def engine(self, *, of_rewrites: bool = False) -> Engine | None:
        """The engine of completions, or of rewrites by an instruction; None while it loads and if loading failed."""
        models = self._models
        return None if models is None else ready_engine((models.rewrite if of_rewrites else models.completion).ready)

    def snippets(self, snapshot: Snapshot, offset: int, *, of_rewrites: bool = False) -> Snippets:
        """Code of other places for a cursor, if the settings allow it and the model takes it: see `eligibility`."""
        engine = self.engine(of_rewrites=of_rewrites)
        if engine is None or not takes_snippets(engine.spec, self.settings.context.enabled):
            return NO_SNIPPETS
        num_chars = engine.spec.max_prompt_tokens * CHARS_PER_TOKEN
        return self.context_provider.snippets(snapshot, offset, num_chars)

    def settle(self) -> None:
        """Judges the completions that are due, and displays the counts."""
        self.acceptance.settle()
        self.status.update()

    def _record_outcome(self, outcome: Outcome) -> None:
        self.usage.add(outcome)
        if self._audit_log is not None:
            self._audit_log.write(outcome)

    def stats(self) -> dict[str, Any]:
        """State and counts of the session, seconds of model time, and today's useful edits."""
        self.settle()
        schedulers = self._models.schedulers if self._models is not None else ()
        time_spent = sum((scheduler.model_time for scheduler in schedulers), ModelTime())
        return {
            "state": self.status.state.value,
            "message": self.status.message,
            "rewriteModel": self.status.rewrite_model,
            **self.status.numbers(),
            "modelSeconds": time_spent.total,
            "staleSeconds": time_spent.stale,
            "speculationSeconds": time_spent.speculative,
        }

    async def serve(self, connection: AbstractAsyncContextManager[Streams]) -> int:
        """Handles messages until the client disconnects; returns the exit code of the session."""
        async with connection as (reader, writer, first):
            writer.transport.set_write_buffer_limits(MAX_UNSENT_BYTES)
            self.protocol.set_writer(writer)
            try:
                async for body in read_messages(reader, self.protocol.on_error, first=first):
                    self.protocol.receive(body)
                    # the handler starts before the next message is read, so it sees the buffer as it was at its request
                    await asyncio.sleep(0)
                    if self.exit_code is not None:
                        break
                    with suppress(ConnectionError):  # the reader detects the end of the connection
                        await writer.drain()
            finally:
                self.close()
                await _end_tasks()
            if self.exit_code is None:
                self.exit_code = int(not self.protocol.is_shut_down)
            return self.exit_code

    def close(self) -> None:
        """Ends the session: judges its completions now, and releases its models."""
        self.acceptance.close()
        if self._models is not None:
            self._models.close()

    def _open_audit_log(self) -> AuditLog | None:
        loop = asyncio.get_running_loop()

        def warn(message: str) -> None:
            loop.call_soon_threadsafe(self.log, types.MessageType.Warning, message)

        return AuditLog.of(self.settings.privacy, warn)

    def _report_error(self, error: BaseException) -> None:
        """Logs an error. Errors of a remote server repeat at every key, so only the first one is logged."""
        if isinstance(error, RemoteError):
            is_repeated = self.status.state is State.ERROR
            self.status.update(state=State.ERROR, message=_error_message(error))
            if is_repeated:
                return
        self.log(types.MessageType.Error, f"fill failed: {_error_message(error)}")

    def _report_success(self, result: FillResult) -> None:
        if self.status.state is State.ERROR and not (result.is_unfinished or result.is_cached):
            self.status.update(state=State.READY, message="")
            self.update_status()
            self.log(types.MessageType.Info, "the server answers again")

    def _canvas_sender(self, uri: str) -> OnFrame | None:
        """What the model's thread calls after each pass; None if the client has not requested canvases."""
        if not self.sends_canvases:
            return None
        loop = asyncio.get_running_loop()

        def send(frame: Frame) -> None:
            if frame.cells:  # a server shows no canvas
                loop.call_soon_threadsafe(self.protocol.notify, "dg-lsp/denoising", denoising(frame, uri))

        return send


async def _end_tasks() -> None:
    """Cancels pending tasks, and sends their answers."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    # a finished task answers in a callback, which runs in the loop's next iteration
    await asyncio.sleep(0)


async def _outcome(submitted: Future[T]) -> T | BaseException:
    """The result or the error of a job. Raises `CancelledError` if the job or the caller was cancelled."""
    [outcome] = await asyncio.gather(asyncio.wrap_future(submitted), return_exceptions=True)
    if isinstance(outcome, asyncio.CancelledError):
        raise outcome
    return outcome


def _error_message(error: BaseException) -> str:
    """The message of a dg-lsp error; of any other error only the type, because its message may quote a buffer."""
    return str(error) if isinstance(error, DgLspError) else type(error).__name__
