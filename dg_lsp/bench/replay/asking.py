"""The model on the virtual clock: it answers one request after the other, each in the time that it really takes.

An attempt's model time is all of the engine's: a step of a stale request holds up the next one, whoever spent it.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from dg_lsp.bench.ways import unseen
from dg_lsp.context.document import LINE_END
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.remote_engine import RemoteEngine
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import FillResult
from dg_lsp.metrics.attempt import Attempt, Shown, is_same

CANCELLED = "cancelled"
"""An attempt's rejection when somebody typed on before the answer was there."""
WAY = "replay"


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One request of the editor, in virtual milliseconds."""

    site: str
    kind: str
    request: FillRequest
    coming: str
    """What is going to be typed after the cursor."""
    at_ms: float
    """When it is sent."""
    stale_ms: float
    """When the buffer changes: from then on nobody wants the answer."""


class Asker(Protocol):
    """Whoever answers questions, in the order in which they are asked."""

    def begin(self) -> None:
        """A new passage: the virtual clock stands at 0 again, and the model is free."""
        ...

    def ask(self, question: Question) -> Attempt:
        """What came of it. Its latency counts from `at_ms`."""
        ...


class LiveAsker:
    """An engine, which may still be busy with the step of a stale request when the next one comes."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._clock = clock
        """Seconds; read around every step."""
        self._is_seen = not isinstance(engine, RemoteEngine)
        """Its steps are; of a server the time that it is waited for stands for the model's."""
        self._free_ms = 0.0

    def begin(self, free_ms: float = 0.0) -> None:
        """See `Asker`; the model may be busy until `free_ms`, for a passage that is gone on with."""
        self._free_ms = free_ms

    def ask(self, question: Question) -> Attempt:
        """See `Asker`. A stale request stops after the step that it is in, and that step's time is spent.

        Raises:
            RequestError, BackendError: as the engine does.
        """
        begun = max(question.at_ms, self._free_ms)
        if begun >= question.stale_ms:
            return self._cancelled(question, waited_ms=question.stale_ms - question.at_ms, model_ms=0.0, steps=0)
        patience = self._engine.settings.deadline_ms - (begun - question.at_ms)
        start = self._clock()
        steps = self._engine.run(question.request, deadline=time.monotonic() + patience / 1e3)
        num, result, spent = self._run(steps, start, question.stale_ms - begun)
        self._free_ms = begun + spent
        latency = self._free_ms - question.at_ms
        if result is None or self._free_ms >= question.stale_ms:
            return self._cancelled(question, waited_ms=latency, model_ms=spent, steps=num)
        attempt = _answered(question, result, latency, spent)
        return attempt if self._is_seen else replace(unseen(attempt), model_ms=spent)

    def _run(
        self, steps: Generator[Progress, None, FillResult], start: float, early_stop_ms: float
    ) -> tuple[int, FillResult | None, float]:
        """Steps taken, the result unless it became stale before, and the milliseconds spent."""
        num = 0
        try:
            while 1e3 * (self._clock() - start) < early_stop_ms:
                next(steps)
                num += 1
        except StopIteration as end:
            result: FillResult = end.value
            return num, result, 1e3 * (self._clock() - start)
        steps.close()
        return num, None, 1e3 * (self._clock() - start)

    def _cancelled(self, question: Question, *, waited_ms: float, model_ms: float, steps: int) -> Attempt:
        return Attempt(
            site=question.site,
            kind=question.kind,
            way=WAY,
            plan=question.request.plan or self._engine.settings.plan,
            want=_reference(question.coming, ""),
            shown=(),
            is_exact=False,
            passes=None,
            latency_ms=waited_ms,
            steps=steps if self._is_seen else None,
            tokens=0,
            confidence=math.nan,
            rejection=CANCELLED,
            prefill_ms=0.0,
            model_ms=model_ms,
        )


class RecordedAsker:
    """Answers what was answered in an earlier run, and has an engine answer the rest."""

    def __init__(self, attempts: Iterable[Attempt], live: LiveAsker) -> None:
        self._attempts = {attempt.site: attempt for attempt in attempts}
        self._live = live
        self._free_ms = 0.0

    def begin(self) -> None:
        """See `Asker`."""
        self._free_ms = 0.0
        self._live.begin()

    def ask(self, question: Question) -> Attempt:
        """See `Asker`.

        Raises:
            RequestError, BackendError: as the engine does.
        """
        attempt = self._attempts.get(question.site)
        if attempt is None:
            return self._live.ask(question)
        if attempt.model_ms:
            self._free_ms = max(question.at_ms, self._free_ms) + attempt.model_ms
            self._live.begin(self._free_ms)
        return attempt


def _answered(question: Question, result: FillResult, latency_ms: float, model_ms: float) -> Attempt:
    text = result.text
    want = _reference(question.coming, text)
    return Attempt(
        site=question.site,
        kind=question.kind,
        way=WAY,
        plan=result.plan.value,
        want=want,
        shown=(Shown(latency_ms, text),) if text else (),
        is_exact=bool(text) and is_same(text, want),
        passes=None,
        latency_ms=latency_ms,
        steps=result.steps,
        tokens=round(result.tokens_per_forward * result.steps),
        confidence=result.candidates[0].score if result.candidates else math.nan,
        rejection=result.rejections[0].reason.value if result.rejections and not text else None,
        prefill_ms=result.timings.prefill,
        model_ms=model_ms,
    )


def _reference(coming: str, text: str) -> str:
    """As many lines of what is coming as the item has, at least one."""
    lines = LINE_END.split(coming)
    return "\n".join(lines[: len(LINE_END.split(text))])
