"""The audit log: lines of numbers for each request and its outcome, never a text."""

import json
import os
import stat
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import cattrs
from filelock import FileLock, Timeout

from dg_lsp.context.edit_task import EditTask
from dg_lsp.context.languages import language_of
from dg_lsp.diffusion.denoiser import Footprint
from dg_lsp.engine.edit_source import NextEditRequest, NextEditResult
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import EngineRequest, FillRequest, FillResult, RewriteRequest, RewriteResult
from dg_lsp.engine.ttfue import EVENT, Outcome, rounded
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import PrivacySettings
from dg_lsp.system import expanded, resident_bytes

MAX_BYTES = 20_000_000  # size at which a log is renamed to `.1`, in place of an older one, and a new log begins


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One request and its cost. Times in seconds, rates per second; 0 where nothing was computed.

    A rate over less than a millisecond is 0 too: a short prompt is decoded in the first pass of the generation.
    """

    time: str  # of arrival, UTC, ISO 8601
    request: str  # an id
    endpoint: str  # a path of the HTTP API, or a method or a command of LSP
    outcome: str
    """`shown`, `nothing` (not worth showing), `unfinished` (the deadline came first), `cancelled`, `failed`, `refused`
    (by the HTTP server), or `ineligible` (not computed, for example because the file is excluded; only completions that
    the user requested are recorded)."""
    reason: str = ""  # why nothing was shown, the class of the error, or the status of a refusal
    task: str = ""  # see `EditTask`; empty for a conversation, like the language
    language: str = ""  # LSP language id, `plaintext` if it is not in our table
    model: str = ""
    decoder: str = ""
    is_cached: bool = False  # the rest of an earlier fill, without a new model call
    prompt_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens that were in the KV cache
    output_tokens: int = 0
    canvas_tokens: int = 0  # of all canvases that were denoised
    steps: int = 0
    step_limit: int = 0  # most passes over a canvas, or most tokens where there is none; 0 if unknown
    queue_seconds: float = 0.0  # before the model started on it; of a cancelled request its whole time
    setup_seconds: float = 0.0  # building the prompt
    prefill_seconds: float = 0.0  # building the prompt and decoding what the cache lacked of it
    generation_seconds: float = 0.0
    total_seconds: float = 0.0  # from arrival to answer
    prompt_rate: float = 0.0  # tokens that were decoded of the prompt, per second without building it
    output_rate: float = 0.0  # tokens per second of generation
    step_rate: float = 0.0  # forward passes per second of generation
    resident_bytes: int = 0  # memory of this process at the time of the answer
    gpu: str = ""  # names of the GPUs that the model runs on
    gpu_budget_bytes: int = 0  # GPU memory that was estimated for the model and its cache


Record = AuditRecord | Outcome


def line_of(record: Record) -> bytes:
    """The record as a line of the log; times have microseconds."""
    tree = rounded(asdict(record), digits=6)
    tree["model"] = record.model.replace("\\", "/").rpartition("/")[2]  # a server may report the path of its file
    return json.dumps(tree, separators=(",", ":")).encode() + b"\n"


class AuditLog:
    """A file of records. Any thread of any process may write.

    An error of the file never stops a request: the first one is passed to `on_error`, and later records try again.
    """

    @classmethod
    def of(cls, settings: PrivacySettings, on_error: Callable[[str], None] | None = None) -> Self | None:
        """The log of these settings, if they set one."""
        return cls(expanded(settings.audit_log), on_error) if settings.audit_log else None

    def __init__(self, path: Path, on_error: Callable[[str], None] | None = None) -> None:
        self._path = path
        self._on_error = on_error
        self._lock = threading.Lock()
        self._rotation = FileLock(f"{path}.lock", timeout=1.0)

    def finished(
        self, request: EngineRequest[Any], outcome: Future[Any], seconds: float, engine: Engine | None
    ) -> None:
        """See `SchedulerListener`. Records the request."""
        footprint = Footprint() if engine is None else engine.footprint
        record = replace(
            _record(request, "cancelled", seconds),
            queue_seconds=seconds,
            resident_bytes=resident_bytes(),
            gpu=", ".join(device.name for device in footprint.devices),
            gpu_budget_bytes=footprint.gpu_estimate if footprint.devices else 0,
        )
        if not outcome.cancelled():
            error = outcome.exception()
            if error is None:
                record = _answered(record, outcome.result())
            else:
                record = replace(record, outcome="failed", reason=type(error).__name__, queue_seconds=0.0)
        self.write(record)

    def write_unserved(self, request: EngineRequest[Any], outcome: str, reason: str) -> None:
        """Records a request that no model served."""
        self.write(replace(_record(request, outcome), reason=reason))

    def write(self, record: Record) -> None:
        """Appends a line."""
        line = line_of(record)
        with self._lock:
            try:
                if self._is_full(line):
                    with self._rotation:
                        if self._is_full(line):  # no other process has renamed it meanwhile
                            self._path.replace(older_log(self._path))
                with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb", 0) as file:
                    _make_private(file.fileno())
                    file.write(line)
            except (OSError, Timeout) as error:
                if self._on_error is not None:
                    reason = getattr(error, "strerror", None) or error
                    self._on_error(f"the audit log {self._path} cannot be written: {reason}")
                    self._on_error = None

    def _is_full(self, line: bytes) -> bool:
        try:
            return self._path.stat().st_size + len(line) > MAX_BYTES
        except FileNotFoundError:  # not written yet, or renamed by another process right now
            return False


def _make_private(descriptor: int) -> None:
    """Takes the rights of others from a file that was there before; OSError if it belongs to another user."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) and mode & 0o077 and hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o600)


