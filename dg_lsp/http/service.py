"""Connects requests with the engine: admission, cancellation, replacement by newer requests, metrics and audit.

Independent of dialects. Everything here runs on the event loop.
"""

import asyncio
import ipaddress
import itertools
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import attrs
from fastapi import Depends
from starlette.requests import ClientDisconnect, Request

from dg_lsp.engine.audit import AuditLog
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import ChatRequest, Priority
from dg_lsp.engine.result import FillResult, Frame
from dg_lsp.engine.scheduler import Scheduler, SchedulerSession
from dg_lsp.http.completion import CompletionRequest
from dg_lsp.http.errors import CANCELLED, ApiError, api_error
from dg_lsp.http.metrics import Metrics
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import Settings

MAX_PER_CLIENT = 8
"""Open requests of one other machine."""
MAX_RETRY_SECONDS = 60
_PREFILL_ONLY_MS = 1e-6
"""A deadline before the first denoising step."""
_NEWEST_SHARE = 0.2
"""Weight of the newest result in the mean time."""

OpenWorker = Callable[[Settings], Scheduler | SchedulerSession]
OnStep = Callable[[Progress], None]
Outcome = asyncio.Future[FillResult]
Stream = AsyncGenerator[Frame | FillResult, None]
"""Frames, then the result; closing it stops the engine within one step."""


class Service:
    """Owns the worker, which opens the model at once."""

    def __init__(self, open_worker: OpenWorker, settings: Settings, report_error: Callable[[str], None]) -> None:
        """`report_error` receives one message if the audit log cannot be written."""
        self.settings = settings
        self.metrics = Metrics()
        self.metrics.active.set_function(lambda: self.num_active)
        self.started = int(time.time())
        """Seconds since 1970."""
        # plugins cache completions and request the next one themselves
        self._worker_settings = attrs.evolve(settings, completion=attrs.evolve(settings.completion, speculate=False))
        self._open_worker = open_worker
        self.worker = open_worker(self._worker_settings)
        self._audit_log = AuditLog.of(settings.privacy, report_error)
        self._numbers = itertools.count(1)
        self._newest: dict[tuple[str, str], Outcome] = {}
        self._active: Counter[str] = Counter()
        """Requests by the address of the client; this machine is an empty string."""
        self._mean_seconds = 0.0
        self._is_closed = False

    @property
    def num_active(self) -> int:
        """Requests that run or wait for the model."""
        return self._active.total()

    async def wait_until_open(self) -> Engine:
        """Waits for the engine.

        Raises:
            ModelError, BackendError: it cannot be opened.
        """
        return await asyncio.wrap_future(self.worker.ready)

    def reopen(self) -> None:
        """Opens the model again after a failure."""
        self.worker.close()
        self.worker = self._open_worker(self._worker_settings)

    @property
    def engine(self) -> Engine:
        """The open engine.

        Raises:
            ApiError: it is not open yet, or cannot be opened.
        """
        ready = self.worker.ready
        if not ready.done():
            raise ApiError(503, "Loading model")  # llama.cpp's words, which its clients compare
        if error := ready.exception():
            raise api_error(error)
        return ready.result()

    async def run(self, request: CompletionRequest | ChatRequest, http: Request) -> FillResult:
        """The engine's result. A disconnect of the client stops the engine within one step.

        Raises:
            ApiError: too many requests, replaced by a newer one, deadline missed, or the engine failed.
            ClientDisconnect: the client disconnected.
        """
        return _finished(await self._wait(self._start(request, http), http))

    async def stream(self, request: CompletionRequest | ChatRequest, http: Request) -> Stream:
        """Like `run`, but also yields each frame. Returns when the first frame exists.

        Raises:
            ApiError, ClientDisconnect: as `run` does; later errors are raised by the stream.
        """
        stream = self._frames(request, http)
        first = asyncio.ensure_future(anext(stream))
        await cancel_on_disconnect(first, http)
        return _chain(first.result(), stream)

    async def warm_up(self, request: CompletionRequest, http: Request) -> FillResult:
        """Decodes the prompt into the cache without an answer; skipped while other requests run.

        Raises:
            ApiError, ClientDisconnect: as `run` does, except for the deadline.
        """
        prompt = replace(request, deadline_ms=_PREFILL_ONLY_MS, priority=Priority.WARM_UP)
        return await self._wait(self._start(prompt, http), http)

    def close(self) -> None:
        """Refuses waiting requests, stops the model and waits for its thread."""
        self._is_closed = True
        self.worker.close()

    def _start(self, request: CompletionRequest | ChatRequest, http: Request, on_step: OnStep | None = None) -> Outcome:
        address = client_address(http)
        self._check_limits(address)
        future = self._submit(request, on_step)
        if self._audit_log is not None:
            self._audit_log.watch(future, http.url.path, request.max_tokens)
        outcome = asyncio.wrap_future(future)
        self._active[address] += 1
        outcome.add_done_callback(partial(self._end, address))
        if isinstance(request, CompletionRequest) and request.client:
            self._replace_older((request.client, request.path), outcome)
        return outcome

    def _submit(self, request: CompletionRequest | ChatRequest, on_step: OnStep | None) -> Future[FillResult]:
        number = next(self._numbers)
        if isinstance(request, ChatRequest):
            return self.worker.submit_chat(replace(request, name=f"http:{number}"), on_step)
        return self.worker.submit(request.to_engine(number, self.engine.spec, self.settings), on_step)

    def _check_limits(self, address: str) -> None:
        wait = max(1, min(MAX_RETRY_SECONDS, math.ceil(self._mean_seconds * self.num_active)))
        if self.num_active >= self.settings.http.max_queued:
            raise ApiError(503, "too many requests wait for the model; try again later", retry_after=wait)
        if address and self._active[address] >= MAX_PER_CLIENT:
            message = f"this client has {MAX_PER_CLIENT} open requests; try again later"
            raise ApiError(429, message, retry_after=wait)

    def _replace_older(self, key: tuple[str, str], outcome: Outcome) -> None:
        """The newest request of a client and file wins."""
        older, self._newest[key] = self._newest.get(key), outcome
        outcome.add_done_callback(lambda _: self._newest.pop(key) if self._newest.get(key) is outcome else None)
        if older is not None:
            older.cancel()

    def _end(self, address: str, outcome: Outcome) -> None:
        self._active -= Counter((address,))
        if outcome.cancelled() or outcome.exception() or _is_unfinished(outcome.result()):
            return
        result = outcome.result()
        self._mean_seconds += _NEWEST_SHARE * (result.timings.total / 1e3 - self._mean_seconds)
        self.metrics.add_result(result)

    async def _wait(self, outcome: Outcome, http: Request) -> FillResult:
        try:
            await cancel_on_disconnect(outcome, http)
        except (ClientDisconnect, asyncio.CancelledError):
            self._count_disconnect()
            raise
        return self._result(outcome)

    async def _frames(self, request: CompletionRequest | ChatRequest, http: Request) -> Stream:
        loop, frames = asyncio.get_running_loop(), asyncio.Queue[Frame | None]()

        def on_step(progress: Progress) -> None:  # on the model's thread
            frame = self.worker.framer().frame(progress)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(frames.put_nowait, frame)

        outcome = self._start(request, http, on_step)
        outcome.add_done_callback(lambda _: frames.put_nowait(None))
        try:
            while (frame := await frames.get()) is not None:
                yield frame
        finally:
            if outcome.cancel():  # False if it is done
                self._count_disconnect()
        yield _finished(self._result(outcome))

    def _count_disconnect(self) -> None:
        """Counts after the callbacks of the cancelled outcome, which stop the model."""
        asyncio.get_running_loop().call_soon(self.metrics.disconnects.inc)

    def _result(self, outcome: Outcome) -> FillResult:
        if outcome.cancelled():
            if self._is_closed:
                raise ApiError(503, "the server is stopping")
            raise ApiError(CANCELLED, "a newer request for this document replaced this one")
        if error := outcome.exception():
            raise api_error(error)
        return outcome.result()


