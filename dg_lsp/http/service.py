"""Where requests meet the engine: who is admitted, who waits, who left.

Knows the worker and HTTP's errors; knows no dialect. Everything here runs on the event loop.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import attrs
from starlette.requests import ClientDisconnect, Request

from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult
from dg_lsp.engine.worker import Worker
from dg_lsp.http.asked import Asked
from dg_lsp.http.counts import Counts
from dg_lsp.http.fields import Fields, fields_of
from dg_lsp.http.refusal import CANCELLED, Refusal, loading, refusal_of
from dg_lsp.postprocess.candidate import Reason
from dg_lsp.settings import Settings

RETRY_SECONDS = 1
"""A fill takes less."""
_AT_ONCE_MS = 1e-6
"""A deadline that is over before the first step: the prompt is decoded and nothing is asked of it."""

OpenEngine = Callable[[Settings], Engine]


class Service:
    """Owns the worker, which opens the model at once."""

    def __init__(self, open_engine: OpenEngine, settings: Settings) -> None:
        self.settings = settings
        self.counts = Counts()
        self.began = int(time.time())
        """Seconds since 1970."""
        # plugins keep the fills they got, and ask ahead themselves
        fill = attrs.evolve(settings.fill, type_through=False, speculate=False)
        self._worker = Worker(lambda: open_engine(attrs.evolve(settings, fill=fill)), fill)
        self._num_inside = 0
        self._is_closed = False

    @property
    def num_inside(self) -> int:
        """Requests that the model works on or that wait for it."""
        return self._num_inside

    async def opened(self) -> Engine:
        """The engine, waited for.

        Raises:
            ModelError, BackendError: it could not be opened.
        """
        return await asyncio.wrap_future(self._worker.ready)

    def engine(self) -> Engine:
        """The engine, for what may be read of it.

        Raises:
            Refusal: it is not there yet, or could not be opened.
        """
        ready = self._worker.ready
        if not ready.done():
            raise loading()
        if error := ready.exception():
            raise refusal_of(error)
        return ready.result()

    async def read(self, request: Request) -> Fields:
        """A request's body; before the model is there, nobody's.

        Raises:
            Refusal: the model is not there, or the body is bad.
        """
        self.engine()
        return await fields_of(request, self.settings.http.max_body_bytes)

    async def fill(self, asked: Asked, request: Request) -> FillResult:
        """The engine's result; a client that leaves stops the engine within one step.

        Raises:
            Refusal: too many wait, a newer request took its place, the deadline came first, the engine failed.
            ClientDisconnect: the client left.
        """
        result = await self._run(asked.request(), request)
        if not result.candidates and any(one.reason is Reason.UNFINISHED for one in result.rejections):
            raise Refusal(504, "nothing was settled at the deadline; ask again, or allow more time")
        self.counts.add_fill(result)
        return result

    async def warm(self, asked: Asked, request: Request) -> FillResult:
        """Has the prompt decoded and nothing generated; while others are served, not even that.

        Raises:
            Refusal: as `fill` does, but for the deadline.
            ClientDisconnect: the client left.
        """
        return await self._run(replace(asked.request(), deadline_ms=_AT_ONCE_MS), request)

    def close(self) -> None:
        """Refuses who waits, stops the model, and waits for its end."""
        self._is_closed = True
        self._worker.close()

    async def _run(self, asked: FillRequest, request: Request) -> FillResult:
        if self._num_inside >= self.settings.http.max_waiting:
            raise Refusal(503, "too many requests wait for the model; ask again later", retry_after=RETRY_SECONDS)
        job = asyncio.wrap_future(self._worker.submit(asked))
        leaving = asyncio.create_task(_until_gone(request))
        both: set[asyncio.Future[Any]] = {job, leaving}
        self._num_inside += 1
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._num_inside -= 1
            has_left = not job.done()
            job.cancel()
            leaving.cancel()
        if has_left:
            self.counts.num_left += 1
            raise ClientDisconnect
        return self._outcome(job)

    def _outcome(self, job: "asyncio.Future[FillResult]") -> FillResult:
        if job.cancelled():
            if self._is_closed:
                raise Refusal(503, "the server is leaving")
            raise Refusal(CANCELLED, "a newer request of this document took its place")
        if error := job.exception():
            raise refusal_of(error)
        return job.result()


async def _until_gone(request: Request) -> None:
    """Returns when the client has left; its body has to be read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
