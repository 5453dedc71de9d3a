"""One client's session: its documents, settings and status. No text of a buffer and no completion reaches a log."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from dg_lsp import __version__
from dg_lsp.canvas.fim import takes_snippets
from dg_lsp.canvas.spec import FimOrder
from dg_lsp.context.document import Snapshot
from dg_lsp.context.snippets import NO_SNIPPETS, Snippets
from dg_lsp.engine.audit import AuditLog
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest, Priority, RewriteRequest
from dg_lsp.engine.request_queue import OnStep
from dg_lsp.engine.resident_models import AnyScheduler, OpenScheduler, ResidentModels
from dg_lsp.engine.result import FillResult, RewriteResult
from dg_lsp.engine.scheduler import ModelTime, ready_engine
from dg_lsp.engine.ttfue import Outcome, Usage, Verdict
from dg_lsp.errors import BackendError, DgLspError, RemoteError, RequestError
from dg_lsp.server.acceptance import Acceptance, Followed
from dg_lsp.server.context_provider import ContextProvider
from dg_lsp.server.documents import NOTEBOOKS, DocumentStore
from dg_lsp.server.exclusion import WorkspaceExclusion
from dg_lsp.server.explanation import explain
from dg_lsp.server.protocol import Protocol
from dg_lsp.server.status import Once, State, Status, canvas_sender
from dg_lsp.settings import Settings, parse_settings

NOTHING: Mapping[str, Any] = {}
T = TypeVar("T")
FIRST_CHARS = 2048
"""Characters of a file that are decoded when it is opened; with them the window of a prompt begins at the file's."""


