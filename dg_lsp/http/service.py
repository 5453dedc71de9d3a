"""Where requests meet the engine: who is admitted, who waits, who left.

Knows the worker and HTTP's errors; knows no dialect. Everything here runs on the event loop.
"""

import asyncio
import ipaddress
import itertools
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import NoReturn

import attrs
from starlette.requests import ClientDisconnect, Request

from dg_lsp.engine.audit import Auditor
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import ChatRequest, Priority
from dg_lsp.engine.result import FillResult, Frame
from dg_lsp.engine.scheduler import Scheduler, SchedulerSession
from dg_lsp.http.asked import Asked
from dg_lsp.http.counts import Counts
from dg_lsp.http.elsewhere import with_extra
from dg_lsp.http.fields import Fields, fields_of
from dg_lsp.http.leaving import unless_gone
from dg_lsp.http.refusal import CANCELLED, Refusal, loading, refusal_of
from dg_lsp.http.runs import Begin, Runs, Show, Stake
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import Settings

LONGEST_WAIT = 60
"""Seconds after which anybody may ask again."""
_AT_ONCE_MS = 1e-6
"""A deadline that is over before the first step: the prompt is decoded and nothing is asked of it."""

OpenWorker = Callable[[Settings], Scheduler | SchedulerSession]
Join = Callable[[Show | None], Stake]
"""Takes a stake in a run, and maybe wants to see its frames."""
Stream = AsyncGenerator[Frame | FillResult | Refusal, None]
"""Frames, then the result or what went wrong; closing it stops the engine."""
_numbers = itertools.count(1)


