"""`dg-lsp rewrite`: rewrites lines of a file."""

import difflib
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from dg_lsp.cli import loading
from dg_lsp.cli.options import USE_EVEN_SECRET, Deadline, EvenSecret, Json, Seed, Write, with_rewrite_model_options
from dg_lsp.cli.printing import print_json, print_line, print_lines

if TYPE_CHECKING:
    from dg_lsp.cli.source import SourceFile
    from dg_lsp.engine.result import RewriteResult


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
    from dg_lsp.cli.output import times
    from dg_lsp.cli.source import SourceFile, parse_lines
    from dg_lsp.engine.engine import drain
    from dg_lsp.engine.request import RewriteRequest

    path, first, last = parse_lines(lines)
    source = SourceFile.read(path)
    start, end = source.offset_at(first, 1), source.offset_at(last, None)
    if write:
        source.check_writable()
    settings = loading.configure(over).for_rewrites
    if not even_secret:
        loading.check_allowed(source, settings, USE_EVEN_SECRET)
    wait_ms = math.inf if deadline is None else deadline
    request = RewriteRequest(source.snapshot(), start, end, instruction, strength, wait_ms, seed)

    with loading.timed_engine(settings, source.language) as (engine, load_ms):
        if not as_json:
            loading.show_instruction_note(request, engine)
        result = drain(engine.rewrite(request))
    tree = {
        "text": result.text,
        "model": result.model,
        "first": first,
        "last": last,
        "rejected": result.rejection.reason.value if result.rejection else None,
        "follows_instructions": result.follows_instructions,
        "score": round(result.score, 4),
        "steps": result.steps,
        "timings_ms": times(result.timings, load_ms, "denoise", "postprocess"),
    }
    problems = [f"no rewrite: the result {result.rejection.reason.problem}"] if result.rejection else []
    return finish(result, source, load_ms, problems, tree if as_json else None, write=write)


def finish(
    result: "RewriteResult",
    source: "SourceFile",
    load_ms: float,
    problems: Sequence[str],
    tree: dict[str, Any] | None,
    *,
    write: bool,
) -> int:
    """Writes a rewrite, if wanted, and prints it as JSON, or its difference, problems and costs; the exit code."""
    from dg_lsp.cli.output import plural, start_text

    write = write and not result.rejection
    if write:
        source.replace(result.start, result.end, result.text)
    if tree is not None:
        print_json(tree)
    else:
        _show_difference(result, source)
        print_lines(problems)
        if write:
            print_line(f"wrote {source.path}")
        filled = f"{sum(gap.rejection is None for gap in result.gaps)} of {len(result.gaps)} gaps, " * bool(result.gaps)
        costs = f"{filled}{result.timings.total:.0f} ms; {start_text(load_ms)}; {plural(result.steps, 'step')}"
        print_line(f"{result.model}: {costs}")
    return 1 if result.rejection else 0


def _show_difference(result: "RewriteResult", source: "SourceFile") -> None:
    """Prints a unified diff, coloured on a terminal; nothing for a rejected rewrite."""
    if result.rejection:
        return
    from dg_lsp.cli.output import for_stream

    colours = {"+": "green", "-": "red", "@": "cyan"}
    new = source.text[: result.start] + result.text + source.text[result.end :]
    name = str(source.path)
    for line in difflib.unified_diff(source.text.splitlines(), new.splitlines(), name, name, lineterm=""):
        typer.secho(for_stream(line, sys.stdout), fg=colours.get(line[:1]))