class Server(LanguageServer):
    """The session of one client."""

    protocol: Protocol

    def __init__(
        self,
        open_scheduler: OpenScheduler[AnyScheduler],
        settings: Settings,
        over: Mapping[str, Any] = NOTHING,
        usage: Usage | None = None,
    ) -> None:
        """`over` is a settings tree that the client's settings do not change, that of the command line.

        `usage` counts the outcomes of all sessions that share it; without it, those of this session.
        """
        super().__init__("dg-lsp", __version__, notebook_document_sync=NOTEBOOKS, protocol_cls=Protocol)
        self.protocol.on_error = partial(self.log, types.MessageType.Warning)
        self.settings = settings
        self.documents = DocumentStore()
        self.exclusion = WorkspaceExclusion(settings.privacy)
        self.context_provider = ContextProvider(self.documents, self.exclusion)
        self.acceptance = Acceptance(self.documents, self._record_outcome)
        self.usage = usage or Usage()
        self.status = Status(
            self.protocol.notify, numbers=lambda: {**self.acceptance.counts, "today": self.usage.edits_today()}
        )
        self.active_document = ""
        """URI of the document with the focus, if the client reports it. It may not be open yet."""
        self.sends_canvases = False
        """The client requested the notification `dg-lsp/denoising` after each pass over a canvas."""
        self.rewrites: dict[str, asyncio.Future[RewriteResult]] = {}
        """Running rewrites by document."""
        self._pauses: dict[str, asyncio.Future[None]] = {}
        """The last pause before an automatic completion by document, which ends where its pause is cancelled."""
        self.initial_errors: tuple[str, ...] = ()  # settings that `initialize` refused, shown after `initialized`
        self.exit_code: int | None = None  # set by `exit`, which ends the session
        self._cursors: dict[str, int] = {}  # last known offsets by open document; one that is too large means the end
        self._reported = Once()
        self._open_scheduler = open_scheduler
        self._over = over
        self._models: ResidentModels[AnyScheduler] | None = None
        self._closing = asyncio.Lock()
        """Held while models are replaced: the new ones are opened when the old ones have freed their memory."""
        self._audit_log: AuditLog | None = None
        self._settlement: asyncio.TimerHandle | None = None

    def log(self, kind: types.MessageType, message: str) -> None:
        """Writes one line to the client's log."""
        self.window_log_message(types.LogMessageParams(kind, message))

    def show(self, kind: types.MessageType, message: str) -> None:
        """Shows one line to the user, and logs it."""
        self.window_show_message(types.ShowMessageParams(kind, message))
        self.log(kind, message)

    def log_once(self, message: str) -> None:
        """Writes one line to the client's log, if it is not there yet."""
        if self._reported.is_new(message):
            self.log(types.MessageType.Info, message)

    def show_settings_errors(self, errors: Sequence[str]) -> None:
        """Shows each error once a session."""
        if new := [error for error in errors if self._reported.is_new(error)]:
            self.show(types.MessageType.Error, "dg-lsp settings: " + "; ".join(new))

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
            models = self._models = ResidentModels.open(self._open_scheduler, parse_settings(self._over, self.settings))
            models.listen(self._audit_log)
        for scheduler, purpose in zip(models.schedulers, ("", " for rewrites"), strict=False):
            engine = await _outcome(scheduler.ready)
            if models is not self._models:  # other settings have replaced it
                return
            if isinstance(engine, BaseException):
                self._report_missing(engine, purpose)
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

    def _report_missing(self, error: BaseException, purpose: str) -> None:
        self.show(types.MessageType.Error, f"dg-lsp has no model{purpose}: {_error_message(error)}")
        if not purpose:
            self.status.update(state=State.ERROR, message=_error_message(error))

    async def fill(self, request: FillRequest, followed: Followed | None = None) -> FillResult | None:
        """The result of the engine; None after an error. A completion that is followed ends with a request that fails.

        Raises:
            asyncio.CancelledError: by the client, by a newer request of the document or by a key during
                `completion.debounce_ms`; the engine stops too.
        """
        try:
            if followed is not None:
                await self._pause(request)
            result = await self._fill(request, None if followed is None else followed.id)
        except asyncio.CancelledError:
            if followed is not None:
                self.acceptance.drop(followed, Verdict.CANCELLED)
            raise
        if self.language_problem(request.snapshot.language):  # the model was loading at the request
            result = None
        if result is None and followed is not None:
            self.acceptance.drop(followed, Verdict.FAILED)
        self.status.explain(self._missing(request, result))
        return result

    def _missing(self, request: FillRequest, result: FillResult | None) -> str:
        """Why there is no completion that the user requested; empty if there is one, or none was requested."""
        engine = self.engine()
        if request.priority is not Priority.INVOKED or (result is not None and result.candidates):
            return ""
        if result is None or engine is None:
            return "The model gives no answer: see the log."
        return explain(result, self.settings.completion, engine).sentence

    async def _pause(self, request: FillRequest) -> None:
        """Waits for `completion.debounce_ms` before an automatic completion, or ends it: see `cancel_stale`."""
        uri, seconds = request.snapshot.uri, self.settings.completion.debounce_ms / 1e3
        self._end_pause(uri)
        if seconds and request.priority is Priority.TYPED:
            pause = self._pauses[uri] = asyncio.ensure_future(asyncio.sleep(seconds))
            await pause

    def _end_pause(self, uri: str) -> None:
        if (pause := self._pauses.pop(uri, None)) is not None:
            pause.cancel()

    async def _fill(self, request: FillRequest, name: str | None) -> FillResult | None:
        if self._models is None:
            self.log(types.MessageType.Warning, "no completion: no model is open yet")
            return None
        scheduler = self._models.completion
        with self.status.busy():
            request = replace(request, endpoint=types.TEXT_DOCUMENT_INLINE_COMPLETION, id=name or "")
            result = await _outcome(scheduler.submit(request, self._canvas_sender(request.snapshot.uri)))
        if isinstance(result, BaseException):
            # an error of loading has been reported by `load_model`
            if result is not scheduler.ready.exception():
                self._report_error(result)
            return None
        if self.documents.get(request.snapshot.uri) is not None:
            self._cursors[request.snapshot.uri] = request.offset - request.snapshot.num_before
        self._report_success(result)
        return result

    def warm_up(self, uri: str, offset: int | None = None) -> None:
        """Decodes a prompt in idle time, for the next completion in a document.

        Without an offset, that of the last cursor; where no cursor is known, the beginning of the file: with the text
        before the cursor first, it is the beginning of every prompt there.
        """
        document, engine, models = self.documents.get(uri), self.engine(), self._models
        if document is None or models is None or not self.is_served(document.snapshot()):
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
        models.completion.warm_up(request)

    async def rewrite(
        self, request: RewriteRequest, on_step: OnStep | None = None, *, is_automatic: bool = False
    ) -> RewriteResult:
        """The rewrite of an engine, for automatic ones that of completions. `on_step` runs in the model's thread.

        Raises:
            asyncio.CancelledError: by the caller, or by a newer rewrite of the document; the engine stops too.
            RequestError, BackendError, ModelError: as the engine does; RequestError also if the model does not know the
                language.
        """
        models = self._models  # other settings may replace it meanwhile
        if models is None:
            raise BackendError("the model is not loaded yet: try again in a moment")
        scheduler = models.completion if is_automatic else models.scheduler_for(request)
        request = replace(request, endpoint="dg-lsp.rewrite")
        result = await asyncio.wrap_future(scheduler.submit(request, self._observers(request, on_step)))
        engine = ready_engine(scheduler.ready)  # it may have been loading at the request
        if engine is not None and (problem := engine.spec.language_problem(request.snapshot.language)):
            raise RequestError(problem)
        return result

    def cancel_stale(self, uri: str) -> None:
        """Stops the rewrite of a document that has changed or was closed, and a completion that waits for a pause."""
        self._end_pause(uri)
        if (job := self.rewrites.get(uri)) is not None:
            job.cancel()

    def forget(self, uri: str) -> None:
        """Closes a document. Of its text stay recent edits, and snippets in the prompt of an open one."""
        self.context_provider.close(uri)
        self.acceptance.close(uri)
        self.documents.close(uri)
        self.cancel_stale(uri)
        self._cursors.pop(uri, None)

    def _observers(self, request: RewriteRequest, on_step: OnStep | None) -> OnStep | None:
        """Calls `on_step`, and sends the canvases of gaps if the client requested canvases."""
        send = self._canvas_sender(request.snapshot.uri) if request.gaps else None
        if on_step is None or send is None:
            return on_step or send

        def both(progress: Progress) -> None:
            on_step(progress)
            send(progress)

        return both

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
        """Reports whether the active document is excluded, or in a language that the model does not know."""
        document = self.documents.get(self.active_document)
        if document is None or not self.status.state.is_usable:
            return
        if self.is_excluded(document.snapshot()):
            self.status.update(state=State.EXCLUDED, message="excluded file")
        elif problem := self.language_problem(document.language):
            self.status.update(state=State.UNSUPPORTED, message=problem)
        else:
            self.status.update(state=State.READY, message="")

    def focus(self, uri: str) -> None:
        """Makes a document the active one: the client reports that, or requests a completion in it."""
        self.active_document = uri
        self.update_status()

    def is_served(self, snapshot: Snapshot) -> bool:
        """Whether completions and rewrites are offered in this document. Logs each reason against it once."""
        return not self.is_excluded(snapshot) and not self.language_problem(snapshot.language)

    def is_excluded(self, snapshot: Snapshot) -> bool:
        """Whether the model must not see this document. Logs each reason once."""
        reason = self.exclusion.exclusion_reason(snapshot)
        if reason is not None:
            self.log_once(f"no completions in {snapshot.uri}: {reason}")
        return reason is not None

    def language_problem(self, language_id: str, *, of_rewrites: bool = False) -> str:
        """Why the model of completions, or of rewrites, does nothing in a language: `ModelSpec.language_problem`.

        Empty while the model loads. Logs each language once.
        """
        engine = self.engine(of_rewrites=of_rewrites)
        problem = "" if engine is None else engine.spec.language_problem(language_id)
        if problem:
            self.log_once(f"no completions in {language_id} files: {problem}")
        return problem

    def engine(self, *, of_rewrites: bool = False) -> Engine | None:
        """That of completions, or of rewrites by an instruction; None while it loads and if it cannot be loaded."""
        models = self._models
        return None if models is None else ready_engine((models.rewrite if of_rewrites else models.completion).ready)

    def snippets(self, snapshot: Snapshot, offset: int, *, of_rewrites: bool = False) -> Snippets:
        """Code of other files for a cursor, if the settings allow it and the model takes it: see `language_problem`."""
        engine, settings = self.engine(of_rewrites=of_rewrites), self.settings.context
        is_allowed = engine is not None and takes_snippets(engine.spec, settings.enabled)
        return self.context_provider.snippets(snapshot, offset, settings) if is_allowed else NO_SNIPPETS

    def settle(self) -> None:
        """Judges the completions that are due, and plans to do so again when the next one is."""
        if self._settlement is not None:
            self._settlement.cancel()
            self._settlement = None
        self.acceptance.settle()
        if (seconds := self.acceptance.seconds_until_due) is not None and self.exit_code is None:
            self._settlement = asyncio.get_running_loop().call_later(seconds, self.settle)
        self.status.update()

    def _record_outcome(self, outcome: Outcome) -> None:
        self.usage.add(outcome)
        if self._audit_log is not None:
            self._audit_log.write(outcome)

    def stats(self) -> dict[str, Any]:
        """State and counts of the session, seconds of model time, and today's numbers."""
        self.settle()
        schedulers = self._models.schedulers if self._models is not None else ()
        time_spent = sum((one.model_time for one in schedulers), ModelTime())
        return {
            "state": self.status.state.value,
            "message": self.status.message,
            "rewriteModel": self.status.rewrite_model,
            **self.acceptance.counts,
            "modelSeconds": time_spent.total,
            "staleSeconds": time_spent.stale,
            "speculationSeconds": time_spent.speculative,
            "today": self.usage.summary_today(),
        }

    def close(self) -> None:
        """Ends the session: judges its completions as they are, and closes its share of the models."""
        if self._settlement is not None:
            self._settlement.cancel()
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

    def _canvas_sender(self, uri: str) -> OnStep | None:
        """What sends the canvases of completions, if the client requested them."""
        if self._models is None or not self.sends_canvases:
            return None
        return canvas_sender(self.protocol.notify, self._models.completion.frame, uri)


async def _outcome(submitted: Future[T]) -> T | BaseException:
    """The result or the error of a job. Raises `CancelledError` if the job or the caller was cancelled."""
    [outcome] = await asyncio.gather(asyncio.wrap_future(submitted), return_exceptions=True)
    if isinstance(outcome, asyncio.CancelledError):
        raise outcome
    return outcome


def _error_message(error: BaseException) -> str:
    """The message of an error of ours; only the type of any other error, whose message may quote a buffer."""
    return str(error) if isinstance(error, DgLspError) else type(error).__name__
