"""One client's session: its documents, settings and status, and its share of the model.

No text of a buffer and no completion reaches a log.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any
from uuid import uuid4

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from dg_lsp import __version__
from dg_lsp.canvas.fim import takes_extra
from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import ExclusionReason
from dg_lsp.context.snippets import NO_SNIPPETS, Snippets
from dg_lsp.engine.audit import AuditLog
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest, RewriteRequest
from dg_lsp.engine.result import FillResult, Frame, RewriteResult
from dg_lsp.engine.scheduler import ModelTime, Scheduler, SchedulerSession
from dg_lsp.errors import BackendError, DgLspError, RemoteError
from dg_lsp.postprocess.validate import Candidate, Reason
from dg_lsp.server.context_provider import ContextProvider
from dg_lsp.server.documents import DocumentStore
from dg_lsp.server.exclusion import WorkspaceExclusion
from dg_lsp.server.transport import Protocol
from dg_lsp.settings import Settings

MAX_REMEMBERED = 256
"""Items that may still be accepted. Editors show one at a time."""


@dataclass(slots=True)
class Acceptance:
    """Counts offered, shown and accepted items. Editors that report nothing leave all but `offered` at 0."""

    offered: int = 0
    shown: int = 0
    accepted: int = 0
    """Items that were accepted at least in part."""
    chars: int = 0
    """UTF-16 units accepted."""
    _lengths: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """UTF-16 units of every remembered item."""
    _accepted_lengths: dict[str, int] = field(default_factory=dict)
    _shown_names: set[str] = field(default_factory=set)

    def offer(self, text: str) -> str:
        """Registers an item that is sent to the editor; returns its name."""
        name = uuid4().hex
        self.offered += 1
        self._lengths[name] = len(text.encode("utf-16-le")) // 2
        while len(self._lengths) > MAX_REMEMBERED:
            oldest, _ = self._lengths.popitem(last=False)
            self._accepted_lengths.pop(oldest, None)
            self._shown_names.discard(oldest)
        return name

    def show(self, name: str) -> None:
        """The editor shows the item. Each item counts once."""
        if name in self._lengths and name not in self._shown_names:
            self._shown_names.add(name)
            self.shown += 1

    def accept(self, name: str, length: int | None = None) -> None:
        """The user accepted the item, or its first `length` UTF-16 units."""
        if name not in self._lengths:
            return
        whole, before = self._lengths[name], self._accepted_lengths.get(name, 0)
        accepted = max(before, whole if length is None else min(max(0, length), whole))
        self.accepted += not before and accepted > 0
        self.chars += accepted - before
        self._accepted_lengths[name] = accepted


STATUS_METHOD = "didChangeStatus"


class State(StrEnum):
    """Whether the server offers completions."""

    LOADING = "loading"
    READY = "ready"
    EXCLUDED = "excluded"
    ERROR = "error"


_KINDS = {State.LOADING: "Normal", State.READY: "Normal", State.EXCLUDED: "Inactive", State.ERROR: "Error"}


@dataclass(slots=True)
class Status:
    """The status that the client displays. Each change is sent once."""

    send: Callable[[str, Any], None]
    is_enabled: bool = False
    """The client displays it: such clients send `editorInfo`."""
    state: State = State.LOADING
    message: str = ""
    model: str = ""
    last_ms: float | None = None
    """Duration of the last request in milliseconds."""
    counts: Callable[[], dict[str, int]] = dict
    _num_running: int = 0
    _last_sent: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Reports the server as busy inside, and measures how long it takes if nothing is raised."""
        start = time.monotonic()
        self._num_running += 1
        self.update()
        try:
            yield
            self.last_ms = round(1e3 * (time.monotonic() - start), 1)
        finally:
            self._num_running -= 1
            self.update()

    def update(self, **changes: Any) -> None:
        """Sets the fields given, and sends the status if it differs from the last one sent."""
        for name, value in changes.items():
            setattr(self, name, value)
        status = {
            "busy": self._num_running > 0 or self.state is State.LOADING,
            "message": self.message,
            "kind": _KINDS[self.state],
            "dgLsp": {"state": self.state.value, "model": self.model, "lastMs": self.last_ms, **self.counts()},
        }
        if self.is_enabled and status != self._last_sent:
            self._last_sent = status
            self.send(STATUS_METHOD, status)


DENOISING = "dg-lsp/denoising"
"""Notification after each pass over a canvas, sent to clients that requested it."""
OpenScheduler = Callable[[Settings], Scheduler | SchedulerSession]
"""Begins to load the model of these settings, or joins one that is loaded already."""


