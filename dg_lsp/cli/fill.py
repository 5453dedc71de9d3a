"""`dg-lsp fill`: one hole of one file."""

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp.cli.options import Decoder, Format, GpuLayers, Json, Model, Remote, Threads

if TYPE_CHECKING:
    from dg_lsp.engine.engine import Engine
    from dg_lsp.engine.request import FillRequest
    from dg_lsp.engine.result import FillResult


def fill(
    place: Annotated[
        str,
        typer.Argument(metavar="FILE:LINE[:COL]", help="LINE and COL count from 1; without COL the end of the line."),
    ],
    model: Model = None,
    remote: Remote = None,
    suffix_lines: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Lines after the cursor's that the model may see.")
    ] = None,
    candidates: Annotated[int, typer.Option(min=1, max=8, metavar="N", help="How many fills to try for.")] = 1,
    deadline: Annotated[
        float | None, typer.Option(min=1, metavar="MS", help="Take what is stable after this time, load not counted.")
    ] = None,
    decoder: Decoder = None,
    prompt_format: Format = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Same seed, same fill.")] = 0,
    visual: Annotated[bool, typer.Option("--visual", help="Show the canvas settling step by step.")] = False,
    as_json: Json = False,
    write: Annotated[bool, typer.Option("--write", help="Insert the best fill into the file.")] = False,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Fill one place of a file. Without --write the file is only read."""
    from dg_lsp.cli.loading import configure, overrides
    from dg_lsp.cli.source import Location, SourceFile
    from dg_lsp.engine.request import FillRequest

    location = Location.parse(place)
    source = SourceFile.read(location.path)
    offset = source.offset_at(location.line, location.column)
    if write:
        source.check_writable()
    settings = configure(
        overrides(model=model, gpu_layers=gpu_layers, threads=threads, prompt_format=prompt_format, remote=remote)
    )
    request = FillRequest(
        source.snapshot(),
        offset,
        num_candidates=candidates,
        suffix_lines=suffix_lines,
        deadline_ms=deadline,
        seed=seed,
        decoder=decoder,
    )

    from dg_lsp.cli import loading

    start = time.perf_counter()
    engine = loading.open_engine(settings)
    load_ms = 1e3 * (time.perf_counter() - start)
    try:
        # nobody is typing meanwhile, so without --deadline the whole fill is waited for
        until = math.inf if deadline is None else None
        result = _show(engine, request, until, visual=visual, as_json=as_json)
    finally:
        engine.close()
    if write and result.candidates:
        source.insert(offset, result.text)
    _report(result, load_ms, location.path if write and result.candidates else None, as_json=as_json)
    return 0 if result.candidates else 1


def _show(
    engine: "Engine", request: "FillRequest", until: float | None, *, visual: bool, as_json: bool
) -> "FillResult":
    """Fills; with --visual, the steps go to standard error where --json owns standard output."""
    from rich.console import Console

    from dg_lsp.cli.output import show_fill, watch

    console = Console(highlight=False, stderr=as_json)
    if visual:
        return watch(engine.frames(request, deadline=until), request.snapshot, request.offset, console)
    result = engine.fill(request, deadline=until)
    if not as_json:
        show_fill(result, request.snapshot, request.offset, console)
    return result


def _report(result: "FillResult", load_ms: float, written: Path | None, *, as_json: bool) -> None:
    from dg_lsp.cli.output import fill_object, rejected, timing_line

    if as_json:
        typer.echo(json.dumps(fill_object(result, load_ms)))
        return
    if not result.candidates:
        typer.echo(f"nothing worth showing ({rejected(result) or 'empty'})")
    if written is not None:
        typer.echo(f"wrote {written}")
    typer.echo(timing_line(result, load_ms))
