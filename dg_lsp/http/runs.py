"""What the model works on for HTTP: requests that ask the very same share one run. On the event loop only."""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from dg_lsp.engine.decoders.base import Framer, Progress
from dg_lsp.engine.result import FillResult, Frame

Begin = Callable[[Callable[[Progress], None]], Future[FillResult]]
"""Has the worker begun, with what is to be called after each pass."""
Show = Callable[[Frame], None]


class Stake:
    """What one request has in a run."""

    def __init__(self, run: "Run", show: Show | None) -> None:
        self.show = show
        self.outcome: asyncio.Future[FillResult] = asyncio.get_running_loop().create_future()
        """Cancelled when the run was stopped, or this request gave it up."""
        self._run = run

    def leave(self) -> None:
        """Gives it up; the last one to do so stops the model. Harmless when it is over."""
        self.outcome.cancel()
        self._run.leave(self)


class Run:
    """One job of the worker, for everybody who asked for it."""

    def __init__(
        self,
        begin: Begin,
        framer: Callable[[], Framer],
        on_end: Callable[["Run"], None],
        *,
        is_watched: bool,
    ) -> None:
        """`framer` is called by the model's thread, `on_end` when nobody can join any longer.

        Whether frames are made is said before the run begins: the model's first pass may be over before anybody joins.
        """
        self._loop = asyncio.get_running_loop()
        self._stakes: list[Stake] = []
        self._is_watched = is_watched
        self._framer = framer
        self._on_end = on_end
        self.future = begin(self._look)
        """What the worker will say."""
        self.future.add_done_callback(lambda _: self._later(self._end))

    def join(self, show: Show | None) -> Stake:
        """One more who waits, and maybe wants to see frames from now on."""
        stake = Stake(self, show)
        self._stakes.append(stake)
        self._is_watched = self._is_watched or show is not None
        return stake

    def leave(self, stake: Stake) -> None:
        """See `Stake.leave`."""
        if stake in self._stakes:
            self._stakes.remove(stake)
            if not self._stakes:
                self.future.cancel()
                self._on_end(self)

    def _look(self, progress: Progress) -> None:
        if self._is_watched:
            frame = self._framer().frame(progress)
            self._later(lambda: self._show(frame))

    def _show(self, frame: Frame) -> None:
        for stake in self._stakes:
            if stake.show is not None:
                stake.show(frame)

    def _end(self) -> None:
        for stake in self._stakes:
            if not stake.outcome.done():
                _copy(self.future, stake.outcome)
        self._stakes = []
        self._on_end(self)

    def _later(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any longer
            self._loop.call_soon_threadsafe(call)


class Runs:
    """Those under way, by what was asked."""

    def __init__(self, on_end: Callable[[Future[FillResult]], None]) -> None:
        """`on_end` is told of each run's end, once."""
        self._open: dict[Hashable, Run] = {}
        self._on_end = on_end
        self.num_shared = 0
        """Requests that found a run under way."""

    def join(self, asked: Hashable, begin: Begin, framer: Callable[[], Framer], show: Show | None = None) -> Stake:
        """A stake in the run of this very request, which is begun unless it is under way."""
        run = self._open.get(asked)
        if run is None:
            run = self._open[asked] = Run(begin, framer, partial(self._forget, asked), is_watched=show is not None)
        else:
            self.num_shared += 1
        return run.join(show)

    def _forget(self, asked: Hashable, run: Run) -> None:
        if self._open.get(asked) is run:
            del self._open[asked]
            self._on_end(run.future)


def _copy(future: Future[FillResult], outcome: "asyncio.Future[FillResult]") -> None:
    if future.cancelled():
        outcome.cancel()
    elif error := future.exception():
        outcome.set_exception(error)
    else:
        outcome.set_result(future.result())
