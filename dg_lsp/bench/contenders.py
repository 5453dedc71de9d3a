"""Contenders of a benchmark: anything that fills test cases. Here the engine; benchmarks/ adds llama-server."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.metrics import Attempt
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import Cursor, allowed_lines
from dg_lsp.context.edit_task import EditTask
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.remote_engine import RemoteEngine
from dg_lsp.engine.request import FillRequest, FillResult, Priority
from dg_lsp.settings import NO_OPTIONS, SamplerOptions

ANSWER_SECONDS = 600.0
"""Time limit of one answer."""


class LengthHint(StrEnum):
    """Length of the fill that is given to a contender; never a number of tokens."""

    NONE = "none"
    ORACLE = "oracle"

    @property
    def sentence(self) -> str:
        """Explanation for a report."""
        if self is LengthHint.ORACLE:
            return "The number of lines of each reference was known (oracle)."
        return "The length was unknown: the position of the cursor limits the number of lines."


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of the requests, the same for all contenders.

    Without a deadline the fill always ends. After the early stop whole lines are enough; 0 is never, None the setting.
    """

    length: LengthHint = LengthHint.NONE
    deadline_ms: float | None = None
    early_stop_ms: float | None = None
    is_warm: bool = False  # the KV cache holds the prompt without its last character, as while typing
    sampler: SamplerOptions = NO_OPTIONS  # for decoders that denoise a canvas

    @property
    def time_limits(self) -> str:
        """Explanation for a report."""
        limits = []
        if self.deadline_ms is not None and self.deadline_ms < 1e3 * ANSWER_SECONDS:
            limits.append(f"a deadline of {self.deadline_ms:g} ms")
        if self.early_stop_ms:
            limits.append(f"an early stop after {self.early_stop_ms:g} ms")
        elif self.early_stop_ms is None and self.deadline_ms is not None:
            limits.append("the early stop of the settings")
        return f"The fills had {' and '.join(limits)}." if limits else "No deadline or early stop shortened a fill."

    def num_lines(self, case: TestCase) -> int | None:
        """Maximum number of lines for a case; None for any number."""
        if self.length is LengthHint.ORACLE:
            return case.reference.rstrip("\n").count("\n") + 1
        return allowed_lines(Cursor.at(case.snapshot.text, case.offset))


DEFAULT_OPTIONS = RequestOptions()


class Contender(Protocol):
    """Fills test cases, one at a time. Has its own model and cache, and a name for attempts and tables."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def notes(self) -> Sequence[str]:
        """Sentences that a reader of its numbers needs."""

    def answer(self, case: TestCase) -> Attempt:
        """Fills one case and waits for the final answer.

        Raises:
            DgLspError: the contender failed; earlier attempts remain valid.
        """

    def close(self) -> None:
        """Releases its processes and models. Idempotent."""


@dataclass(frozen=True, slots=True)
class EngineContender:
    """An engine with one of its decoders. Contenders must not share an engine, and so its cache."""

    name: str
    engine: Engine
    decoder: DecoderName | None = None  # none takes the setting
    options: RequestOptions = DEFAULT_OPTIONS
    notes: Sequence[str] = ()

    def answer(self, case: TestCase) -> Attempt:
        """See `Contender.answer`."""
        is_remote = isinstance(self.engine, RemoteEngine)
        if self.options.is_warm:
            before = self.request(case.before_last_key())
            # a request for no tokens only decodes the prompt; a remote server must complete the request
            self.engine.fill(before if is_remote else replace(before, max_tokens=0), deadline=math.inf)
        start = time.perf_counter()
        # the deadline of the settings applies to requests without their own, unless it is overridden here
        result = self.engine.fill(self.request(case), deadline=math.inf if self.options.deadline_ms is None else None)
        return attempt_of(result, case, self.name, 1e3 * (time.perf_counter() - start), is_remote=is_remote)

    def close(self) -> None:
        """See `Contender.close`."""
        self.engine.close()

    def request(self, case: TestCase) -> FillRequest:
        """The request for a case."""
        return FillRequest(
            case.snapshot,
            case.offset,
            max_lines=self.options.num_lines(case),
            decoder=self.decoder,
            early_stop_ms=self.options.early_stop_ms,
            deadline_ms=self.options.deadline_ms,
            priority=Priority.INVOKED,
            sampler=self.options.sampler,
        )


def attempt_for(
    case: TestCase, contender: str, decoder: str, text: str, latency_ms: float, rejection: str | None = None
) -> Attempt:
    """Attempt with this text, empty for none; its costs are not known yet."""
    return Attempt(
        case=case.id,
        kind=case.kind,
        contender=contender,
        decoder=decoder,
        reference=case.reference,
        language=case.language,
        task=EditTask.at(case.snapshot, case.offset).value,
        text=text,
        latency_ms=latency_ms,
        rejection=rejection,
    )


def attempt_of(result: FillResult, case: TestCase, contender: str, ms: float, *, is_remote: bool) -> Attempt:
    """Attempt for a result of the engine. A remote server does not report all costs."""
    attempt = attempt_for(case, contender, result.decoder.value, result.text, ms, result.reason)
    if not is_remote or result.steps:
        attempt = replace(attempt, steps=result.steps, tokens=result.output_tokens)
    if is_remote:
        return attempt
    prefill_ms = result.timings.prefill
    confidence = result.candidates[0].confidence if result.candidates else None
    return replace(attempt, prefill_ms=prefill_ms, model_ms=prefill_ms + result.timings.predict, confidence=confidence)
