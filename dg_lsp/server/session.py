"""What one client's session holds: its documents, its settings, the model's worker, and what it is told.

No text of a buffer and no fill reaches a log.
"""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from dg_lsp import __version__
from dg_lsp.canvas.fim import takes_extra
from dg_lsp.context.document import Encoding, Snapshot
from dg_lsp.context.exclusion import Exclusion, ExclusionReason
from dg_lsp.context.snippets import NO_SNIPPETS, Snippets
from dg_lsp.engine.audit import Auditor
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest, RewriteRequest
from dg_lsp.engine.result import FillResult, Frame, RewriteResult
from dg_lsp.engine.scheduler import ModelTime, Scheduler, SchedulerSession
from dg_lsp.errors import BackendError, DgLspError, RemoteError, SettingsError
from dg_lsp.models.registry import known_names
from dg_lsp.postprocess.validate import Candidate, Reason
from dg_lsp.server.context_provider import ContextProvider
from dg_lsp.server.documents import DocumentStore
from dg_lsp.server.transport import Protocol
from dg_lsp.server.workspace_index import GitignoreFiles
from dg_lsp.settings import Settings, anchored, file_settings, parse_settings, settings_file

REMEMBERED = 256
"""Items that may still be taken; editors show one at a time and forget it soon."""


@dataclass(slots=True)
class Acceptance:
    """Of one session. Editors that tell nothing leave all but `offered` at 0."""

    offered: int = 0
    shown: int = 0
    accepted: int = 0
    """Items of which at least a part was taken."""
    chars: int = 0
    """UTF-16 units taken, of whole items and of parts."""
    _lengths: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """UTF-16 units of every item that is remembered."""
    _taken: dict[str, int] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def offer(self, text: str) -> str:
        """Notes an item on its way to the editor; returns its name."""
        name = uuid4().hex
        self.offered += 1
        self._lengths[name] = len(text.encode("utf-16-le")) // 2
        while len(self._lengths) > REMEMBERED:
            old, _ = self._lengths.popitem(last=False)
            self._taken.pop(old, None)
            self._seen.discard(old)
        return name

    def show(self, name: str) -> None:
        """The editor shows the item; said twice, it counts once."""
        if name in self._lengths and name not in self._seen:
            self._seen.add(name)
            self.shown += 1

    def accept(self, name: str, length: int | None = None) -> None:
        """The user took the item, or its first `length` UTF-16 units, counted from its start."""
        if name not in self._lengths:
            return
        whole, before = self._lengths[name], self._taken.get(name, 0)
        taken = max(before, whole if length is None else min(max(0, length), whole))
        self.accepted += not before and taken > 0
        self.chars += taken - before
        self._taken[name] = taken


METHOD = "didChangeStatus"


class State(StrEnum):
    """What the server can do right now."""

    LOADING = "loading"
    READY = "ready"
    EXCLUDED = "excluded"
    ERROR = "error"


_KINDS = {State.LOADING: "Normal", State.READY: "Normal", State.EXCLUDED: "Inactive", State.ERROR: "Error"}


@dataclass(slots=True)
class Status:
    """Tells the client what has changed, where it wants to know."""

    send: Callable[[str, Any], None]
    is_wanted: bool = False
    """The client said which editor it is, as those do that have a status bar for us."""
    state: State = State.LOADING
    message: str = ""
    model: str = ""
    last_ms: float | None = None
    """From the last request to its answer."""
    counts: Callable[[], dict[str, int]] = dict
    _num_running: int = 0
    _said: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def thinking(self) -> Iterator[None]:
        """Busy for as long, whoever else is; what comes to its end says how long it took."""
        began = time.monotonic()
        self._num_running += 1
        self.change()
        try:
            yield
            self.last_ms = round(1e3 * (time.monotonic() - began), 1)
        finally:
            self._num_running -= 1
            self.change()

    def change(self, **changes: Any) -> None:
        """Sets what is given; says all of it, unless that was the last thing said."""
        for name, value in changes.items():
            setattr(self, name, value)
        said = {
            "busy": self._num_running > 0 or self.state is State.LOADING,
            "message": self.message,
            "kind": _KINDS[self.state],
            "dgLsp": {"state": self.state.value, "model": self.model, "lastMs": self.last_ms, **self.counts()},
        }
        if self.is_wanted and said != self._said:
            self._said = said
            self.send(METHOD, said)


