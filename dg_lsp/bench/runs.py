"""A run on disk: one header line, then one line per attempt, so that what was measured outlives an interruption.

Knows what a header says, not how attempts are made.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from dg_lsp.bench.machine import Machine
from dg_lsp.errors import InputFileError
from dg_lsp.metrics.attempt import Attempt

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Header:
    """What attempts must have in common to be counted together."""

    command: str
    """`infill`, `replay` or `compare`."""
    machine: Machine
    model: str
    model_sha256: str | None
    """None for a server's."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Input files, name to sha256."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for on the command line, as plain JSON values; a limit is none of them, so that it can grow."""

    def json(self) -> dict[str, Any]:
        """Plain JSON values."""
        tree: dict[str, Any] = {"dg_lsp_run": FORMAT, **dataclasses.asdict(self)}
        return {**tree, "data": dict(self.data), "options": dict(self.options)}

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> Self:
        """The header that `json` gave.

        Raises:
            KeyError, TypeError, ValueError: it is none, or of another format.
        """
        if tree["dg_lsp_run"] != FORMAT:
            raise ValueError(f"format {tree['dg_lsp_run']}")
        given = {key: value for key, value in tree.items() if key != "dg_lsp_run"}
        return cls(**{**given, "machine": Machine.parse(given["machine"])})

    def differences(self, other: "Header") -> list[str]:
        """Dotted names of what is not the same in both, for a message."""
        return _differences(json.loads(json.dumps(self.json())), json.loads(json.dumps(other.json())))


@dataclass(frozen=True, slots=True)
class Run:
    """A header and the attempts under it."""

    header: Header
    attempts: tuple[Attempt, ...]

    @classmethod
    def read(cls, path: Path) -> "Run":
        """A run from disk, without a torn last line.

        Raises:
            InputFileError: it cannot be read or is no run.
        """
        header, *lines = _complete_lines(path)
        return cls(_header(path, header), tuple(_attempt(path, i, line) for i, line in enumerate(lines, 2)))


class RunFile:
    """Attempts as they are made; with a path, each is on disk before the next one begins.

    A file that holds the same header is continued, and a line that an interruption tore is dropped.
    """

    def __init__(self, path: Path | None, header: Header) -> None:
        """Opens, creates or continues.

        Raises:
            InputFileError: the file cannot be written, is no run, or is another run.
        """
        self.header = header
        self._attempts: dict[tuple[str, str], Attempt] = {}
        self._file: BinaryIO | None = None
        if path is not None:
            self._file = self._open(path)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All of them, those of earlier sessions first."""
        return tuple(self._attempts.values())

    def has(self, site: str, way: str) -> bool:
        """This site was tried this way."""
        return (site, way) in self._attempts

    def add(self, attempt: Attempt) -> None:
        """One more; it is written at once.

        Raises:
            InputFileError: the disk is full, or the file is gone.
        """
        self._attempts[attempt.site, attempt.way] = attempt
        if self._file is not None:
            self._write(self._file, attempt.json())

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, path: Path) -> BinaryIO:
        first = _line(self.header.json())
        try:
            data = path.read_bytes() if path.exists() else b""
            if not first.startswith(data):  # else it is empty, or a header that was torn
                self._continue(path)
                file: BinaryIO = path.open("r+b")
                file.truncate(data.rfind(b"\n") + 1)
                file.seek(0, 2)
                return file
            file = path.open("wb")
        except OSError as error:
            raise InputFileError(f"cannot write {path}: {error.strerror or error}") from error
        self._write(file, self.header.json())
        return file

    def _continue(self, path: Path) -> None:
        run = Run.read(path)
        differences = run.header.differences(self.header)
        if differences:
            raise InputFileError(
                f"{path} holds a run of another kind ({', '.join(differences)} differ): "
                "name another --output, or delete that file"
            )
        self._attempts = {(attempt.site, attempt.way): attempt for attempt in run.attempts}

    def _write(self, file: BinaryIO, tree: Mapping[str, Any]) -> None:
        try:
            file.write(_line(tree))
            file.flush()
        except OSError as error:
            raise InputFileError(f"cannot write {file.name}: {error.strerror or error}") from error


def file_sha256(path: Path) -> str:
    """Of the file's bytes, in hexadecimal digits.

    Raises:
        InputFileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror or error}") from error


def _line(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, allow_nan=False).encode("ascii") + b"\n"


def _complete_lines(path: Path) -> list[bytes]:
    """At least one: the lines that end."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise InputFileError(f"no such file: {path}") from error
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror or error}") from error
    lines = data.split(b"\n")[:-1]
    if not lines:
        raise InputFileError(_no_run(path))
    return lines


def _header(path: Path, line: bytes) -> Header:
    try:
        return Header.parse(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputFileError(_no_run(path)) from error


def _attempt(path: Path, number: int, line: bytes) -> Attempt:
    try:
        return Attempt.parse(json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        raise InputFileError(f"{path}, line {number} is no attempt: delete that line, or the file") from error


def _no_run(path: Path) -> str:
    return f"{path} is no run of dg-lsp bench: name another file"


def _differences(one: Any, other: Any, name: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys([*one, *other])
        return [found for key in keys for found in _differences(one.get(key), other.get(key), f"{name}.{key}")]
    return [] if one == other else [name.removeprefix(".")]
