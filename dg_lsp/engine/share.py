"""A worker as one of several sessions sees it: with settings and documents of its own, and an end of its own."""

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from dg_lsp.context.snapshot import Snapshot
from dg_lsp.diffusion.denoiser import Footprint
from dg_lsp.engine.chat import ChatRequest
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.filling import Progress
from dg_lsp.engine.frames import Framer
from dg_lsp.engine.jobs import Spent
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult
from dg_lsp.engine.rewrite import RewriteRequest, RewriteResult
from dg_lsp.engine.worker import Worker
from dg_lsp.settings import FillSettings

_numbers = itertools.count(1)
_Request = TypeVar("_Request", FillRequest, RewriteRequest)


class Share:
    """Has a worker's methods. Two of them never cancel each other's requests, even for one document."""

    def __init__(
        self,
        worker: Worker,
        settings: FillSettings,
        on_close: Callable[[], None],
        on_submit: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_submit` is called before the worker gets a request."""
        self._worker = worker
        self._on_submit = on_submit
        self._settings = settings
        self._on_close = on_close
        self._number = next(_numbers)
        self._pending: set[Future[Any]] = set()
        self._is_closed = False

    @property
    def ready(self) -> Future[Engine]:
        """See `Worker.ready`."""
        return self._worker.ready

    @property
    def spent(self) -> Spent:
        """The thread's, for all of them."""
        return self._worker.spent

    def submit(self, request: FillRequest, on_step: Callable[[Progress], None] | None = None) -> Future[FillResult]:
        """See `Worker.submit`."""
        self._on_submit()
        return self._noted(self._worker.submit(self._named(request), on_step, self._settings))

    def submit_rewrite(
        self, request: RewriteRequest, on_step: Callable[[Progress], None] | None = None
    ) -> Future[RewriteResult]:
        """See `Worker.submit_rewrite`."""
        self._on_submit()
        return self._noted(self._worker.submit_rewrite(self._named(request), on_step, self._settings))

    def submit_chat(
        self, request: ChatRequest, on_step: Callable[[Progress], None] | None = None
    ) -> Future[FillResult]:
        """See `Worker.submit_chat`."""
        self._on_submit()
        named = replace(request, name=f"{request.name}?client={self._number}")
        return self._noted(self._worker.submit_chat(named, on_step))

    @property
    def is_asleep(self) -> bool:
        """See `Worker.is_asleep`."""
        return self._worker.is_asleep

    @property
    def footprint(self) -> Footprint:
        """See `Worker.footprint`."""
        return self._worker.footprint

    def framer(self) -> Framer:
        """See `Worker.framer`."""
        return self._worker.framer()

    def configure(self, settings: FillSettings) -> None:
        """See `Worker.configure`."""
        self._settings = settings
        self._number = next(_numbers)  # what is remembered of the old documents is nobody's any more

    def close(self) -> None:
        """Cancels what is under way and leaves the model to the others. Harmless, also twice."""
        for future in tuple(self._pending):
            future.cancel()
        if not self._is_closed:
            self._is_closed = True
            self._on_close()

    def _named(self, request: _Request) -> _Request:
        snapshot: Snapshot = request.snapshot
        return replace(request, snapshot=replace(snapshot, uri=f"{snapshot.uri}?client={self._number}"))

    def _noted(self, future: Future[Any]) -> Future[Any]:
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future
