"""`dg-lsp rewrite`: rewrites lines of a file. The gaps of `dg-lsp fill --gaps` are filled and shown in the same way."""

import difflib
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from dg_lsp.cli import loading
from dg_lsp.cli.options import Deadline, EvenSecret, Json, Seed, Write, with_rewrite_model_options
from dg_lsp.cli.printing import plural, print_json, print_line

if TYPE_CHECKING:
    from dg_lsp.cli.source import SourceFile
    from dg_lsp.engine.engine import Engine
    from dg_lsp.engine.request import FilledGap, RewriteRequest, RewriteResult
    from dg_lsp.settings import Settings


@with_rewrite_model_options
def rewrite(
    lines: Annotated[
        str, Argument(metavar="FILE:FIRST-LAST", help="Line numbers count from 1; both lines are included.")
    ],
    instruction: Annotated[str, Argument(metavar="INSTRUCTION", help="What to change.")] = "",
    strength: Annotated[float, Option(metavar="0..1", help="Fraction of the tokens to replace; 1 replaces all.")] = 1.0,
    deadline: Deadline = None,
    seed: Seed = 0,
    as_json: Json = False,
    write: Write = False,
    even_secret: EvenSecret = False,
    *,
    over: dict[str, Any],
) -> int:
    """Rewrite lines of a file and show a diff. Without --write the file is not changed."""
    from dg_lsp.cli.source import SourceFile, parse_lines
    from dg_lsp.engine.request import RewriteRequest

    path, first, last = parse_lines(lines)
    source = SourceFile.read(path)
    start, end = source.offset_at(first, 1), source.offset_at(last, None)
    if write:
        source.check_writable()
    settings = loading.configure(over).for_rewrites
    loading.check_allowed(source, settings, even_secret=even_secret)
    wait_ms = math.inf if deadline is None else deadline
    request = RewriteRequest(source.snapshot(), start, end, instruction, strength, wait_ms, seed)
    return run_rewrite(request, source, settings, as_json=as_json, write=write)


def run_rewrite(
    request: "RewriteRequest",
    source: "SourceFile",
    settings: "Settings",
    *,
    as_json: bool,
    write: bool,
    visual: bool = False,
) -> int:
    """Runs a rewrite, writes it, if wanted, and prints JSON, or the difference, problems and costs; the exit code."""
    from dg_lsp.cli.output import watch_gaps
    from dg_lsp.engine.engine import drain

    with loading.timed_engine(settings, source.language) as (engine, load_ms):
        if not as_json:
            loading.show_instruction_note(request, engine)
        steps = engine.rewrite(request)
        result = watch_gaps(steps, engine.frame, is_json=as_json) if visual else drain(steps)
        if request.gaps and not as_json:
            introduce(engine)
    write = write and not result.rejection
    if write:
        source.replace(result.start, result.end, result.text)
    if as_json:
        print_json(_object(result, request, source, load_ms))
    else:
        _show(result, source)
        if write:
            print_line(f"wrote {source.path}")
        print_line(_costs(result, load_ms))
    return 1 if result.rejection else 0


def introduce(engine: "Engine") -> None:
    """Prints which model answers, and what it knows, before its answer: an error prints nothing else."""
    languages = ", ".join(engine.spec.languages) or "all languages"
    follows = "instructions" if engine.follows_instructions else "no instructions"
    print_line(f"{engine.spec.name} answers: it knows {languages}, and follows {follows}")


def _object(result: "RewriteResult", request: "RewriteRequest", source: "SourceFile", load_ms: float) -> dict[str, Any]:
    """Keys in the documented order."""
    from dg_lsp.cli.output import times

    rejected = result.rejection.reason.value if result.rejection else None
    if request.gaps:
        return {
            "text": result.text,
            "model": result.model,
            "gaps": [_gap_object(gap, source) for gap in result.gaps],
            "rejected": rejected,
            "steps": result.steps,
            "timings_ms": times(result.timings, load_ms),
        }
    return {
        "text": result.text,
        "model": result.model,
        "first": source.line_of(request.start),
        "last": source.line_of(request.end),
        "rejected": rejected,
        "follows_instructions": result.follows_instructions,
        "score": round(result.score, 4),
        "steps": result.steps,
        "timings_ms": times(result.timings, load_ms, "denoise", "postprocess"),
    }


def _gap_object(gap: "FilledGap", source: "SourceFile") -> dict[str, Any]:
    return {
        "line": source.line_of(gap.start),
        "placeholder": source.text[gap.start : gap.end],
        "text": gap.text,
        "rejected": gap.rejection.reason.value if gap.rejection else None,
        "confidence": round(gap.confidence, 4),
    }


def _show(result: "RewriteResult", source: "SourceFile") -> None:
    """Prints a unified diff, coloured on a terminal, and the problems; for a rejected rewrite only these."""
    from dg_lsp.cli.output import for_stream

    colours = {"+": "green", "-": "red", "@": "cyan"}
    if not result.rejection:
        new = source.text[: result.start] + result.text + source.text[result.end :]
        name = str(source.path)
        for line in difflib.unified_diff(source.text.splitlines(), new.splitlines(), name, name, lineterm=""):
            typer.secho(for_stream(line, sys.stdout), fg=colours.get(line[:1]))
    elif not result.gaps:
        print_line(f"no rewrite: the result {result.rejection.reason.problem}")
    for gap in result.gaps:
        if gap.rejection:
            print_line(f"line {source.line_of(gap.start)} is not filled: the result {gap.rejection.reason.problem}")


def _costs(result: "RewriteResult", load_ms: float) -> str:
    from dg_lsp.cli.output import start_text

    filled = f"{sum(gap.rejection is None for gap in result.gaps)} of {len(result.gaps)} gaps, " * bool(result.gaps)
    times = f"{result.timings.total:.0f} ms; {start_text(load_ms)}"
    return f"{result.model}: {filled}{times}; {plural(result.steps, 'step')}"
