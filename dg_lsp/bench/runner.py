"""Runs contenders over test cases, tests their programs, and stores the attempts.

A run file has a header line, then one line per attempt, so that an interrupted run can be resumed.
"""

import dataclasses
import json
import os
import platform
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

import cattrs

import dg_lsp
from dg_lsp import system
from dg_lsp.bench import metrics
from dg_lsp.bench.contenders import Contender
from dg_lsp.bench.dataset import TestCase
from dg_lsp.errors import InputFileError
from dg_lsp.sandbox import Sandbox

WARM_UP = TestCase(
    "warm-up", "line-end", "def double(number):\n    return ", "\n\n\ndef half(number):\n    return number / 2\n", "x"
)
_TASK_NOTE = (
    "The task is that of the cursor position. Useful: the first line is right, or the program passes its tests. The"
    " costs are those of all requests of the row, divided by the number of exact edits."
)
INTERRUPTED_NOTE = "Interrupted: only the attempts until then are counted."
_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
_INVALID = (ValueError, TypeError, AttributeError, RecursionError, cattrs.BaseValidationError)

Progress = Callable[[str, int, int], AbstractContextManager[Callable[[int], object]]]
"""A progress bar by description, total and number already done; it yields a function that advances the bar."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware and versions. Only measurements on equal machines are comparable.

    The cores are those that this process may use, the threads those of a step; a remote server has none.
    """

    cpu: str
    cores: int
    os: str
    python: str
    dg_lsp: str
    llama_cpp_python: str | None
    threads: int | None

    @classmethod
    def here(cls, threads: int | None) -> Self:
        """This machine."""
        return cls(
            cpu=system.processor_name(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            os=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            dg_lsp=dg_lsp.__version__,
            llama_cpp_python=metadata.version("llama-cpp-python") if find_spec("llama_cpp") else None,
            threads=threads,
        )

    def line(self) -> str:
        """One line for a terminal."""
        runtime = f", llama-cpp-python {self.llama_cpp_python}" if self.llama_cpp_python else ""
        threads = "" if self.threads is None else f", {metrics.count(self.threads, 'thread')}"
        versions = f"dg-lsp {self.dg_lsp}{runtime}, Python {self.python}"
        return f"{self.cpu}, {metrics.count(self.cores, 'core')}{threads}; {self.os}; {versions}"


@dataclass(frozen=True, slots=True)
class RunHeader:
    """Everything that attempts must share to be counted together."""

    dg_lsp_run: Literal[4] = field(default=4, kw_only=True)  # version of the format
    command: str
    machine: Machine
    model: str
    model_sha256: str | None  # none for a remote server
    data: Mapping[str, str] = field(default_factory=dict)  # sha256 of each input file, by name
    options: Mapping[str, Any] = field(default_factory=dict)
    """Command-line options as plain JSON values, without --limit, which may grow between sessions."""


@dataclass(frozen=True, slots=True)
class Run:
    """A header and its attempts."""

    header: RunHeader
    attempts: tuple[metrics.Attempt, ...]
    is_complete: bool = True  # false after Ctrl-C
    notes: tuple[str, ...] = ()  # sentences that a reader of the numbers needs

    def facts(self) -> dict[str, Any]:
        """JSON values that the results of all commands contain."""
        model = {"model": self.header.model, "model_sha256": self.header.model_sha256}
        return {"is_complete": self.is_complete, **model, "machine": dataclasses.asdict(self.header.machine)}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a run file and ignores an incomplete last line.

        Raises:
            InputFileError: the file is not a run file.
            OSError: the file is unreadable.
        """
        try:
            header, *lines = path.read_bytes().split(b"\n")[:-1]
            parsed = _CONVERTER.structure(json.loads(header), RunHeader)
        except _INVALID as error:
            raise InputFileError(f"{path} is not a run file of this version of dg-lsp: name another file") from error
        attempts = []
        for number, line in enumerate(lines, 2):
            try:
                attempts.append(_CONVERTER.structure(json.loads(line), metrics.Attempt))
            except _INVALID as error:
                message = f"{path}, line {number} is not an attempt: delete that line, or the file"
                raise InputFileError(message) from error
        return cls(parsed, tuple(attempts))


class RunFile:
    """Stores attempts as they are made; with a path, each one is on disk before the next one starts.

    An existing file with the same header is continued; an incomplete last line is dropped.
    """

    def __init__(self, path: Path | None, header: RunHeader) -> None:
        """Opens, creates or continues the file.

        Raises:
            InputFileError: the file is not writable, not a run file, or has a different header.
        """
        self.attempts: dict[tuple[str, str], metrics.Attempt] = {}
        """By case and contender, those of earlier sessions first."""
        self._file: BinaryIO | None = None
        if path is not None:
            self._open(path, header)

    def add(self, attempt: metrics.Attempt) -> None:
        """Stores an attempt and writes it immediately.

        Raises:
            InputFileError: the disk is full or the file is gone.
        """
        self.attempts[attempt.case, attempt.contender] = attempt
        if self._file is not None:
            try:
                self._file.write(_line(attempt))
                self._file.flush()
            except OSError as error:
                raise InputFileError(f"cannot write {self._file.name}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # of a full disk, which `add` has reported; all else is written
                self._file.close()

    def _open(self, path: Path, header: RunHeader) -> None:
        first = _line(header)
        try:
            data = path.read_bytes() if path.exists() else b""
            is_new = first.startswith(data)  # empty, or an incomplete copy of this header
            run = Run(header, ()) if is_new else Run.read(path)
            if _line(run.header) != first:
                raise InputFileError(
                    f"{path} holds a run with another model, machine, version or option: name another --output, or "
                    "delete that file"
                )
            self.attempts = {(attempt.case, attempt.contender): attempt for attempt in run.attempts}
            self._file = path.open("wb" if is_new else "r+b")
            self._file.seek(self._file.truncate(0 if is_new else data.rfind(b"\n") + 1))
            if is_new:
                self._file.write(first)
                self._file.flush()
        except OSError as error:
            raise InputFileError(f"cannot write {path}: {error.strerror or error}") from error


def run_cases(
    cases: Sequence[TestCase],
    contenders: Sequence[Contender],
    header: RunHeader,
    output: Path | None = None,
    *,
    seed: int = 0,
    sandbox: Sandbox | None = None,
    progress: Progress = lambda *_: nullcontext(lambda _: None),
) -> Run:
    """Lets every contender answer every case. Ctrl-C ends the run and keeps its attempts.

    The contenders answer each case in random order, so that a change in the speed of the machine affects all of them
    alike. With an `output` file, attempts of earlier sessions are reused.

    Raises:
        InputFileError: the output file is not writable or holds a different run.
        DgLspError: a contender failed.
    """
    names = [contender.name for contender in contenders]
    with RunFile(output, header) as file:
        missing = [case for case in cases if not all((case.id, name) in file.attempts for name in names)]
        try:
            with progress(header.command, len(cases), len(cases) - len(missing)) as advance:
                for contender in contenders if missing and len(contenders) > 1 else ():
                    contender.answer(WARM_UP)  # the first answer pays for pages that are loaded once
                for case in missing:
                    # random, but the same for the same case and seed
                    ordered = random.Random(f"{seed} {case.id}").sample(contenders, len(contenders))
                    attempts = [
                        contender.answer(case)
                        for contender in ordered
                        if (case.id, contender.name) not in file.attempts
                    ]
                    for attempt in attempts:  # the tests run last, because they would slow the next contender down
                        file.add(attempt if sandbox is None else _with_test_result(attempt, case, sandbox))
                    advance(1)
            is_complete = True
        except KeyboardInterrupt:
            is_complete = False
    # the file may have more cases than this session
    keys = [(case.id, name) for name in names for case in cases]
    notes = [note for contender in contenders for note in contender.notes]
    notes += [] if is_complete else [INTERRUPTED_NOTE]
    return Run(header, tuple(file.attempts[key] for key in keys if key in file.attempts), is_complete, tuple(notes))


def infill_tables(run: Run) -> list[metrics.Table]:
    """Summaries by kind, and by language and task; calibration, if there is a confidence."""
    calibration = metrics.calibration_table(run.attempts)
    tables = [metrics.summary_table("By kind", metrics.by_kind(run.attempts))]
    tables.append(metrics.task_table(map(metrics.TaskResult.of, run.attempts), "exact", _TASK_NOTE))
    if calibration:
        tables.append(calibration)
    return tables


def _with_test_result(attempt: metrics.Attempt, case: TestCase, sandbox: Sandbox) -> metrics.Attempt:
    """The attempt with the result of its tests, which fail if nothing was shown."""
    program = case.program(attempt.text)
    return replace(attempt, passes=bool(attempt.text) and sandbox.run(program).passes) if program else attempt


def _line(value: RunHeader | metrics.Attempt) -> bytes:
    return json.dumps(dataclasses.asdict(value), allow_nan=False).encode() + b"\n"
