"""Connects requests with the engine: admission, cancellation, replacement by newer requests, metrics and audit.

Independent of dialects. Everything here runs on the event loop.
"""

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import prometheus_client as prometheus
from fastapi import Depends
from starlette.requests import Request

from dg_lsp.backends.remote.dialects import LANGUAGES_HEADER
from dg_lsp.canvas.prompt_format import takes_snippets
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.context.document import Snapshot
from dg_lsp.context.exclusion import Eligibility, Exclusion, cut, mask_secrets
from dg_lsp.context.languages import PLAIN_TEXT, language_id_of
from dg_lsp.context.window import MAX_CHARS, NO_SNIPPETS, PATH_PARTS, Snippet, Snippets
from dg_lsp.engine.audit import AuditLog
from dg_lsp.engine.edit_source import NextEditRequest, NextEditResult, propose
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.next_edit import Proposal
from dg_lsp.engine.request import ChatRequest, EngineRequest, FillRequest, FillResult, Frame
from dg_lsp.engine.scheduler import OnFrame, OpenScheduler, ResidentModels, Scheduler
from dg_lsp.http.auth import AccessRules
from dg_lsp.http.schemas import CANCELLED, ApiError
from dg_lsp.settings import Settings

REASON = "dg-lsp-reason"
"""Header of an empty fill: why it is empty. A stream that begins with a draft has sent its headers before."""
NUM_OVERLAP = 300
"""Characters by which the text of an earlier request is recognised."""
MAX_TEXTS = 16
"""Texts of earlier requests that are kept, of all clients together."""
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Finished = TypeVar("Finished", FillResult, NextEditResult)


def language_header(spec: ModelSpec) -> dict[str, str]:
    """The header of a model that knows some languages only; empty for any other."""
    return {LANGUAGES_HEADER: ",".join(spec.languages)} if spec.languages else {}


def allowed_snippets(snippets: Iterable[Snippet], spec: ModelSpec, settings: Settings) -> Snippets:
    """The snippets that the settings allow, the most important first, under short paths, with secrets masked."""
    if not takes_snippets(spec, settings.context.enabled):
        return NO_SNIPPETS
    allowed, num_left = [], MAX_CHARS
    for snippet in snippets:
        path = snippet.path.replace("\\", "/")
        if num_left and eligibility(path, snippet.text, language_id_of(path), settings).is_served:
            short = " ".join("/".join(path.split("/")[-PATH_PARTS:]).split())  # on one line
            text = cut(snippet.text, num_left)
            num_left -= len(text)
            allowed.append(Snippet(snippet.source, short or "snippet", mask_secrets(text)))
    return Snippets(tuple(allowed))


def eligibility(path: str, text: str, language: str, settings: Settings) -> Eligibility:
    """Whether the settings allow a file of the client's machine; `path` is not looked up on this one."""
    snapshot = Snapshot("client:///" + quote(path.replace("\\", "/").lstrip("/")), text, language)
    return Eligibility.of_document(snapshot, Exclusion(settings.privacy))


class EarlierText:
    """The text before the cursors of earlier requests, because many clients send the last lines of a file only.

    The start of a prompt is counted from the start of the text: with another line there in each request, the whole
    prompt would be decoded anew.
    """

    def __init__(self) -> None:
        self._texts: deque[tuple[Hashable, str]] = deque(maxlen=MAX_TEXTS)

    def joined(self, client: Hashable, prefix: str) -> str:
        """A prefix behind the text that an earlier one of the client has before it."""
        opening = prefix[:NUM_OVERLAP]
        if len(opening) < NUM_OVERLAP:
            return prefix
        for known in (known for known in reversed(self._texts) if known[0] == client):
            at = known[1].find(opening)
            if at >= 0:
                self._texts.remove(known)
                whole = known[1][:at] + prefix
                prefix = whole if len(whole) <= MAX_CHARS else prefix
                break
        self._texts.append((client, prefix))
        return prefix