class Service:
    """Owns the worker, which opens the model at once."""

    def __init__(
        self, open_worker: OpenWorker, settings: Settings, complain: Callable[[str], None] | None = None
    ) -> None:
        """`complain` gets a sentence when the audit log cannot be written, once."""
        self.settings = settings
        self.counts = Counts()
        self.began = int(time.time())
        """Seconds since 1970."""
        # plugins keep the fills they got, and ask ahead themselves
        fill = attrs.evolve(settings.fill, type_through=False, speculate=False)
        self._open_worker, self._wanted = open_worker, attrs.evolve(settings, fill=fill)
        self._worker = open_worker(self._wanted)
        self._auditor = Auditor(settings.audit, complain)
        self._runs = Runs(self._count)
        self._newest: dict[tuple[str, str], Stake] = {}
        self._inside: Counter[str] = Counter()
        """Requests by who sent them; '' is this machine."""
        self._is_closed = False

    @property
    def num_inside(self) -> int:
        """Requests that the model works on or that wait for it."""
        return self._inside.total()

    @property
    def num_shared(self) -> int:
        """Requests so far that the run of the very same one has answered."""
        return self._runs.num_shared

    @property
    def worker(self) -> Scheduler | SchedulerSession:
        """To be looked at."""
        return self._worker

    async def opened(self) -> Engine:
        """The engine, waited for.

        Raises:
            ModelError, BackendError: it could not be opened.
        """
        return await asyncio.wrap_future(self._worker.ready)

    def reopen(self) -> None:
        """Asks for the model again, which could not be opened."""
        self._worker.close()
        self._worker = self._open_worker(self._wanted)

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
        return _finished(await self._result(self._fill(asked, request), request))

    async def stream_fill(self, asked: Asked, request: Request) -> Stream:
        """`fill` for who wants to look at the drafts; returns with the first of them.

        Raises:
            Refusal, ClientDisconnect: as `fill` does, as long as there was no draft.
        """
        return await self._begun(self._fill(asked, request), request)

    async def chat(self, asked: ChatRequest, request: Request) -> FillResult:
        """The answer to a conversation, as `fill`.

        Raises:
            Refusal, ClientDisconnect: as `fill` does.
        """
        return _finished(await self._result(self._chat(asked, request), request))

    async def stream_chat(self, asked: ChatRequest, request: Request) -> Stream:
        """The answer to a conversation while it is made, as `stream_fill`.

        Raises:
            Refusal, ClientDisconnect: as `stream_fill` does.
        """
        return await self._begun(self._chat(asked, request), request)

    async def warm(self, asked: Asked, request: Request) -> FillResult:
        """Has the prompt decoded and nothing generated; while others are served, not even that.

        Raises:
            Refusal: as `fill` does, but for the deadline.
            ClientDisconnect: the client left.
        """
        prompt = replace(asked, deadline_ms=_AT_ONCE_MS, priority=Priority.WARM_UP)
        return await self._result(self._fill(prompt, request), request)

    def close(self) -> None:
        """Refuses who waits, stops the model, and waits for its end."""
        self._is_closed = True
        self._worker.close()

    def _fill(self, asked: Asked, request: Request) -> Join:
        wanted = with_extra(asked, self.engine().spec, self.settings)
        alone = replace(wanted, snapshot=replace(wanted.snapshot, uri=f"{wanted.snapshot.uri}?run={next(_numbers)}"))

        def join(show: Show | None) -> Stake:
            stake = self._stake(wanted, lambda look: self._worker.submit(alone, look), show, request, asked.max_tokens)
            if asked.client:
                self._supersede(asked.who, stake)
            return stake

        return join

    def _chat(self, asked: ChatRequest, request: Request) -> Join:
        anybodys = replace(asked, name="")
        return lambda show: self._stake(
            anybodys, lambda look: self._worker.submit_chat(asked, look), show, request, asked.max_tokens
        )

    def _stake(
        self, asked: Hashable, submit: Begin, show: Show | None, request: Request, max_tokens: int | None
    ) -> Stake:
        """A part in the run of what is asked. What begins one has it written down."""

        def begin(look: Callable[[Progress], None]) -> Future[FillResult]:
            future = submit(look)
            self._auditor.watch(future, request.url.path, max_tokens)
            return future

        return self._runs.join(asked, begin, self._worker.framer, show)

    def _supersede(self, who: tuple[str, str], stake: Stake) -> None:
        """The newest request of a client and file wins."""
        stale, self._newest[who] = self._newest.get(who), stake
        stake.outcome.add_done_callback(lambda _: self._newest.pop(who) if self._newest.get(who) is stake else None)
        if stale is not None:
            stale.leave()

    async def _result(self, join: Join, request: Request) -> FillResult:
        with self._admitted(request), self._held(join(None)) as stake:
            await unless_gone(stake.outcome, request)
        return self._outcome(stake)

    async def _begun(self, join: Join, request: Request) -> Stream:
        stream = self._frames(join, request)
        first = (await unless_gone(asyncio.ensure_future(anext(stream)), request)).result()
        if isinstance(first, Refusal):
            raise first
        return _after(first, stream)

    async def _frames(self, join: Join, request: Request) -> Stream:
        news: asyncio.Queue[Frame | None] = asyncio.Queue()
        with self._admitted(request), self._held(join(news.put_nowait)) as stake:
            stake.outcome.add_done_callback(lambda _: news.put_nowait(None))
            while (frame := await news.get()) is not None:
                yield frame
        try:
            result = _finished(self._outcome(stake))
        except Refusal as refusal:
            yield refusal
        else:
            yield result

    @contextmanager
    def _admitted(self, request: Request) -> Iterator[None]:
        limits, peer = self.settings.http, _peer(request)
        if self.num_inside >= limits.max_waiting:
            self._refuse(503, "too many requests wait for the model; ask again later")
        if peer and self._inside[peer] >= limits.max_per_client:
            self._refuse(429, f"{limits.max_per_client} requests of yours are being answered; ask again later")
        self._inside[peer] += 1
        try:
            yield
        finally:
            self._inside -= Counter((peer,))

    def _refuse(self, status: int, message: str) -> NoReturn:
        wait = min(LONGEST_WAIT, math.ceil(self.counts.mean_seconds * self.num_inside))
        raise Refusal(status, message, retry_after=max(1, wait))

    @contextmanager
    def _held(self, stake: Stake) -> Iterator[Stake]:
        """Whoever leaves the block by an exception gives it up."""
        try:
            yield stake
        except (ClientDisconnect, asyncio.CancelledError, GeneratorExit):
            stake.leave()
            self.counts.num_left += 1
            raise

    def _count(self, run: Future[FillResult]) -> None:
        if run.cancelled() or run.exception() or _is_unfinished(run.result()):
            return
        self.counts.add_fill(run.result())

    def _outcome(self, stake: Stake) -> FillResult:
        outcome = stake.outcome
        if outcome.cancelled():
            if self._is_closed:
                raise Refusal(503, "the server is leaving", retry_after=1)
            raise Refusal(CANCELLED, "a newer request of this document took its place")
        if error := outcome.exception():
            raise refusal_of(error)
        return outcome.result()


def _peer(request: Request) -> str:
    """The machine that asks, '' for this one: whoever is here cannot be told apart."""
    host = request.client.host if request.client else ""
    try:
        return "" if ipaddress.ip_address(host).is_loopback else host
    except ValueError:
        return ""


def _is_unfinished(result: FillResult) -> bool:
    return not result.candidates and any(one.reason is Reason.UNFINISHED for one in result.rejections)


def _finished(result: FillResult) -> FillResult:
    if _is_unfinished(result):
        raise Refusal(504, "nothing was settled at the deadline; ask again, or allow more time")
    return result


async def _after(first: Frame | FillResult, stream: Stream) -> Stream:
    async with aclosing(stream):
        yield first
        async for news in stream:
            yield news