DENOISING = "dg-lsp/denoising"
"""Sent after each pass over a canvas, while the client watches."""
OpenWorker = Callable[[Settings], Scheduler | SchedulerSession]
"""Begins to open the model of these settings, or takes a part in one that is open."""


class Server(LanguageServer):
    """What one client's session holds."""

    protocol: Protocol

    def __init__(self, open_worker: OpenWorker, settings: Settings) -> None:
        super().__init__("dg-lsp", __version__, protocol_cls=Protocol)
        self.protocol.on_trouble = partial(self.log, types.MessageType.Warning)
        self.documents = DocumentStore(Encoding.UTF16)
        self.settings = settings
        self.ignored = GitignoreFiles()
        self.elsewhere = ContextProvider((), lambda: self.documents, self.why_left_out)
        self.acceptance = Acceptance()
        self.status = Status(self.protocol.notify, counts=self._counts)
        self.looked_at = ""
        """URI of the document that the user looks at, where the client says so; it may not be open yet."""
        self.is_watched = False
        """The client wants to see canvases settle."""
        self.rewrites: dict[str, asyncio.Future[RewriteResult]] = {}
        """What is being rewritten, by document: a change of it makes the result useless."""
        self._left_out: set[tuple[str, ExclusionReason]] = set()
        self.complaints: tuple[str, ...] = ()
        """Options that could not be taken; said once the client listens."""
        self.told: set[str] = set()
        """Complaints that were made already: each is made once."""
        self.exit_code: int | None = None
        """Set by `exit`, which ends the session."""
        self._open_worker = open_worker
        self._worker: Scheduler | SchedulerSession | None = None
        self._auditor = Auditor(settings.audit)
        self._is_troubled = False
        """The server that answers for us does not."""

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
        self.close()
        self._is_troubled = False
        self._auditor = self._new_auditor()
        self.status.change(state=State.LOADING, message="loading the model")
        self._worker = self._open_worker(self.settings)
        ready = asyncio.wrap_future(self._worker.ready)
        [engine] = await asyncio.gather(ready, return_exceptions=True)
        if isinstance(engine, asyncio.CancelledError):
            raise engine
        if isinstance(engine, BaseException):
            self.show(types.MessageType.Error, f"dg-lsp has no model: {_said(engine)}")
            self.status.change(state=State.ERROR, message=_said(engine))
        else:
            self.status.change(state=State.READY, message="", model=engine.spec.name)
            self.tell_place()
            seconds = time.monotonic() - began
            self.log(types.MessageType.Info, f"dg-lsp {__version__}: {engine.spec.name} ready after {seconds:.2f} s")

    async def fill(
        self, request: FillRequest, endpoint: str = types.TEXT_DOCUMENT_INLINE_COMPLETION
    ) -> tuple[Candidate, ...]:
        """The engine's candidates, best first; none when it has trouble. `endpoint` is for the audit log.

        Raises:
            asyncio.CancelledError: by the client, or by a newer request of the document; the engine stops too.
        """
        if self._worker is None:
            self.log(types.MessageType.Warning, "inline completion asked for before initialized")
            return ()
        with self.status.thinking():
            submitted = self._worker.submit(request, self._watcher(request.snapshot.uri))
            job = asyncio.wrap_future(submitted)
            self._auditor.watch(submitted, endpoint, request.max_tokens)
            [result] = await asyncio.gather(job, return_exceptions=True)
        if isinstance(result, asyncio.CancelledError):
            raise result
        if isinstance(result, BaseException):
            # why the model could not be opened was said when that became known
            if result is not self._worker.ready.exception():
                self._tell_failure(result)
            return ()
        self._tell_success(result)
        return result.candidates

    async def rewrite(
        self, request: RewriteRequest, on_step: Callable[[Progress], None] | None = None
    ) -> RewriteResult:
        """The engine's rewrite; `on_step` is called by the model's thread.

        Raises:
            asyncio.CancelledError: by whoever waits, or by a newer rewrite of the document; the engine stops too.
            RequestError, BackendError, ModelError: as the engine does.
        """
        if self._worker is None:
            raise BackendError("the model is not loaded yet: try again in a moment")
        submitted = self._worker.submit_rewrite(request, on_step)
        job = asyncio.wrap_future(submitted)
        self._auditor.watch(submitted, "dg-lsp.rewrite")
        return await job

    def configure(self, settings: Settings) -> bool:
        """Takes settings over; True when the model has to be loaded again for them."""
        old, self.settings = self.settings, settings
        if self._worker is None:
            return False
        if _loaded_by(old) != _loaded_by(settings):
            return True
        if old.audit != settings.audit:
            self._auditor = self._new_auditor()
        if old.fill != settings.fill:
            self._worker.configure(settings.fill)
        return False

    def tell_place(self) -> None:
        """Says whether anything is offered in the document that the user looks at."""
        document = self.documents.get(self.looked_at)
        if document is not None and self.status.state in (State.READY, State.EXCLUDED):
            is_out = self.is_left_out(document.snapshot())
            self.status.change(
                state=State.EXCLUDED if is_out else State.READY, message="excluded file" if is_out else ""
            )

    def client_knows(self, command: str) -> bool:
        """Whether the client says that it has this command of its own."""
        experimental = self.client_capabilities.experimental
        ours = experimental.get("dgLsp") if isinstance(experimental, dict) else None
        return isinstance(ours, dict) and command in (ours.get("commands") or ())

    def is_left_out(self, snapshot: Snapshot) -> bool:
        """Whether the model must not see this buffer; why is said once."""
        why = self.why_left_out(snapshot)
        if why is None:
            return False
        if (snapshot.uri, why) not in self._left_out:
            self._left_out.add((snapshot.uri, why))
            self.log(types.MessageType.Info, f"nothing is offered in {snapshot.uri}: {why}")
        return True

    def stats(self) -> dict[str, float]:
        """What the session has cost and brought so far; seconds and counts."""
        spent = self._worker.model_time if self._worker is not None else ModelTime()
        return {
            **self._counts(),
            "modelSeconds": spent.total,
            "staleSeconds": spent.stale,
            "guessingSeconds": spent.speculative,
        }

    def _new_auditor(self) -> Auditor:
        loop = asyncio.get_running_loop()

        def complain(said: str) -> None:
            loop.call_soon_threadsafe(self.log, types.MessageType.Warning, said)

        return Auditor(self.settings.audit, complain)

    def why_left_out(self, snapshot: Snapshot) -> ExclusionReason | None:
        """Why the model must not see this buffer, None where it may."""
        why = Exclusion(self.settings.exclude).reason(snapshot)
        if why is None and self.settings.exclude.gitignored and self.ignored.has(snapshot.uri):
            return ExclusionReason.IGNORED
        return why

    def look_into(self, folders: Sequence[str]) -> None:
        """Takes the workspace's folders over, as URIs."""
        self.ignored = GitignoreFiles(folders)
        self.elsewhere = ContextProvider(self.ignored.roots, lambda: self.documents, self.why_left_out)

    def extra(self, snapshot: Snapshot, offset: int) -> Snippets:
        """Code from elsewhere for a cursor, where the model is to be shown any."""
        engine = self._engine()
        if engine is None or not takes_extra(engine.spec, self.settings.context.when):
            return NO_SNIPPETS
        return self.elsewhere.extra(snapshot, offset, self.settings.context)

    def _engine(self) -> Engine | None:
        """The engine, as soon as it is open; never waits."""
        ready = self._worker.ready if self._worker is not None else None
        return ready.result() if ready is not None and ready.done() and ready.exception() is None else None

    def _tell_failure(self, error: BaseException) -> None:
        """A server that is in trouble is in trouble at every key: its state shows it, and the log says it once."""
        if isinstance(error, RemoteError):
            self.status.change(state=State.ERROR, message=_said(error))
            if self._is_troubled:
                return
            self._is_troubled = True
        self.log(types.MessageType.Error, f"fill failed: {_said(error)}")

    def _tell_success(self, result: FillResult) -> None:
        is_answer = bool(result.candidates) or all(one.reason is not Reason.UNFINISHED for one in result.rejections)
        if self._is_troubled and is_answer and not result.is_cached:
            self._is_troubled = False
            self.status.change(state=State.READY, message="")
            self.tell_place()
            self.log(types.MessageType.Info, "the server answers again")

    def _counts(self) -> dict[str, int]:
        return {"shown": self.acceptance.shown, "accepted": self.acceptance.accepted}

    def _watcher(self, uri: str) -> Callable[[Progress], None] | None:
        """What the model's thread calls after each pass while somebody watches."""
        worker = self._worker
        if worker is None or not self.is_watched:
            return None
        loop = asyncio.get_running_loop()

        def show(progress: Progress) -> None:
            said = denoising(uri, worker.framer().frame(progress))
            loop.call_soon_threadsafe(self.protocol.notify, DENOISING, said)

        return show

    def close(self) -> None:
        """Stops the model."""
        if self._worker is not None:
            self._worker.close()