class Metrics:
    """The Prometheus metrics of one server: numbers only, no text and no file names."""

    def __init__(self, num_active: Callable[[], int]) -> None:
        """`num_active` returns the number of requests that run or wait for the model."""
        self._load = prometheus.CollectorRegistry()
        self._results = prometheus.CollectorRegistry()
        """What requests contained and cost, of all clients together: for the operator only."""
        counter = partial(prometheus.Counter, registry=self._load)
        self.requests = counter("dg_lsp_requests", "Requests answered.", ("path", "status"))
        self.seconds = prometheus.Histogram(
            "dg_lsp_request_seconds",
            "Time from a request to the end of its response.",
            ("path",),
            buckets=_BUCKETS,
            registry=self._load,
        )
        active = prometheus.Gauge(
            "dg_lsp_active_requests", "Requests that run or wait for the model.", registry=self._load
        )
        active.set_function(num_active)
        self.disconnects = counter("dg_lsp_disconnects", "Clients that disconnected before their response.")
        counter = partial(prometheus.Counter, registry=self._results)
        self.feedback = counter("dg_lsp_feedback", "User actions on shown completions.", ("action",))
        self._completions = counter("dg_lsp_completions", "Results by decoder.", ("decoder", "shown"))
        self._tokens = counter("dg_lsp_tokens", "Tokens of results.", ("kind",))
        self._steps = counter("dg_lsp_steps", "Forward passes of results.")
        self._stages = counter("dg_lsp_stage_seconds", "Time of results by stage.", ("stage",))

    def finished(
        self, request: EngineRequest[Any], outcome: Future[Any], seconds: float, engine: Engine | None
    ) -> None:
        """See `SchedulerListener`. Adds the result, if there is one."""
        del request, seconds, engine
        result = None if outcome.cancelled() or outcome.exception() else outcome.result()
        if not isinstance(result, FillResult) or result.is_unfinished:
            return
        self._completions.labels(result.decoder.value, "yes" if result.candidates else "no").inc()
        self._tokens.labels("prompt_cached").inc(result.cached_tokens)
        self._tokens.labels("prompt_decoded").inc(result.prompt_tokens - result.cached_tokens)
        self._tokens.labels("output").inc(result.output_tokens)
        self._steps.inc(result.steps)
        for stage in ("prefill", "denoise", "postprocess"):
            self._stages.labels(stage).inc(getattr(result.timings, stage) / 1e3)

    def exposition(self, *, is_operator: bool) -> bytes:
        """The load in Prometheus' text format; for the operator also what the requests cost."""
        results = prometheus.generate_latest(self._results) if is_operator else b""
        return prometheus.generate_latest(self._load) + results


