"""`dg-lsp fill`: completes code at one position of a file."""

import json
import math
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from dg_lsp.cli import loading
from dg_lsp.cli.loading import Decoder, EvenSecret, Format, GpuLayers, Json, Model, Remote, Seed, Threads, Write

if TYPE_CHECKING:
    from dg_lsp.engine.engine import Engine
    from dg_lsp.engine.request import FillRequest
    from dg_lsp.engine.result import FillResult


def fill(
    position: Annotated[str, Argument(metavar="FILE:LINE[:COL]", help="They start at 1; default: the line's end.")],
    model: Model = None,
    remote: Remote = None,
    suffix_lines: loading.SuffixLines = None,
    candidates: Annotated[int, Option(min=1, max=8, metavar="N", help="Number of completions to generate.")] = 1,
    deadline: loading.Deadline = None,
    decoder: Decoder = None,
    prompt_format: Format = None,
    seed: Seed = 0,
    visual: Annotated[bool, Option("--visual", help="Show the canvas after each denoising step.")] = False,
    as_json: Json = False,
    write: Write = False,
    even_secret: EvenSecret = False,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Complete code at one position of a file. Without --write the file is not changed."""
    import attrs

    from dg_lsp.cli.output import fill_object, timing_line
    from dg_lsp.cli.source import SourceFile, parse_position
    from dg_lsp.engine.request import FillRequest, Priority

    path, line, column = parse_position(position)
    source = SourceFile.read(path)
    offset = source.offset_at(line, column)
    if write:
        source.check_writable()
    settings = loading.configure(loading.overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    if not even_secret:
        loading.check_allowed(source, settings)
    if prompt_format is not None:
        completion = attrs.evolve(settings.completion, prompt_format=prompt_format.value)
        settings = attrs.evolve(settings, completion=completion)
    request = FillRequest(
        source.snapshot(),
        offset,
        num_candidates=candidates,
        suffix_lines=suffix_lines,
        deadline_ms=deadline,
        seed=seed,
        decoder=decoder,
        priority=Priority.INVOKED,
    )
    with loading.timed_engine(settings) as (engine, load_ms):
        result = _run(engine, request, visual=visual, as_json=as_json)
    if write and result.candidates:
        source.replace(offset, offset, result.text)
    if as_json:
        typer.echo(json.dumps(fill_object(result, load_ms)))
    else:
        if not result.candidates:
            typer.echo(f"no completion ({result.reason or 'empty'})")
        elif write:
            typer.echo(f"wrote {path}")
        typer.echo(timing_line(result, load_ms))
    return 0 if result.candidates else 1


def _run(engine: "Engine", request: "FillRequest", *, visual: bool, as_json: bool) -> "FillResult":
    """Runs the request and shows the code. With --visual and --json, the steps are printed on standard error."""
    from rich.console import Console

    from dg_lsp.cli.output import show_fill, watch

    until = math.inf if request.deadline_ms is None else None  # no user is typing: without --deadline there is no limit
    console = Console(highlight=False, stderr=as_json)
    if visual:
        return watch(engine.frames(request, deadline=until), request.snapshot, request.offset, console)
    result = engine.fill(request, deadline=until)
    if not as_json:
        show_fill(result, request.snapshot, request.offset, console)
    return result