class Server(LanguageServer):
    """The session of one client."""

    protocol: Protocol

    def __init__(self, open_scheduler: OpenScheduler, settings: Settings) -> None:
        super().__init__("dg-lsp", __version__, protocol_cls=Protocol)
        self.protocol.on_error = partial(self.log, types.MessageType.Warning)
        self.settings = settings
        self.documents = DocumentStore()
        self.exclusion = WorkspaceExclusion(settings.privacy)
        self.context_provider = ContextProvider(self.documents, self.exclusion)
        self.acceptance = Acceptance()
        self.status = Status(self.protocol.notify, counts=self._counts)
        self.workspace_folders: tuple[str, ...] = ()
        """URIs."""
        self.active_document = ""
        """URI of the document with the focus, if the client reports it. It may not be open yet."""
        self.sends_canvases = False
        """The client requested `dg-lsp/denoising`."""
        self.rewrites: dict[str, asyncio.Future[RewriteResult]] = {}
        """Running rewrites by document. A change of the document cancels its rewrite."""
        self.initial_errors: tuple[str, ...] = ()
        """Invalid settings found by `initialize`, shown after `initialized`."""
        self.exit_code: int | None = None
        """Set by `exit`, which ends the session."""
        self._shown_errors: set[str] = set()
        self._logged_exclusions: set[tuple[str, ExclusionReason]] = set()
        self._open_scheduler = open_scheduler
        self._scheduler: Scheduler | SchedulerSession | None = None
        self._audit_log: AuditLog | None = None
        self._is_remote_failing = False

    def log(self, kind: types.MessageType, message: str) -> None:
        """Writes one line to the client's log."""
        self.window_log_message(types.LogMessageParams(kind, message))

    def show(self, kind: types.MessageType, message: str) -> None:
        """Shows one line to the user, and logs it."""
        self.window_show_message(types.ShowMessageParams(kind, message))
        self.log(kind, message)

    def show_settings_errors(self, errors: Sequence[str]) -> None:
        """Shows each error once a session."""
        new = [error for error in errors if error not in self._shown_errors]
        self._shown_errors.update(new)
        if new:
            self.show(types.MessageType.Error, "dg-lsp settings: " + "; ".join(new))

    def report_server_error(self, error: Exception, source: type[Exception]) -> None:
        """Logs the type of an error that pygls caught. Its message is left out: it may quote a buffer."""
        self.log(types.MessageType.Error, f"{source.__name__}: {type(error).__name__}")

    async def load_model(self) -> None:
        """Loads the model of the settings, and reports the result to the client."""
        start = time.monotonic()
        self.close()
        self._is_remote_failing = False
        self._audit_log = self._open_audit_log()
        self.status.update(state=State.LOADING, message="loading the model")
        self._scheduler = self._open_scheduler(self.settings)
        ready = asyncio.wrap_future(self._scheduler.ready)
        [engine] = await asyncio.gather(ready, return_exceptions=True)
        if isinstance(engine, asyncio.CancelledError):
            raise engine
        if isinstance(engine, BaseException):
            self.show(types.MessageType.Error, f"dg-lsp has no model: {_error_message(engine)}")
            self.status.update(state=State.ERROR, message=_error_message(engine))
        else:
            self.status.update(state=State.READY, message="", model=engine.spec.name)
            self.update_status()
            seconds = time.monotonic() - start
            self.log(types.MessageType.Info, f"dg-lsp {__version__}: {engine.spec.name} ready after {seconds:.2f} s")

    async def fill(
        self, request: FillRequest, endpoint: str = types.TEXT_DOCUMENT_INLINE_COMPLETION
    ) -> tuple[Candidate, ...]:
        """The candidates of the engine, best first; none after an error. `endpoint` is written to the audit log.

        Raises:
            asyncio.CancelledError: by the client, or by a newer request of the document; the engine stops too.
        """
        if self._scheduler is None:
            self.log(types.MessageType.Warning, "completion requested before initialized")
            return ()
        with self.status.busy():
            submitted = self._scheduler.submit(request, self._canvas_sender(request.snapshot.uri))
            job = asyncio.wrap_future(submitted)
            if self._audit_log is not None:
                self._audit_log.watch(submitted, endpoint, request.max_tokens)
            [result] = await asyncio.gather(job, return_exceptions=True)
        if isinstance(result, asyncio.CancelledError):
            raise result
        if isinstance(result, BaseException):
            # an error of loading has been reported by `load_model`
            if result is not self._scheduler.ready.exception():
                self._report_error(result)
            return ()
        self._report_success(result)
        return result.candidates

    async def rewrite(
        self, request: RewriteRequest, on_step: Callable[[Progress], None] | None = None
    ) -> RewriteResult:
        """The rewrite of the engine. `on_step` runs in the model's thread.

        Raises:
            asyncio.CancelledError: by the caller, or by a newer rewrite of the document; the engine stops too.
            RequestError, BackendError, ModelError: as the engine does.
        """
        if self._scheduler is None:
            raise BackendError("the model is not loaded yet: try again in a moment")
        submitted = self._scheduler.submit_rewrite(request, on_step)
        job = asyncio.wrap_future(submitted)
        if self._audit_log is not None:
            self._audit_log.watch(submitted, "dg-lsp.rewrite")
        return await job

    def configure(self, settings: Settings) -> bool:
        """Replaces the settings; True if the model must be loaded again."""
        old, self.settings = self.settings, settings
        self.exclusion.settings = settings.privacy
        if self._scheduler is None:
            return False
        if old.model_key != settings.model_key:
            return True
        if old.privacy != settings.privacy:
            self._audit_log = self._open_audit_log()
        if old.completion != settings.completion:
            self._scheduler.configure(settings.completion)
        return False

    def set_workspace_folders(self, folders: Sequence[str]) -> None:
        """Replaces the workspace's folders, given as URIs: roots of .gitignore files and of imports."""
        self.workspace_folders = tuple(folders)
        self.exclusion.set_folders(folders)
        self.context_provider.reset_index()

    def update_status(self) -> None:
        """Reports whether the active document is excluded."""
        document = self.documents.get(self.active_document)
        if document is not None and self.status.state in (State.READY, State.EXCLUDED):
            is_excluded = self.is_excluded(document.snapshot())
            self.status.update(
                state=State.EXCLUDED if is_excluded else State.READY, message="excluded file" if is_excluded else ""
            )

    def client_has_command(self, command: str) -> bool:
        """Whether the client declares a command of its own, in `experimental.dgLsp.commands`."""
        experimental = self.client_capabilities.experimental
        ours = experimental.get("dgLsp") if isinstance(experimental, dict) else None
        return isinstance(ours, dict) and command in (ours.get("commands") or ())

    def is_excluded(self, snapshot: Snapshot) -> bool:
        """Whether the model must not see this document. Logs each reason once."""
        reason = self.exclusion.exclusion_reason(snapshot)
        if reason is None:
            return False
        if (snapshot.uri, reason) not in self._logged_exclusions:
            self._logged_exclusions.add((snapshot.uri, reason))
            self.log(types.MessageType.Info, f"no completions in {snapshot.uri}: {reason}")
        return True

    def snippets(self, snapshot: Snapshot, offset: int) -> Snippets:
        """Code of other files for a cursor, if the model takes it and the settings allow it."""
        engine = self._engine()
        if engine is None or not takes_extra(engine.spec, self.settings.context.enabled):
            return NO_SNIPPETS
        return self.context_provider.snippets(snapshot, offset, self.settings.context)

    def stats(self) -> dict[str, float]:
        """Counts of the session, and seconds of model time."""
        time_spent = self._scheduler.model_time if self._scheduler is not None else ModelTime()
        return {
            **self._counts(),
            "modelSeconds": time_spent.total,
            "staleSeconds": time_spent.stale,
            "speculativeSeconds": time_spent.speculative,
        }

    def close(self) -> None:
        """Closes the session's share of the model."""
        if self._scheduler is not None:
            self._scheduler.close()

    def _engine(self) -> Engine | None:
        """The engine, or None while it is loading."""
        ready = self._scheduler.ready if self._scheduler is not None else None
        return ready.result() if ready is not None and ready.done() and ready.exception() is None else None

    def _open_audit_log(self) -> AuditLog | None:
        loop = asyncio.get_running_loop()

        def warn(message: str) -> None:
            loop.call_soon_threadsafe(self.log, types.MessageType.Warning, message)

        return AuditLog.of(self.settings.privacy, warn)

    def _report_error(self, error: BaseException) -> None:
        """Logs an error. Errors of a remote server repeat at every key, so only the first one is logged."""
        if isinstance(error, RemoteError):
            self.status.update(state=State.ERROR, message=_error_message(error))
            if self._is_remote_failing:
                return
            self._is_remote_failing = True
        self.log(types.MessageType.Error, f"fill failed: {_error_message(error)}")

    def _report_success(self, result: FillResult) -> None:
        is_answer = bool(result.candidates) or all(one.reason is not Reason.UNFINISHED for one in result.rejections)
        if self._is_remote_failing and is_answer and not result.is_cached:
            self._is_remote_failing = False
            self.status.update(state=State.READY, message="")
            self.update_status()
            self.log(types.MessageType.Info, "the server answers again")

    def _counts(self) -> dict[str, int]:
        return {"shown": self.acceptance.shown, "accepted": self.acceptance.accepted}

    def _canvas_sender(self, uri: str) -> Callable[[Progress], None] | None:
        """Called by the model's thread after each pass, if the client requested canvases."""
        scheduler = self._scheduler
        if scheduler is None or not self.sends_canvases:
            return None
        loop = asyncio.get_running_loop()

        def send(progress: Progress) -> None:
            params = denoising_params(uri, scheduler.framer().frame(progress))
            loop.call_soon_threadsafe(self.protocol.notify, DENOISING, params)

        return send


def denoising_params(uri: str, frame: Frame) -> dict[str, Any]:
    """Parameters of `dg-lsp/denoising`."""
    cells = [
        {
            "text": cell.text,
            "confidence": round(cell.confidence, 3),
            "isCommitted": cell.is_committed,
            "isEnd": cell.is_end,
        }
        for cell in frame.cells
    ]
    return {"uri": uri, "block": frame.block, "step": frame.step, "cells": cells}


def _error_message(error: BaseException) -> str:
    """The message of an error of ours; only the type of any other error, whose message may quote a buffer."""
    return str(error) if isinstance(error, DgLspError) else type(error).__name__
