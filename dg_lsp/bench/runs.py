"""Run files: a header line, then one line per attempt, so that an interrupted run can be resumed."""

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, Self

import dg_lsp
from dg_lsp.bench.metrics import Attempt
from dg_lsp.errors import InputFileError

FORMAT = 2
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware and versions. Only measurements on equal machines are comparable."""

    cpu: str
    cores: int
    """Cores that this process may use."""
    os: str
    python: str
    dg_lsp: str
    llama_cpp_python: str | None
    """None if it is not installed."""
    commit: str | None
    """Commit of dg-lsp, with `-dirty` for changed files; None outside a git checkout."""
    threads: int | None
    """CPU threads of a step; None for a remote server."""

    @classmethod
    def here(cls, threads: int | None) -> Self:
        """This machine."""
        return cls(
            cpu=_cpu(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            os=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            dg_lsp=dg_lsp.__version__,
            llama_cpp_python=_version("llama-cpp-python"),
            commit=_commit(Path(dg_lsp.__file__).parents[1]),
            threads=threads,
        )

    def line(self) -> str:
        """One line for a terminal."""
        commit = f" ({self.commit})" if self.commit else ""
        runtime = f", llama-cpp-python {self.llama_cpp_python}" if self.llama_cpp_python else ""
        cores = f"{self.cores} core" + "s" * (self.cores != 1)
        threads = "" if self.threads is None else f", {self.threads} thread" + "s" * (self.threads != 1)
        return f"{self.cpu}, {cores}{threads}; {self.os}; dg-lsp {self.dg_lsp}{commit}{runtime}, Python {self.python}"


@dataclass(frozen=True, slots=True)
class RunHeader:
    """Everything that attempts must share to be counted together."""

    command: str
    """`infill`, `replay` or `compare`."""
    machine: Machine
    model: str
    model_sha256: str | None
    """None for a remote server."""
    data: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each input file, by name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Command-line options as plain JSON values, without --limit, which may grow between sessions."""

    def json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"dg_lsp_run": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> Self:
        """Inverse of `json`.

        Raises:
            KeyError, TypeError, ValueError: not a header, or one of another format.
        """
        fields = dict(tree)
        if fields.pop("dg_lsp_run") != FORMAT:
            raise ValueError("another format")
        return cls(**{**fields, "machine": Machine(**fields["machine"])})

    def differences(self, other: Self) -> list[str]:
        """Dotted names of the values that differ, for a message."""
        return _differences(json.loads(json.dumps(self.json())), json.loads(json.dumps(other.json())))


@dataclass(frozen=True, slots=True)
class Run:
    """A header and its attempts."""

    header: RunHeader
    attempts: tuple[Attempt, ...]
    is_complete: bool = True
    """False after Ctrl-C."""
    notes: tuple[str, ...] = ()
    """Sentences that a reader of the numbers needs."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a run file and ignores an incomplete last line.

        Raises:
            InputFileError: the file is unreadable or not a run file.
        """
        try:
            header, *lines = path.read_bytes().split(b"\n")[:-1]
            parsed = RunHeader.parse(json.loads(header))
        except FileNotFoundError as error:
            raise InputFileError(f"no such file: {path}") from error
        except OSError as error:
            raise InputFileError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputFileError(f"{path} is not a run file of this version of dg-lsp: name another file") from error
        return cls(parsed, tuple(_parse_attempt(path, number, line) for number, line in enumerate(lines, 2)))


class RunFile:
    """Stores attempts as they are made; with a path, each one is on disk before the next one starts.

    An existing file with the same header is continued; an incomplete last line is dropped.
    """

    def __init__(self, path: Path | None, header: RunHeader) -> None:
        """Opens, creates or continues the file.

        Raises:
            InputFileError: the file is not writable, not a run file, or has a different header.
        """
        self._header = header
        self._attempts: dict[tuple[str, str], Attempt] = {}
        self._file: BinaryIO | None = None if path is None else self._open(path)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts, those of earlier sessions first."""
        return tuple(self._attempts.values())

    def has(self, case: str, contender: str) -> bool:
        """True if the contender already answered the case."""
        return (case, contender) in self._attempts

    def add(self, attempt: Attempt) -> None:
        """Stores an attempt and writes it immediately.

        Raises:
            InputFileError: the disk is full or the file is gone.
        """
        self._attempts[attempt.case, attempt.contender] = attempt
        if self._file is not None:
            self._write(self._file, attempt.json())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self, path: Path) -> BinaryIO:
        first = _line(self._header.json())
        try:
            data = path.read_bytes() if path.exists() else b""
            if not first.startswith(data):  # neither empty nor an incomplete copy of this header
                self._resume(path)
                file: BinaryIO = path.open("r+b")
                file.truncate(data.rfind(b"\n") + 1)
                file.seek(0, os.SEEK_END)
                return file
            file = path.open("wb")
        except OSError as error:
            raise InputFileError(f"cannot write {path}: {error.strerror or error}") from error
        self._write(file, self._header.json())
        return file

    def _resume(self, path: Path) -> None:
        run = Run.read(path)
        differences = run.header.differences(self._header)
        if differences:
            raise InputFileError(
                f"{path} holds a different run ({', '.join(differences)} differ): "
                "name another --output, or delete that file"
            )
        self._attempts = {(attempt.case, attempt.contender): attempt for attempt in run.attempts}

    @staticmethod
    def _write(file: BinaryIO, tree: Mapping[str, Any]) -> None:
        try:
            file.write(_line(tree))
            file.flush()
        except OSError as error:
            raise InputFileError(f"cannot write {file.name}: {error.strerror or error}") from error


def file_sha256(path: Path) -> str:
    """Digest of a file in hexadecimal.

    Raises:
        InputFileError: the file is unreadable.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror or error}") from error


def _line(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, allow_nan=False).encode("ascii") + b"\n"


def _parse_attempt(path: Path, number: int, line: bytes) -> Attempt:
    try:
        return Attempt.parse(json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        raise InputFileError(f"{path}, line {number} is not an attempt: delete that line, or the file") from error


def _differences(one: Any, other: Any, name: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys([*one, *other])
        return [found for key in keys for found in _differences(one.get(key), other.get(key), f"{name}.{key}")]
    return [] if one == other else [name.removeprefix(".")]


def _cpu() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit(root: Path) -> str | None:
    if not (root / ".git").exists():  # an installed package may lie inside an unrelated checkout
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