async def running_service(request: Request) -> Service:
    """The service of the app, whether or not the model is loaded."""
    service: Service = request.app.state.service
    return service


async def loaded_service(request: Request) -> Service:
    """The service of the app.

    Raises:
        ApiError: the model is not loaded.
    """
    service = await running_service(request)
    _ = service.engine
    return service


RunningService = Annotated[Service, Depends(running_service)]
LoadedService = Annotated[Service, Depends(loaded_service)]


async def cancel_on_disconnect(work: asyncio.Future[Any], http: Request) -> None:
    """Waits until `work` is done, with or without a result; cancels it if the client disconnects first.

    The body of the request has to be read before.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    disconnect = asyncio.create_task(_wait_for_disconnect(http))
    try:
        await asyncio.wait((work, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
    finally:
        work.cancel()
        disconnect.cancel()


def client_address(http: Request) -> str:
    """The address of another machine; empty for this one, whose clients all have the same address."""
    host = http.client.host if http.client else ""
    try:
        return "" if ipaddress.ip_address(host).is_loopback else host
    except ValueError:
        return ""


async def _wait_for_disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _is_unfinished(result: FillResult) -> bool:
    return not result.candidates and any(rejection.reason is Reason.UNFINISHED for rejection in result.rejections)


def _finished(result: FillResult) -> FillResult:
    if _is_unfinished(result):
        raise ApiError(504, "nothing was finished at the deadline; try again, or allow more time")
    return result


async def _chain(first: Frame | FillResult, stream: Stream) -> Stream:
    async with aclosing(stream):
        yield first
        async for item in stream:
            yield item
