"""From a request's future to its line in the audit log. Looks at numbers of results, never at texts."""

import datetime
import glob
import json
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from dg_lsp.engine.result import FillResult, RewriteResult
from dg_lsp.postprocess.validate import Reason
from dg_lsp.settings import AuditSettings
from dg_lsp.system import resident_bytes

LOCK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One request and what it cost. Times in seconds, speeds in tokens a second; 0 where there was nothing."""

    time: str
    """When it came, UTC, ISO 8601."""
    request: str
    """Its id."""
    endpoint: str
    """A path of the HTTP API, a method of LSP, or `rewrite`."""
    model: str
    outcome: str
    """`shown`, `nothing` (not worth showing), `unfinished` (the deadline came first), `cancelled` or `failed`."""
    reason: str = ""
    """Why nothing was shown, or the kind of the error."""
    plan: str = ""
    is_cached: bool = False
    """The rest of an earlier fill; the model was not asked."""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens that the slot held already."""
    requested_tokens: int = 0
    """The longest answer that was asked for; 0 leaves it to the settings."""
    output_tokens: int = 0
    canvas_tokens: int = 0
    """Of all canvases that the answer took."""
    steps: int = 0
    slot: int = -1
    """Of the KV cache; -1 where none was taken."""
    queue_seconds: float = 0.0
    """Before the model turned to it; of a cancelled request all of its time, for nobody knows how far it came."""
    prefill_seconds: float = 0.0
    """Making the prompt and decoding what the slot lacked of it."""
    generation_seconds: float = 0.0
    total_seconds: float = 0.0
    """From its arrival to its answer."""
    visible_speed: float = 0.0
    """Output tokens over generation."""
    canvas_speed: float = 0.0
    """Canvas tokens over generation: what the model computed of which the output is a part."""
    resident_bytes: int = 0
    """Memory of this process when it was answered."""

    @property
    def is_success(self) -> bool:
        """It was answered, be it that nothing is worth showing."""
        return self.outcome in ("shown", "nothing")

    def line(self) -> bytes:
        """The record as it stands in the file."""
        tree = {name: round(value, 6) if type(value) is float else value for name, value in asdict(self).items()}
        return json.dumps({**tree, "success": self.is_success}, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, line: str | bytes) -> Self:
        """The record that `line` gave; keys of later versions are left out.

        Raises:
            ValueError: it is no such line.
        """
        tree = json.loads(line, parse_constant=_no_number)
        try:
            record = cls(**{name: tree[name] for name in cls.__dataclass_fields__ if name in tree})
        except TypeError as error:
            raise ValueError("no object, or a key is missing") from error
        wrong = [name for name, kind in _kinds(cls) if not isinstance(getattr(record, name), kind)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} of another type")
        return record


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _kinds(kind: type[AuditRecord]) -> Iterator[tuple[str, tuple[type, ...]]]:
    """What each field may be in a file: JSON tells no 1.0 from 1."""
    for name, one in kind.__dataclass_fields__.items():
        yield name, (int, float) if one.type is float else (one.type,)  # type: ignore[misc]


class AuditLog:
    """A file that is renamed to `.1`, `.2`, ... when it is full. Any thread may write.

    Nothing that happens to the file stops a request: the first failure is handed to `complain`, and later records are
    tried again.
    """

    def __init__(self, path: Path, max_bytes: int, keep: int, complain: Callable[[str], None] | None = None) -> None:
        """At most `max_bytes` in a file, and `keep` older ones beside it."""
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._complain = complain
        self._lock = threading.Lock()
        self._rotation = FileLock(f"{path}.lock", timeout=LOCK_SECONDS)

    def write(self, record: AuditRecord) -> None:
        """Appends a line."""
        line = record.line()
        with self._lock:
            try:
                if _size(self._path) + len(line) > self._max_bytes:
                    self._rotate(len(line))
                self._append(line)
            except (OSError, Timeout) as error:
                said, self._complain = self._complain, None
                if said is not None:
                    said(f"the audit log {self._path} cannot be written: {getattr(error, 'strerror', None) or error}")

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def _rotate(self, num_bytes: int) -> None:
        with self._rotation:
            if _size(self._path) + num_bytes <= self._max_bytes or not self._path.exists():
                return  # another process was faster, or there is nothing to rename
            for number in range(self._keep - 1, 0, -1):
                if (older := self._numbered(number)).exists():
                    older.replace(self._numbered(number + 1))
            if self._keep:
                self._path.replace(self._numbered(1))
            else:
                self._path.unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def read_records(path: Path) -> tuple[list[AuditRecord], int]:
    """The records of a log and of the files put aside from it, oldest first; and how many lines are none.

    Raises:
        OSError: the file cannot be read.
    """
    older = [file for file in path.parent.glob(f"{glob.escape(path.name)}.*") if file.suffix[1:].isdigit()]
    records, num_bad = [], 0
    for file in (*sorted(older, key=lambda file: -int(file.suffix[1:])), path):
        for line in file.read_bytes().splitlines():
            try:
                records.append(AuditRecord.parse(line))
            except ValueError:
                num_bad += 1
    return records, num_bad


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


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