class Service:
    """Owns the schedulers, which open their models at once."""

    def __init__(
        self,
        open_scheduler: OpenScheduler,
        settings: Settings,
        report: Callable[[str], None],
        rules: AccessRules,
    ) -> None:
        """`report` receives one message if the audit log cannot be written or the model does not know a language."""
        self.rules = rules
        self.settings = settings
        self._report = report
        self._warning = ""  # the last one
        self.metrics = Metrics(lambda: self.num_active)
        self.started = int(time.time())  # seconds since 1970
        self.models = ResidentModels(open_scheduler, settings)
        self._audit_log = AuditLog.of(settings.privacy, report)
        self._earlier = EarlierText()
        self.models.listen(self.metrics, self._audit_log)
        self._numbers = itertools.count(1)
        self._active: Counter[Hashable] = Counter()  # requests by client
        self._is_closed = False

    @property
    def num_active(self) -> int:
        """Requests that run or wait for the model."""
        return self._active.total()

    @property
    def engine(self) -> Engine:
        """The open engine of completions; raises as `engine_of` does."""
        return self.engine_of(self.models.completion)

    @property
    def context_size(self) -> int:
        """Tokens of prompt and text that one slot takes; while the model is unloaded, those of a fill."""
        engine = self.models.completion.engine
        size = 0 if engine is None else engine.footprint.context_size
        return size or self.engine.spec.longest_prompt + self.engine.spec.longest_block

    def engine_of(self, scheduler: Scheduler) -> Engine:
        """The open engine of a scheduler.

        Raises:
            ApiError: it is not open yet, or cannot be opened.
        """
        ready = scheduler.ready
        if not ready.done():
            raise ApiError(503, "Loading model")  # llama.cpp's words, which its clients compare
        if error := ready.exception():
            raise ApiError.of(error)
        return ready.result()

    def snapshot(self, text: str, language: str, path: str = "", client: str = "") -> Snapshot:
        """The document of a completion. A newer request with the same path and client replaces the older one.

        `client` is a name within a key or a connection. The path is part of some prompts and never opened.

        Raises:
            ApiError: the settings exclude the file.
        """
        is_known = bool(path) or language != PLAIN_TEXT
        if is_known and not (document := eligibility(path, text, language, self.settings)).is_served:
            raise ApiError(400, document.reason)
        sender = f"client={quote(client)}" if client else f"request={next(self._numbers)}"
        return Snapshot(f"http:{quote(path)}?{sender}", text, language)

    def with_earlier_text(self, request: FillRequest, http: Request) -> FillRequest:
        """The request with the text that earlier ones of its client had before it."""
        snapshot, offset = request.snapshot, request.offset
        sender = http.state.client, snapshot.uri.partition("?")[0]
        prefix = self._earlier.joined(sender, snapshot.text[:offset])
        snapshot = replace(snapshot, text=prefix + snapshot.text[offset:])
        return replace(request, snapshot=snapshot, offset=len(prefix))

    async def stream(
        self,
        request: EngineRequest[Finished],
        http: Request,
        *,
        has_frames: bool = False,
        may_be_unfinished: bool = False,
    ) -> AsyncGenerator[Frame | Finished, None]:
        """Yields the frames if `has_frames`, and then the result. Closing it stops the engine within one step.

        Raises:
            ApiError: too many requests, replaced by a newer one, deadline missed unless the result `may_be_unfinished`,
                or the engine failed.
        """
        loop = asyncio.get_running_loop()
        frames = asyncio.Queue[Frame | None]()

        def on_frame(frame: Frame) -> None:  # on the model's thread
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(frames.put_nowait, frame)

        if isinstance(request, ChatRequest):
            request = replace(request, subject=f"http:{next(self._numbers)}")
        outcome = self._start(request, http, on_frame if has_frames else None)
        outcome.add_done_callback(lambda _: frames.put_nowait(None))
        try:
            while (frame := await frames.get()) is not None:
                yield frame
        finally:
            if outcome.cancel():  # the client disconnected; counts after the callbacks, which stop the model
                loop.call_soon(self.metrics.disconnects.inc)
        result = self._result(outcome, may_be_unfinished=may_be_unfinished)
        if result.reason:
            http.state.headers[REASON] = result.reason.value
        yield result

    def close(self) -> None:
        """Refuses waiting requests, stops the model and waits for its thread."""
        self._is_closed = True
        self.models.close()

    async def next_edits(self, request: NextEditRequest, region: range, http: Request) -> Sequence[Proposal]:
        """The edits in a region of the document: the last ones repeated, else those that a model proposes.

        Raises as `stream` does.
        """

        async def ask_model(request: NextEditRequest) -> NextEditResult | None:
            if self.models.edit_source is None:
                return None
            [result] = [part async for part in self.stream(request, http)]
            assert isinstance(result, NextEditResult)
            return result

        def inside(proposals: Sequence[Proposal]) -> Sequence[Proposal]:
            return [edit for edit in proposals if region.start <= edit.start and edit.end <= region.stop]

        return (await propose(request, ask_model, inside)).proposals

    def _start(
        self, request: EngineRequest[Finished], http: Request, on_frame: OnFrame | None
    ) -> asyncio.Future[Finished]:
        scheduler = self.models.scheduler_for(request)
        request = replace(request, client=http.state.client, endpoint=http.url.path)
        try:
            spec = self.engine_of(scheduler).spec  # no request waits for a model that is not open
            self._check_room(request.client)
        except ApiError as error:
            if self._audit_log is not None:
                self._audit_log.write_unserved(request, "refused", str(error.status_code))
            raise
        http.state.headers = language_header(spec)
        if isinstance(request, FillRequest) and request.snapshot.language != PLAIN_TEXT:
            warning = spec.language_problem(request.snapshot.language)
            if warning not in ("", self._warning):
                self._warning = warning
                self._report(f"warning: {warning}")
        outcome = asyncio.wrap_future(self.models.submit(request, on_frame))
        self._active[request.client] += 1
        outcome.add_done_callback(partial(self._end, request.client))
        return outcome

    def _check_room(self, client: Hashable) -> None:
        if self.num_active >= self.rules.max_queued:
            raise ApiError(503, "too many requests wait for the model; try again later")
        if self._active[client] >= (most := self.rules.max_per_client):
            raise ApiError(429, f"this client has {most} open requests; try again later")

    def _end(self, client: Hashable, _outcome: asyncio.Future[Any]) -> None:
        self._active -= Counter((client,))  # without clients that have no request

    def _result(self, outcome: asyncio.Future[Finished], *, may_be_unfinished: bool) -> Finished:
        if outcome.cancelled():
            if self._is_closed:
                raise ApiError(503, "the server is stopping")
            raise ApiError(CANCELLED, "a newer request for this document replaced this one")
        if error := outcome.exception():
            raise ApiError.of(error)
        result = outcome.result()
        if result.is_unfinished and not may_be_unfinished:
            raise ApiError(504, "nothing was finished at the deadline; try again, or allow more time")
        return result


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


RequestService = Annotated[Service, Depends(_service)]
"""The service of the application, for endpoints."""
