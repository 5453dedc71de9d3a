"""Runs contenders over test cases, tests their programs, and stores the attempts.

A contender is anything that fills test cases: here the engine; benchmarks/ adds llama-server. A run file has a header
line, then one line per attempt, so that an interrupted run can be resumed.
"""

import dataclasses
import json
import math
import os
import platform
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import dg_lsp
from dg_lsp import system
from dg_lsp.bench import metrics
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.metrics import Attempt
from dg_lsp.canvas.prompt_format import own_snippets
from dg_lsp.canvas.spec import DecoderName, ModelSpec
from dg_lsp.context.document import Cursor, allowed_lines
from dg_lsp.context.edit_task import EditTask
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.remote_engine import RemoteEngine
from dg_lsp.engine.request import FillRequest, FillResult, Priority
from dg_lsp.errors import InputFileError, map_input_errors
from dg_lsp.sandbox import Sandbox
from dg_lsp.settings import NO_OPTIONS, SamplerOptions

ANSWER_SECONDS = 600.0  # time limit of one answer
WARM_UP = TestCase(
    "warm-up", "line-end", "def double(number):\n    return ", "\n\n\ndef half(number):\n    return number / 2\n", "x"
)
_TASK_NOTE = (
    "The task is that of the cursor position. Useful, of what is shown: the first line is right, or the program passes"
    " its tests. Right: exact. The costs are those of all requests of the row, divided by the number of exact edits."
)
_CALIBRATION_NOTE = (
    "Right means that the first line is right. A minimum confidence hides the rows above it; the last three columns"
    " show its cost."
)

LengthHint = Literal["none", "oracle"]
"""What a contender knows of the length of a fill: nothing, or the reference's number of lines; never the tokens."""
Progress = Callable[[str, int, int], AbstractContextManager[Callable[[int], object]]]
"""A progress bar by description, total and number already done; it yields a function that advances the bar."""


