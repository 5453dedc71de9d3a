"""Where requests meet the engine: who is admitted, who waits, who left.

Knows the worker and HTTP's errors; knows no dialect. Everything here runs on the event loop.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from dataclasses import replace

import attrs
from starlette.requests import ClientDisconnect, Request

from dg_lsp.engine.auditing import Auditor
from dg_lsp.engine.chat import ChatRequest
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.filling import Progress
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult, Frame
from dg_lsp.engine.worker import Worker
from dg_lsp.http.asked import Asked
from dg_lsp.http.counts import Counts
from dg_lsp.http.elsewhere import with_extra
from dg_lsp.http.fields import Fields, fields_of
from dg_lsp.http.leaving import unless_gone
from dg_lsp.http.refusal import CANCELLED, Refusal, loading, refusal_of
from dg_lsp.postprocess.candidate import Reason
from dg_lsp.settings import Settings

RETRY_SECONDS = 1
"""A fill takes less."""
_AT_ONCE_MS = 1e-6
"""A deadline that is over before the first step: the prompt is decoded and nothing is asked of it."""

OpenEngine = Callable[[Settings], Engine]
Submit = Callable[..., Future[FillResult]]
"""With what is to be called after each step, or without."""
Stream = AsyncGenerator[Frame | FillResult | Refusal, None]
"""Frames, then the result or what went wrong; closing it stops the engine."""


class Service:
    """Owns the worker, which opens the model at once."""

    def __init__(
        self, open_engine: OpenEngine, settings: Settings, complain: Callable[[str], None] | None = None
    ) -> None:
        """`complain` gets a sentence when the audit log cannot be written, once."""
        self.settings = settings
        self.counts = Counts()
        self.began = int(time.time())
        """Seconds since 1970."""
        # plugins keep the fills they got, and ask ahead themselves
        fill = attrs.evolve(settings.fill, type_through=False, speculate=False)
        self._worker = Worker(lambda: open_engine(attrs.evolve(settings, fill=fill)), fill)
        self._auditor = Auditor(settings.audit, complain)
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
        return self._counted(await self._run(self._submit(self._worker.submit, self._request(asked), request), request))

    async def stream_fill(self, asked: Asked, request: Request) -> Stream:
        """`fill` for who wants to look at the drafts; returns with the first of them.

        Raises:
            Refusal, ClientDisconnect: as `fill` does, as long as there was no draft.
        """
        return await self._begun(self._submit(self._worker.submit, self._request(asked), request), request)

    async def chat(self, asked: ChatRequest, request: Request) -> FillResult:
        """The answer to a conversation, as `fill`.

        Raises:
            Refusal, ClientDisconnect: as `fill` does.
        """
        return self._counted(await self._run(self._submit(self._worker.submit_chat, asked, request), request))

    async def stream_chat(self, asked: ChatRequest, request: Request) -> Stream:
        """The answer to a conversation while it is made, as `stream_fill`.

        Raises:
            Refusal, ClientDisconnect: as `stream_fill` does.
        """
        return await self._begun(self._submit(self._worker.submit_chat, asked, request), request)

    async def warm(self, asked: Asked, request: Request) -> FillResult:
        """Has the prompt decoded and nothing generated; while others are served, not even that.

        Raises:
            Refusal: as `fill` does, but for the deadline.
            ClientDisconnect: the client left.
        """
        prompt = replace(self._request(asked), deadline_ms=_AT_ONCE_MS)
        return await self._run(self._submit(self._worker.submit, prompt, request), request)

    def close(self) -> None:
        """Refuses who waits, stops the model, and waits for its end."""
        self._is_closed = True
        self._worker.close()

    def _request(self, asked: Asked) -> FillRequest:
        return with_extra(asked, self.engine().spec, self.settings)

    def _submit(
        self, submit: Callable[..., Future[FillResult]], asked: FillRequest | ChatRequest, request: Request
    ) -> Submit:
        """What submits it when its turn comes, and has it written down."""

        def submitted(*look: Callable[[Progress], None]) -> Future[FillResult]:
            future = submit(asked, *look)
            self._auditor.watch(future, request.url.path, asked.max_tokens)
            return future

        return submitted

    async def _run(self, submit: Submit, request: Request) -> FillResult:
        self._admit()
        with self._inside(submit()) as job:
            await unless_gone(job, request)
        return self._outcome(job)

    async def _begun(self, submit: Submit, request: Request) -> Stream:
        stream = self._frames(submit)
        first = (await unless_gone(asyncio.ensure_future(anext(stream)), request)).result()
        if isinstance(first, Refusal):
            raise first
        return _after(first, stream)

    async def _frames(self, submit: Submit) -> Stream:
        self._admit()
        loop, framer = asyncio.get_running_loop(), self.engine().framer()
        news: asyncio.Queue[Frame | None] = asyncio.Queue()

        def look(progress: Progress) -> None:
            loop.call_soon_threadsafe(news.put_nowait, framer.frame(progress))

        with self._inside(submit(look)) as job:
            job.add_done_callback(lambda _: news.put_nowait(None))
            while (frame := await news.get()) is not None:
                yield frame
        try:
            result = self._counted(self._outcome(job))
        except Refusal as refusal:
            yield refusal
        else:
            yield result

    def _admit(self) -> None:
        if self._num_inside >= self.settings.http.max_waiting:
            raise Refusal(503, "too many requests wait for the model; ask again later", retry_after=RETRY_SECONDS)

    @contextmanager
    def _inside(self, future: Future[FillResult]) -> Iterator["asyncio.Future[FillResult]"]:
        """The job as the event loop waits for it; whoever leaves the block by an exception cancels it."""
        self._num_inside += 1
        try:
            yield asyncio.wrap_future(future)
        except (ClientDisconnect, asyncio.CancelledError, GeneratorExit):
            future.cancel()  # at once: asyncio's own future would tell it in its next turn
            self.counts.num_left += 1
            raise
        finally:
            self._num_inside -= 1

    def _outcome(self, job: "asyncio.Future[FillResult]") -> FillResult:
        if job.cancelled():
            if self._is_closed:
                raise Refusal(503, "the server is leaving")
            raise Refusal(CANCELLED, "a newer request of this document took its place")
        if error := job.exception():
            raise refusal_of(error)
        return job.result()

    def _counted(self, result: FillResult) -> FillResult:
        if not result.candidates and any(one.reason is Reason.UNFINISHED for one in result.rejections):
            raise Refusal(504, "nothing was settled at the deadline; ask again, or allow more time")
        self.counts.add_fill(result)
        return result


async def _after(first: Frame | FillResult, stream: Stream) -> Stream:
    async with aclosing(stream):
        yield first
        async for news in stream:
            yield news
