"""`dg-lsp bench samples`: the places that a list names, filled."""

from pathlib import Path
from typing import Annotated

import typer

from dg_lsp.cli.options import GpuLayers, Model, Threads


def samples(
    places: Annotated[Path, typer.Argument(help="A TOML file that lists places.")] = Path("samples/places.toml"),
    model: Model = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Fill all listed places; print a Markdown table of what came out."""
    import math

    from dg_lsp.bench.samples import ExpectedFill, fill_places, markdown_table, read_places
    from dg_lsp.cli import loading
    from dg_lsp.cli.loading import configure, overrides
    from dg_lsp.cli.source import SourceFile
    from dg_lsp.engine.request import FillRequest
    from dg_lsp.engine.result import FillResult

    listed = read_places(places)
    engine = loading.open_engine(configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads)))

    def fill(place: ExpectedFill) -> FillResult:
        source = SourceFile.read(places.parent / place.file)
        request = FillRequest(source.snapshot(), source.offset_at(place.line, place.col))
        return engine.fill(request, deadline=math.inf)

    try:
        for line in markdown_table(fill_places(listed, fill)):
            typer.echo(line)
    finally:
        engine.close()
    return 0
