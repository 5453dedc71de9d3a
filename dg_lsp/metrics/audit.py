"""The audit log: one JSON object a request, a line each. Numbers and names; never a text, never a path.

Several processes may write the same file: a line is one write at its end, and only who holds the lock renames files.
"""

import glob
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

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
    for name, field in kind.__dataclass_fields__.items():
        yield name, (int, float) if field.type is float else (field.type,)  # type: ignore[misc]


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
