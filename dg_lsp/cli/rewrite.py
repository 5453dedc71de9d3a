"""`dg-lsp rewrite`: rewrites lines of a file."""

import difflib
import json
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from dg_lsp.cli import loading
from dg_lsp.cli.options import USE_EVEN_SECRET, EvenSecret, Json, Seed, Write, with_rewrite_model_options
from dg_lsp.cli.printing import print_line

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
    deadline: Annotated[
        float | None, Option(min=1, metavar="MS", help="Stop after this time; the load does not count.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
    write: Write = False,
    even_secret: EvenSecret = False,
    *,
    over: dict[str, Any],
) -> int:
    """Rewrite lines of a file and show a diff. Without --write the file is not changed."""
    from dg_lsp.cli.output import plural, start_text
    from dg_lsp.cli.source import SourceFile, parse_lines
    from dg_lsp.engine.engine import drain
    from dg_lsp.engine.request import RewriteRequest
    from dg_lsp.engine.rewrite import instruction_note

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
        result = drain(engine.rewrite(request))
    if write and not result.rejection:
        source.replace(result.start, result.end, result.text)
    if as_json:
        typer.echo(_json(result, first, last, load_ms))
    else:
        if result.rejection:
            print_line(f"no rewrite: the result {result.rejection.reason.problem}")
        show_difference(result, source)
        if note := instruction_note(request, result):
            print_line(note, err=True)
        print_line(
            f"{result.model}: {result.timings.total:.0f} ms; {start_text(load_ms)}; {plural(result.steps, 'step')}"
        )
        if write and not result.rejection:
            print_line(f"wrote {path}")
    return 1 if result.rejection else 0


def show_difference(result: "RewriteResult", source: "SourceFile") -> None:
    """Prints a unified diff, coloured on a terminal; nothing for a rejected rewrite."""
    if result.rejection:
        return
    from dg_lsp.cli.output import for_stream

    colours = {"+": "green", "-": "red", "@": "cyan"}
    new = source.text[: result.start] + result.text + source.text[result.end :]
    name = str(source.path)
    for line in difflib.unified_diff(source.text.splitlines(), new.splitlines(), name, name, lineterm=""):
        typer.secho(for_stream(line, sys.stdout), fg=colours.get(line[:1]))


def _json(result: "RewriteResult", first: int, last: int, load_ms: float) -> str:
    from dg_lsp.cli.output import times

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
    return json.dumps(tree)
