"""`dg-lsp rewrite`: rewrites lines of a file. The gaps of `dg-lsp fill --gaps` are filled and shown in the same way."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from dg_lsp.cli import loading
from dg_lsp.cli.options import Deadline, FileOptions, Json, ModelOptions, RunOptions, Seed
from dg_lsp.cli.output import print_patch, times, watch_gaps
from dg_lsp.cli.printing import note, plural, print_json, print_line
from dg_lsp.cli.source import SourceFile, parse_location
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import Replacement, RewriteRequest, RewriteResult
from dg_lsp.engine.rewrite import instruction_note
from dg_lsp.engine.verification import NUM_CANDIDATES, Trial, Verification
from dg_lsp.errors import UsageError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.sandbox import Sandbox
from dg_lsp.settings import Settings


def rewrite(
    lines: Annotated[
        str, Argument(metavar="FILE:FIRST-LAST", help="Line numbers count from 1; both lines are included.")
    ],
    file: FileOptions,
    model: ModelOptions,
    instruction: Annotated[str, Argument(metavar="INSTRUCTION", help="What to change.")] = "",
    strength: Annotated[float, Option(metavar="0..1", help="Fraction of the tokens to replace; 1 replaces all.")] = 1.0,
    deadline: Deadline = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> int:
    """Rewrite lines of a file and show a diff. Without --write the file is not changed."""
    location = parse_location(lines, "FILE:FIRST-LAST")
    source = SourceFile.read(location.path)
    start, end = source.span_of(location)
    settings = loading.configure_for(source, model.tree_of_rewrites, file, as_json=as_json).for_rewrites
    wait_ms = math.inf if deadline is None else deadline
    request = RewriteRequest(source.snapshot(), start, end, instruction, strength, wait_ms, seed)
    return run_rewrite(request, source, settings, RunOptions(as_json=as_json), file)


def run_rewrite(
    request: RewriteRequest, source: SourceFile, settings: Settings, run: RunOptions, file: FileOptions
) -> int:
    """Runs a rewrite, writes it, if wanted, and prints JSON, or the difference, problems and costs; the exit code."""
    trials: list[Trial] = []
    if (verification := verification_for(source, file)) is not None:
        request = replace(request, snippets=verification.failure(note), num_candidates=NUM_CANDIDATES)
    with loading.timed_engine(settings, source.language) as (engine, load_ms):
        follows = engine.follows_instructions
        if sentence := instruction_note(request, engine.spec.name, follows_instructions=follows):
            note(sentence)
        steps = engine.rewrite(request)
        result = watch_gaps(steps, engine, to_stderr=run.as_json or file.is_patch) if run.visual else drain(steps)
        if request.gaps and not run.as_json:
            introduce(engine, file)
    if verification is not None and not result.rejection:
        options = (result, *result.alternatives)
        passing, trials = verification.first_passing(options, source.data_with, note)
        result = passing or result.rejected(Reason.FAILS_TEST)
    write = file.write and not result.rejection
    if write:
        source.replace(result)
    if run.as_json:
        print_json(_object(result, request, source, load_ms) | trials_object(trials, file))
    else:
        report = partial(print_line, err=file.is_patch)
        _show(result, source, report)
        if write:
            report(f"wrote {source.path}")
        filled = f"{sum(not gap.rejection for gap in result.gaps)} of {len(result.gaps)} gaps, " if result.gaps else ""
        times = f"{result.timings.total:.0f} ms; load {load_ms:.0f} ms"
        report(f"{result.model}: {filled}{times}; {plural(result.steps, 'step')}")
    return 1 if result.rejection else 0


def verification_for(source: SourceFile, file: FileOptions) -> Verification | None:
    """How the candidates for a file are tested, in the working directory; None without `--test`.

    Raises UsageError if the file is elsewhere, SandboxError if there is no sandbox.
    """
    if file.test is None:
        return None
    folder = Path.cwd()
    path = source.path.resolve()
    if not path.is_relative_to(folder):
        raise UsageError(f"--test runs in the working directory, and {source.path} is not in it: change to its project")
    sandbox = Sandbox(option="--test")
    return Verification(file.test, folder, path, {path: source.data}, sandbox, file.test_deadline / 1e3)


def trials_object(trials: Iterable[Trial], file: FileOptions) -> dict[str, Any]:
    """The key `tests` of the JSON object of a command that has `--test`."""
    return {} if file.test is None else {"tests": list(map(asdict, trials))}


def introduce(engine: Engine, file: FileOptions) -> None:
    """Prints which model answers, and what it knows, before its answer: an error prints nothing else."""
    languages = ", ".join(engine.spec.languages) or "all languages"
    follows = "instructions" if engine.follows_instructions else "no instructions"
    print_line(f"{engine.spec.name} answers: it knows {languages}, and follows {follows}", err=file.is_patch)


def _object(result: RewriteResult, request: RewriteRequest, source: SourceFile, load_ms: float) -> dict[str, Any]:
    """Keys in the documented order."""
    if request.gaps:
        return {
            "text": result.text,
            "model": result.model,
            "gaps": [_gap_object(gap, source) for gap in result.gaps],
            "rejected": result.reason,
            "steps": result.steps,
            "timings_ms": times(result.timings, load_ms),
        }
    return {
        "text": result.text,
        "model": result.model,
        "first": source.line_of(request.start),
        "last": source.line_of(request.end),
        "rejected": result.reason,
        "follows_instructions": result.follows_instructions,
        "score": round(result.score, 4),
        "steps": result.steps,
        "timings_ms": times(result.timings, load_ms, "denoise", "postprocess"),
    }


def _gap_object(gap: Replacement, source: SourceFile) -> dict[str, Any]:
    return {
        "line": source.line_of(gap.start),
        "placeholder": source.text[gap.start : gap.end],
        "text": gap.text,
        "rejected": gap.rejection.reason if gap.rejection else None,
        "confidence": round(gap.confidence, 4),
    }


def _show(result: RewriteResult, source: SourceFile, report: Callable[[str], None]) -> None:
    """Prints a unified diff, and reports the problems; for a rejected rewrite only these."""
    if not result.rejection:
        print_patch(source.patch(result))
    elif not result.gaps:
        report(f"no rewrite: the result {result.rejection.reason.problem}")
    for gap in result.gaps:
        if gap.rejection:
            report(f"line {source.line_of(gap.start)} is not filled: the result {gap.rejection.reason.problem}")
