"""From a request's future to its line in the audit log. Looks at numbers of results, never at texts."""

import datetime
import math
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dg_lsp.engine.result import FillResult
from dg_lsp.engine.rewrite import RewriteResult
from dg_lsp.machine import resident_bytes
from dg_lsp.metrics.audit import AuditLog, AuditRecord
from dg_lsp.postprocess.candidate import Reason
from dg_lsp.settings import AuditSettings

Write = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Ticket:
    """One request on its way."""

    endpoint: str
    requested_tokens: int
    came: float = field(default_factory=time.monotonic)
    """In `time.monotonic` seconds."""
    at: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"))

    def record(self, future: Future[Any]) -> AuditRecord:
        """What came of it."""
        total = time.monotonic() - self.came
        facts: dict[str, Any] = {"outcome": "cancelled", "queue_seconds": total}
        if not future.cancelled():
            error = future.exception()
            facts = _failed(error) if error else _told(future.result(), total)
        return AuditRecord(
            time=self.at,
            request=uuid.uuid4().hex,
            endpoint=self.endpoint,
            requested_tokens=self.requested_tokens,
            total_seconds=total,
            resident_bytes=resident_bytes() or 0,
            **{"model": "", **facts},
        )


class Auditor:
    """Has every request that it is shown written down when it ends, whoever ends it."""

    def __init__(self, settings: AuditSettings, complain: Write | None = None) -> None:
        """Writes nothing where no file is set. `complain` gets a sentence when the file cannot be written, once."""
        path = Path(settings.path).expanduser()
        self._log = AuditLog(path, settings.max_bytes, settings.keep, complain) if settings.path else None

    def watch(self, future: Future[Any], endpoint: str, requested_tokens: int | None = None) -> None:
        """From now on. `endpoint` is a path of the HTTP API or a method of LSP."""
        log = self._log
        if log is not None:
            ticket = _Ticket(endpoint, requested_tokens or 0)
            future.add_done_callback(lambda done: log.write(ticket.record(done)))


def _failed(error: BaseException) -> dict[str, Any]:
    return {"outcome": "failed", "reason": type(error).__name__}


def _told(result: FillResult | RewriteResult, total: float) -> dict[str, Any]:
    if isinstance(result, RewriteResult):
        reason = result.rejection.reason if result.rejection else None
        facts: dict[str, Any] = {"plan": "rewrite"}
    else:
        reason = None if result.candidates or not result.rejections else result.rejections[0].reason
        facts = _costs(result)
    generation = result.timings.denoise / 1e3
    outcome = "shown" if reason is None else "unfinished" if reason is Reason.UNFINISHED else "nothing"
    return {
        **facts,
        "model": result.model,
        "outcome": outcome,
        "reason": reason.value if reason else "",
        "steps": result.steps,
        "queue_seconds": 0.0 if facts.get("is_cached") else max(0.0, total - result.timings.total / 1e3),
        "prefill_seconds": result.timings.prefill / 1e3,
        "generation_seconds": generation,
        "visible_speed": _rate(facts.get("output_tokens", 0), generation),
        "canvas_speed": _rate(facts.get("canvas_tokens", 0), generation),
    }


def _costs(result: FillResult) -> dict[str, Any]:
    num_output = round(result.tokens_per_forward * result.steps)
    length = result.canvas_length if result.steps else 0
    return {
        "plan": result.plan.value,
        "is_cached": result.is_cached,
        "prompt_tokens": result.prompt_tokens,
        "reused_tokens": result.cached_tokens,
        "output_tokens": num_output,
        "canvas_tokens": max(1, math.ceil(num_output / length)) * length if length else 0,
        "slot": result.slot,
    }


def _rate(number: int, seconds: float) -> float:
    return number / seconds if seconds else 0.0