def older_log(path: Path) -> Path:
    """The file that a full log is renamed to."""
    return path.with_name(f"{path.name}.1")


def read_log(path: Path) -> tuple[list[AuditRecord], list[Outcome], int]:
    """Requests and outcomes of a log and of the older file beside it, oldest first, and the number of other lines.

    Unknown keys are ignored.

    Raises:
        OSError: a file cannot be read.
    """
    records: list[AuditRecord] = []
    outcomes: list[Outcome] = []
    num_bad = 0
    for file in (older_log(path), path) if older_log(path).exists() else (path,):
        for line in file.read_bytes().splitlines():
            try:
                tree = json.loads(line)
                if isinstance(tree, dict) and tree.get("event") == EVENT:
                    outcomes.append(cattrs.structure(tree, Outcome))
                else:
                    records.append(cattrs.structure(tree, AuditRecord))
            except (ValueError, RecursionError, cattrs.BaseValidationError):
                num_bad += 1
    return records, outcomes, num_bad


def _record(request: EngineRequest[Any], outcome: str, seconds: float = 0.0) -> AuditRecord:
    """What is known of a request that has ended so many seconds after its arrival."""
    task, language = _task_of(request)
    return AuditRecord(
        (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds"),
        request.id or uuid.uuid4().hex,
        request.endpoint,
        outcome,
        task=task,
        language=language,
        total_seconds=seconds,
    )


def _task_of(request: EngineRequest[Any]) -> tuple[str, str]:
    match request:
        case FillRequest():
            task = EditTask.at(request.snapshot, request.offset)
        case RewriteRequest():
            task = EditTask.INSTRUCTION if request.instruction.strip() else EditTask.REWRITE
        case NextEditRequest():
            task = EditTask.NEXT_EDIT
        case _:
            return "", ""
    return task.value, language_of(request.snapshot.language).id


def _answered(record: AuditRecord, result: FillResult | RewriteResult | NextEditResult) -> AuditRecord:
    reason = result.reason
    record = replace(
        record,
        outcome="shown" if reason is None else "unfinished" if reason is Reason.UNFINISHED else "nothing",
        reason=reason.value if reason else "",
        model=result.model,
        decoder="rewrite",
        steps=result.steps,
        step_limit=0 if isinstance(result, NextEditResult) else result.step_limit,
        queue_seconds=max(0.0, record.total_seconds - result.timings.total / 1e3),
        setup_seconds=result.timings.setup / 1e3,
        prefill_seconds=result.timings.prefill / 1e3,
        generation_seconds=result.timings.denoise / 1e3,
        step_rate=_rate(result.steps, result.timings.denoise),
    )
    if not isinstance(result, FillResult):
        return record
    num_decoded = result.prompt_tokens - result.cached_tokens
    return replace(
        record,
        decoder=result.decoder.value,
        is_cached=result.is_cached,
        prompt_tokens=result.prompt_tokens,
        reused_tokens=result.cached_tokens,
        output_tokens=result.output_tokens,
        canvas_tokens=result.canvas_tokens,
        prompt_rate=_rate(num_decoded, result.timings.prefill - result.timings.setup),
        output_rate=_rate(result.output_tokens, result.timings.denoise),
        queue_seconds=0.0 if result.is_cached else record.queue_seconds,
    )


def _rate(num: int, ms: float) -> float:
    return 1e3 * num / ms if ms >= 1 else 0.0
