"""`dg-lsp rewrite`: rewrites lines of a file."""

import difflib
import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dg_lsp.cli.loading import GpuLayers, Json, Model, Remote, Threads, configure, overrides, timed_engine

if TYPE_CHECKING:
    from dg_lsp.cli.source import Lines, SourceFile
    from dg_lsp.engine.result import RewriteResult


def rewrite(
    lines: Annotated[
        str,
        typer.Argument(metavar="FILE:FIRST-LAST", help="Whole lines; FIRST and LAST start at 1 and are both included."),
    ],
    instruction: Annotated[
        str, typer.Argument(metavar="[INSTRUCTION]", help="What to change; without it the model decides.")
    ] = "",
    strength: Annotated[
        float, typer.Option(metavar="0..1", help="Fraction of the tokens to replace; 1 replaces all of them.")
    ] = 1.0,
    model: Model = None,
    remote: Remote = None,
    deadline: Annotated[
        float | None, typer.Option(min=1, metavar="MS", help="Stop after this time; loading does not count.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Random seed; the same seed gives the same rewrite.")
    ] = 0,
    as_json: Json = False,
    write: Annotated[bool, typer.Option("--write", help="Write the result to the file.")] = False,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Rewrite lines of a file and show a diff. Without --write the file is not changed."""
    from dg_lsp.cli.source import Lines, SourceFile
    from dg_lsp.engine.engine import drain
    from dg_lsp.engine.request import RewriteRequest

    span = Lines.parse(lines)
    source = SourceFile.read(span.path)
    start, end = source.offset_at(span.first, 1), source.offset_at(span.last, None)
    if write:
        source.check_writable()
    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    wait_ms = math.inf if deadline is None else deadline
    request = RewriteRequest(source.snapshot(), start, end, instruction, strength, wait_ms, seed)

    with timed_engine(settings) as (engine, load_ms):
        result = drain(engine.rewrite(request))
    if write and not result.rejection:
        source.replace(result.start, result.end, result.text)
    _report(result, source, span, load_ms, instruction=instruction, as_json=as_json)
    if write and not result.rejection and not as_json:
        typer.echo(f"wrote {span.path}")
    return 1 if result.rejection else 0


def _report(
    result: "RewriteResult", source: "SourceFile", span: "Lines", load_ms: float, *, instruction: str, as_json: bool
) -> None:
    if as_json:
        typer.echo(json.dumps(_object(result, span, load_ms)))
        return
    if result.rejection:
        typer.echo(f"no rewrite ({result.rejection.reason})")
    else:
        _show(result, source)
    if instruction and not result.follows_instructions:
        typer.echo(f"{result.model} follows no instructions: it received this one as a comment", err=True)
    typer.echo(f"{result.model}: {result.timings.total:.0f} ms after {load_ms:.0f} ms load, {result.steps} steps")


def _show(result: "RewriteResult", source: "SourceFile") -> None:
    """Prints a unified diff, coloured on a terminal."""
    colours = {"+": "green", "-": "red", "@": "cyan"}
    new = source.text[: result.start] + result.text + source.text[result.end :]
    name = str(source.path)
    for line in difflib.unified_diff(source.text.splitlines(), new.splitlines(), name, name, lineterm=""):
        typer.secho(line, fg=colours.get(line[:1]))


def _object(result: "RewriteResult", span: "Lines", load_ms: float) -> dict[str, Any]:
    timings = result.timings
    return {
        "text": result.text,
        "model": result.model,
        "first": span.first,
        "last": span.last,
        "rejected": result.rejection.reason.value if result.rejection else None,
        "follows_instructions": result.follows_instructions,
        "score": round(result.score, 4),
        "steps": result.steps,
        "timings_ms": {
            "load": round(load_ms, 3),
            "denoise": round(timings.denoise, 3),
            "postprocess": round(timings.postprocess, 3),
            "total": round(load_ms + timings.total, 3),
        },
    }
