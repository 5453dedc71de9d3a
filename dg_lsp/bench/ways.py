"""Ways to answer a site: what a comparison asks, all alike. Here our own engine's; the peers have modules of their own.

A way knows its model and its cache, and nothing of the other ways.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dg_lsp.bench.sites import Site
from dg_lsp.context.document import Cursor, allowed_lines
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.remote_engine import RemoteEngine
from dg_lsp.engine.request import DecoderName, FillRequest
from dg_lsp.engine.result import FillResult
from dg_lsp.metrics.attempt import Attempt, Shown, is_same

ANSWER_SECONDS = 600.0
"""What takes longer is no answer."""


class Way(Protocol):
    """Something that fills sites, one at a time."""

    @property
    def name(self) -> str:
        """As attempts and tables call it."""
        ...

    def answer(self, site: Site) -> Attempt:
        """Fills one site and waits for the end of it, however long that takes.

        Raises:
            DgLspError: it cannot go on; attempts so far stand.
        """
        ...

    def notes(self) -> Sequence[str]:
        """What a reader of its numbers must know, in sentences."""
        ...

    def close(self) -> None:
        """Ends what it runs; harmless when repeated."""
        ...


def before_last_key(site: Site) -> Site:
    """The site one character earlier, as an editor has asked for it a moment before."""
    return replace(site, prefix=site.prefix[:-1])


@dataclass(frozen=True, slots=True)
class Terms:
    """What all ways are asked alike."""

    is_warm: bool = False
    """The prompt less its last character is in the cache already."""
    early_stop_ms: float = 0.0
    """After it whole lines are enough; 0 waits for all."""
    is_oracle: bool = False
    """As many lines are wanted as the reference has; else the place decides."""

    def num_lines(self, site: Site) -> int | None:
        """Lines that are wanted at a site; None is for any number."""
        return site.num_lines if self.is_oracle else allowed_lines(Cursor.at(site.snapshot.text, site.offset))


TERMS = Terms()
"""As an editor asks that shows a document for the first time, and waits."""


def first_lines(text: str, num: int | None) -> str:
    """So many of its lines, without their last line end; None is for all."""
    return text if num is None else "\n".join(text.split("\n")[:num])


@dataclass(frozen=True, slots=True)
class EngineWay:
    """An engine by one of its plans. The engine is its own: one shared by two ways would have the prompt cached for
    whichever comes second."""

    name: str
    engine: Engine
    plan: DecoderName
    terms: Terms = TERMS
    remarks: Sequence[str] = ()

    def answer(self, site: Site) -> Attempt:
        """See `Way.answer`."""
        if self.terms.is_warm:
            warm(self.engine, self.request(before_last_key(site)))
        start = time.perf_counter()
        result = self.engine.fill(self.request(site))
        return attempt_of(self.engine, result, site, self.name, 1e3 * (time.perf_counter() - start))

    def notes(self) -> Sequence[str]:
        """See `Way.notes`."""
        return self.remarks

    def close(self) -> None:
        """See `Way.close`."""
        self.engine.close()

    def request(self, site: Site) -> FillRequest:
        """What the engine is asked at a site."""
        return FillRequest(
            site.snapshot,
            site.offset,
            max_lines=self.terms.num_lines(site),
            plan=self.plan,
            early_stop_ms=self.terms.early_stop_ms,
            deadline_ms=1e3 * ANSWER_SECONDS,
        )


def warm(engine: Engine, request: FillRequest) -> None:
    """The request's prompt is in the cache afterwards. A server is asked for all of it, as by an editor before."""
    engine.fill(request, deadline=None if isinstance(engine, RemoteEngine) else time.monotonic())


def attempt_of(engine: Engine, result: FillResult, site: Site, way: str, ms: float) -> Attempt:
    """Its answer, which took `ms`, beside the reference."""
    best = result.candidates[0] if result.candidates else None
    attempt = Attempt(
        site=site.id,
        kind=site.kind,
        way=way,
        plan=result.plan.value,
        want=site.want,
        shown=(Shown(ms, best.text),) if best else (),
        is_exact=best is not None and is_same(best.text, site.want),
        passes=None,
        latency_ms=ms,
        steps=result.steps,
        tokens=round(result.tokens_per_forward * result.steps),
        confidence=best.score if best else math.nan,
        rejection=result.rejections[0].reason.value if result.rejections and not best else None,
        prefill_ms=result.timings.prefill,
        model_ms=result.timings.prefill + result.timings.predict,
    )
    return unseen(attempt) if isinstance(engine, RemoteEngine) else attempt


def unseen(attempt: Attempt) -> Attempt:
    """Of a server's answer: how sure it was and what it cost cannot be seen from here, unless it says so."""
    told = attempt.steps or None
    tokens = attempt.tokens if told else None
    return replace(attempt, steps=told, tokens=tokens, confidence=math.nan, prefill_ms=None, model_ms=None)