# contenders


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of the requests, the same for all contenders.

    Without a deadline every fill runs to its end. After the early stop whole lines are enough; 0: never; None: as set.
    """

    length: LengthHint = "none"
    deadline_ms: float | None = None
    early_stop_ms: float | None = None
    is_warm: bool = False  # the KV cache holds the prompt without its last character, as while typing
    sampler: SamplerOptions = NO_OPTIONS  # for decoders that denoise a canvas
    context: str = "auto"  # see `ContextSettings.enabled`

    @property
    def tree(self) -> dict[str, Any]:
        """The options as plain JSON values."""
        return dataclasses.asdict(self) | {"sampler": self.sampler.values}

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for a report."""
        length = "The length was unknown: the position of the cursor limits the number of lines."
        if self.length == "oracle":
            length = "The number of lines of each reference was known (oracle)."
        deadline = "none" if self.deadline_ms is None else f"{self.deadline_ms:g} ms"
        early_stop = "that of the settings" if self.deadline_ms is not None else "none"
        if self.early_stop_ms is not None:
            early_stop = f"{self.early_stop_ms:g} ms" if self.early_stop_ms else "none"
        fills = f"Limits of a fill: deadline {deadline}, early stop {early_stop}."
        return (length, fills)

    def num_lines(self, case: TestCase) -> int | None:
        """Maximum number of lines for a case; None for any number."""
        if self.length == "oracle":
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

        Raises DgLspError: the contender failed; earlier attempts remain valid.
        """

    def close(self) -> None:
        """Releases its processes and models. Idempotent."""


@dataclass(frozen=True, slots=True)
class EngineContender:
    """An engine with one of its decoders. Contenders must not share an engine, and so its cache."""

    name: str
    engine: Engine
    decoder: DecoderName | None = None  # None: that of the settings
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
            # `dg-lsp serve` hides what is improbable while the user types
            priority=Priority.INVOKED if isinstance(self.engine, RemoteEngine) else Priority.TYPED,
            sampler=self.options.sampler,
            snippets=own_snippets(case.snapshot, case.offset, self.engine.spec, self.options.context),
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
    """Attempt for a result of the engine, improbable ones included. A remote server does not report all costs."""
    if result.hidden and result.candidates and result.candidates[0].is_beginning:
        result = replace(result, candidates=())  # what an editor shows of an improbable text, which is counted itself
    best = next(iter((*result.candidates, *result.hidden)), None)
    attempt = attempt_for(case, contender, result.decoder.value, best.text if best else "", ms, result.reason)
    if not is_remote or result.steps:
        attempt = replace(attempt, steps=result.steps, tokens=result.output_tokens)
    if is_remote:
        return attempt
    prefill_ms = result.timings.prefill
    model_ms = prefill_ms + result.timings.denoise
    return replace(attempt, prefill_ms=prefill_ms, model_ms=model_ms, confidence=best.confidence if best else None)


# runs


def run_machine(threads: int | None) -> dict[str, Any]:
    """Hardware and versions as JSON values. Only measurements on equal machines are comparable.

    The cores are those that this process may use, the threads those of a step; a remote server has none.
    """
    return {
        "cpu": system.processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "dg_lsp": dg_lsp.__version__,
        "llama_cpp_python": metadata.version("llama-cpp-python") if find_spec("llama_cpp") else None,
        "threads": threads,
    }


@dataclass(frozen=True, slots=True)
class RunHeader:
    """Everything that attempts must share to be counted together."""

    command: str
    machine: Mapping[str, Any]  # see `run_machine`
    model: str
    model_sha256: str | None  # none for a remote server
    data: Mapping[str, str] = field(default_factory=dict)  # sha256 of each input file, by name
    options: Mapping[str, Any] = field(default_factory=dict)
    """Command-line options as plain JSON values, without --limit, which may grow between sessions."""


@dataclass(frozen=True, slots=True)
class Run:
    """A header and its attempts."""

    header: RunHeader
    attempts: tuple[Attempt, ...]
    is_complete: bool = True  # false after Ctrl-C
    notes: tuple[str, ...] = ()  # sentences that a reader of the numbers needs

    def facts(self) -> dict[str, Any]:
        """JSON values that the results of all commands contain."""
        model = {"model": self.header.model, "model_sha256": self.header.model_sha256}
        return {"is_complete": self.is_complete, **model, "machine": self.header.machine}


class RunFile:
    """Stores attempts as they are made; in a file, each one is on disk before the next one starts.

    An existing file with the same header is continued; an incomplete last line is dropped.
    """

    def __init__(self, path: Path, header: RunHeader) -> None:
        """Creates or continues the file; the null device stores nothing.

        Raises InputFileError: the file cannot be read or created, or holds a run with another header.
        """
        self.attempts: dict[tuple[str, str], Attempt] = {}
        """By case and contender, those of earlier sessions first."""
        self._path = path
        with map_input_errors("write", path):
            data = path.read_bytes() if path.exists() else b""
            kept = data[: data.rfind(b"\n") + 1]
            if data and not kept.startswith(_line(header)):
                problem = "holds no run of this model, machine, number of threads, version and options"
                raise InputFileError(f"{path} {problem}: name another --output, delete that file, or set --threads")
            for number, line in enumerate(kept.split(b"\n")[1:-1], 2):
                attempt = _attempt(line, f"{path}, line {number}")
                self.attempts[attempt.case, attempt.contender] = attempt
            if kept != data:
                os.truncate(path, len(kept))
        if not kept:
            self._append(header)

    def add(self, attempt: Attempt) -> None:
        """Stores an attempt. Raises InputFileError if it cannot be written, as on a full disk."""
        self.attempts[attempt.case, attempt.contender] = attempt
        self._append(attempt)

    def _append(self, value: RunHeader | Attempt) -> None:
        with map_input_errors("write", self._path), self._path.open("ab") as file:
            file.write(_line(value))


def _attempt(line: bytes, place: str) -> Attempt:
    try:
        return Attempt(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise InputFileError(f"{place} is not an attempt: delete that line, or the file") from error


def _line(value: RunHeader | Attempt) -> bytes:
    return json.dumps(dataclasses.asdict(value), allow_nan=False).encode() + b"\n"


def run_cases(
    cases: Sequence[TestCase],
    contenders: Sequence[Contender],
    header: RunHeader,
    output: Path | None = None,
    *,
    seed: int = 0,
    sandbox: Sandbox | None = None,
    progress: Progress = lambda *_: nullcontext(lambda _: None),
    notes: Sequence[str] = (),
) -> Run:
    """Lets every contender answer every case. Ctrl-C ends the run and keeps its attempts.

    The contenders answer each case in random order, so that a change in the speed of the machine affects all of them
    alike. With an `output` file, attempts of earlier sessions are reused.

    Raises:
        InputFileError: the output file is not writable or holds a different run.
        DgLspError: a contender failed.
    """
    names = [contender.name for contender in contenders]
    file = RunFile(output or Path(os.devnull), header)
    missing = [case for case in cases if not all((case.id, name) in file.attempts for name in names)]
    is_complete = True
    try:
        with progress(header.command, len(cases), len(cases) - len(missing)) as advance:
            for contender in contenders if missing and len(contenders) > 1 else ():
                contender.answer(WARM_UP)  # the first answer pays for pages that are loaded once
            for case in missing:
                # random, but the same for the same case and seed
                ordered = random.Random(f"{seed} {case.id}").sample(contenders, len(contenders))
                unanswered = [contender for contender in ordered if (case.id, contender.name) not in file.attempts]
                attempts = [contender.answer(case) for contender in unanswered]
                for attempt in attempts:  # the tests run last, because they would slow the next contender down
                    file.add(attempt if sandbox is None else _with_test_result(attempt, case, sandbox))
                advance(1)
    except KeyboardInterrupt:
        is_complete = False
    # the file may have more cases than this session
    keys = [(case.id, name) for name in names for case in cases]
    notes = (*notes, *(note for contender in contenders for note in contender.notes))
    return Run(header, tuple(file.attempts[key] for key in keys if key in file.attempts), is_complete, notes)


def language_notes(spec: ModelSpec, languages: Iterable[str]) -> list[str]:
    """A sentence for each language that the model does not know."""
    problems = {language: spec.language_problem(language) for language in languages}
    return [f"Editors show nothing in {language}: {problem}." for language, problem in problems.items() if problem]


def infill_tables(run: Run, tree: Mapping[str, Any]) -> Iterator[metrics.Table]:
    """Summaries by kind, and the tasks and the calibration of the JSON object of `bench infill`."""
    yield metrics.summary_table("By kind", metrics.by_kind(run.attempts))
    yield metrics.row_table("By language and task", tree["tasks"], _TASK_NOTE)
    if tree["calibration"]:
        yield metrics.row_table("Confidence against right first lines", tree["calibration"], _CALIBRATION_NOTE)


def _with_test_result(attempt: Attempt, case: TestCase, sandbox: Sandbox) -> Attempt:
    """The attempt with the result of its tests, which fail if nothing was shown."""
    program = case.program(attempt.text)
    return replace(attempt, passes=bool(attempt.text) and not sandbox.failure(program)) if program else attempt
