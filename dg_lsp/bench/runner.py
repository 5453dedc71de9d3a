"""Runs contenders over test cases, tests their programs, and stores the attempts."""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dg_lsp.bench.contenders import Contender
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.metrics import Attempt, by_kind
from dg_lsp.bench.runs import Run, RunFile, RunHeader
from dg_lsp.bench.sandbox import Outcome
from dg_lsp.bench.tables import Table, decoder_tables, summary_table
from dg_lsp.errors import UsageError

WARM_UP = TestCase(
    "warm-up", "line-end", "def double(number):\n    return ", "\n\n\ndef half(number):\n    return number / 2\n", "x"
)
INTERRUPTED_NOTE = "Interrupted: only the attempts until then are counted."

Progress = Callable[[str, int, int], AbstractContextManager[Callable[[int], object]]]
"""A progress bar by description, total and number already done; it yields a function that advances the bar."""


def no_progress(_description: str, _total: int, _done: int) -> AbstractContextManager[Callable[[int], object]]:
    """No progress bar."""
    return nullcontext(lambda _: None)


class ProgramRunner(Protocol):
    """Runs programs, as `Sandbox` does."""

    def run(self, program: str) -> Outcome:
        """Runs a program to its end."""
        ...


def run_cases(
    cases: Sequence[TestCase],
    contenders: Sequence[Contender],
    header: RunHeader,
    output: Path | None = None,
    *,
    seed: int = 0,
    sandbox: ProgramRunner | None = None,
    progress: Progress = no_progress,
) -> Run:
    """Lets every contender answer every case. Ctrl-C ends the run and keeps its attempts.

    The contenders take turns case by case, in random order, so that a change in the speed of the machine affects all
    of them alike. With an `output` file, attempts of earlier sessions are reused.

    Raises:
        InputFileError: the output file is not writable or holds a different run.
        DgLspError: a contender failed.
    """
    names = [contender.name for contender in contenders]
    with RunFile(output, header) as file:
        missing = [case for case in cases if not all(file.has(case.id, name) for name in names)]
        try:
            with progress(header.command, len(cases), len(cases) - len(missing)) as advance:
                for i, case in enumerate(missing):
                    if i == 0 and len(contenders) > 1:
                        for contender in contenders:
                            contender.answer(WARM_UP)  # the first answer pays for pages that are loaded once
                    _run_case(case, in_random_order(contenders, case, seed), file, sandbox)
                    advance(1)
            is_complete = True
        except KeyboardInterrupt:
            is_complete = False
        # the file may have more cases than this session
        stored = {(attempt.contender, attempt.case): attempt for attempt in file.attempts}
    order = [(name, case.id) for name in names for case in cases]
    notes = [note for contender in contenders for note in contender.notes()]
    notes += [] if is_complete else [INTERRUPTED_NOTE]
    return Run(header, tuple(stored[key] for key in order if key in stored), is_complete, tuple(notes))


def infill_tables(run: Run) -> list[Table]:
    """Summaries by kind, and by decoder if there were several."""
    return [summary_table("By kind", by_kind(run.attempts)), *decoder_tables(run.attempts)]


def in_random_order(contenders: Sequence[Contender], case: TestCase, seed: int) -> list[Contender]:
    """The same order for the same case and seed."""
    order = list(contenders)
    random.Random(f"{seed} {case.id}").shuffle(order)
    return order


def check_tests(cases: Iterable[TestCase]) -> None:
    """Refuses cases of which none has tests.

    Raises:
        UsageError: there is nothing to run.
    """
    if all(case.program("") is None for case in cases):
        raise UsageError("these cases have no tests (test, entry_point): leave --execute out")


def with_test_result(attempt: Attempt, case: TestCase, sandbox: ProgramRunner) -> Attempt:
    """The attempt with the result of the tests over its final text; unchanged for a case without tests.

    Where nothing was shown, the tests count as failed.
    """
    program = case.program(attempt.text)
    if program is None:
        return attempt
    return replace(attempt, passes=bool(attempt.shown) and sandbox.run(program).passes)


def _run_case(case: TestCase, contenders: Sequence[Contender], file: RunFile, sandbox: ProgramRunner | None) -> None:
    attempts = [contender.answer(case) for contender in contenders if not file.has(case.id, contender.name)]
    for attempt in attempts:  # the tests run last, because they would slow the next contender down
        file.add(attempt if sandbox is None else with_test_result(attempt, case, sandbox))