def _loaded_by(settings: Settings) -> tuple[object, ...]:
    """Settings that mean another engine."""
    return settings.model, settings.backend, settings.remote, settings.runtime


def denoising(uri: str, frame: Frame) -> dict[str, Any]:
    """A frame as the client gets it."""
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


def _said(error: BaseException) -> str:
    """Our own errors speak for themselves; of others only the kind is named, for they may quote a buffer."""
    return str(error) if isinstance(error, DgLspError) else type(error).__name__


EDITOR_KEYS = ("editorInfo", "editorPluginInfo")
"""What clients of Copilot's server say of themselves; no settings."""


def names_editor(options: object) -> bool:
    """Whether the client says which editor it is, as those do that show our status."""
    return isinstance(options, Mapping) and "editorInfo" in options


def workspace_settings(folder: Path | None, settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """The settings of the nearest file in the workspace's folder or above it, and a sentence if that file is bad.

    Without a good file, `settings` stay: those of the working directory, which need not be the workspace.
    """
    path = settings_file(folder) if folder is not None else None
    if path is None:
        return settings, ()
    try:
        return file_settings(path, known_names()), ()
    except SettingsError as error:
        return settings, (f"{error} (the file is ignored)",)


def parse_options(options: object, over: Settings, folder: Path | None = None) -> tuple[Settings, tuple[str, ...]]:
    """Settings with the options over them, and a sentence for each option that cannot be taken.

    A bad option leaves its setting as it was and costs no other one. A relative path of a model counts from `folder`.
    """
    if options is None:
        return over, ()
    if not isinstance(options, Mapping):
        return over, ("initializationOptions must be an object",)
    complaints = []
    for path, value in _values({key: value for key, value in options.items() if key not in EDITOR_KEYS}):
        if path == ("model",) and isinstance(value, str) and folder is not None:
            value = anchored(value, folder, known_names())  # noqa: PLW2901
        try:
            over = parse_settings(_tree(path, value), over)
        except SettingsError as error:
            complaints.append(f"{'.'.join(path)} = {json.dumps(value)[:80]} is not used ({error})")
    return over, tuple(complaints)


def _values(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is no object with something in it, and the keys that lead there."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _values(value, (*above, key))
        else:
            yield (*above, key), value


def _tree(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """The value alone at the end of its path."""
    for key in reversed(path):
        value = {key: value}
    return value  # type: ignore[return-value]  # a path has at least one key
