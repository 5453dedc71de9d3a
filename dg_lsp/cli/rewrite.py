"""`dg-lsp rewrite`: rewrites lines of a file. The gaps of `dg-lsp fill --gaps` are filled and shown in the same way."""

import difflib
import math
import sys
from typing import Annotated, Any

import typer
from typer import Argument, Option

from dg_lsp.cli import loading
from dg_lsp.cli.options import Deadline, FileOptions, Json, ModelOptions, RunOptions, Seed
from dg_lsp.cli.output import for_stream, times, watch_gaps
from dg_lsp.cli.printing import note, plural, print_json, print_line
from dg_lsp.cli.source import SourceFile, parse_location
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import Replacement, RewriteRequest, RewriteResult
from dg_lsp.engine.rewrite import instruction_note
from dg_lsp.settings import Settings

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


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
    settings = loading.configure_for(source, model.tree_of_rewrites, file).for_rewrites
    wait_ms = math.inf if deadline is None else deadline
    request = RewriteRequest(source.snapshot(), start, end, instruction, strength, wait_ms, seed)
    return run_rewrite(request, source, settings, RunOptions(as_json=as_json), write=file.write)


def run_rewrite(
    request: RewriteRequest, source: SourceFile, settings: Settings, run: RunOptions, *, write: bool
) -> int:
    """Runs a rewrite, writes it, if wanted, and prints JSON, or the difference, problems and costs; the exit code."""
    with loading.timed_engine(settings, source.language) as (engine, load_ms):
        follows = engine.follows_instructions
        if sentence := instruction_note(request, engine.spec.name, follows_instructions=follows):
            note(sentence)
        steps = engine.rewrite(request)
        result = watch_gaps(steps, engine, is_json=run.as_json) if run.visual else drain(steps)
        if request.gaps and not run.as_json:
            introduce(engine)
    write = write and not result.rejection
    if write:
        source.replace(result.start, result.end, result.text)
    if run.as_json:
        print_json(_object(result, request, source, load_ms))
    else:
        _show(result, source)
        if write:
            print_line(f"wrote {source.path}")
        filled = f"{sum(not gap.rejection for gap in result.gaps)} of {len(result.gaps)} gaps, " if result.gaps else ""
        times = f"{result.timings.total:.0f} ms; load {load_ms:.0f} ms"
        print_line(f"{result.model}: {filled}{times}; {plural(result.steps, 'step')}")
    return 1 if result.rejection else 0


def introduce(engine: Engine) -> None:
    """Prints which model answers, and what it knows, before its answer: an error prints nothing else."""
    languages = ", ".join(engine.spec.languages) or "all languages"
    follows = "instructions" if engine.follows_instructions else "no instructions"
    print_line(f"{engine.spec.name} answers: it knows {languages}, and follows {follows}")


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


def _show(result: RewriteResult, source: SourceFile) -> None:
    """Prints a unified diff, coloured on a terminal, and the problems; for a rejected rewrite only these."""
    if not result.rejection:
        new = source.text[: result.start] + result.text + source.text[result.end :]
        name = str(source.path)
        for line in difflib.unified_diff(source.text.splitlines(), new.splitlines(), name, name, lineterm=""):
            typer.secho(for_stream(line, sys.stdout), fg=_COLOURS.get(line[:1]))
    elif not result.gaps:
        print_line(f"no rewrite: the result {result.rejection.reason.problem}")
    for gap in result.gaps:
        if gap.rejection:
            print_line(f"line {source.line_of(gap.start)} is not filled: the result {gap.rejection.reason.problem}")
