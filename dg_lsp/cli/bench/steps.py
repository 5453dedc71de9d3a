"""`dg-lsp bench steps`: what a denoising step costs here."""

from typing import Annotated

import typer

from dg_lsp.cli.options import GpuLayers, Json, Model, Threads


def steps(
    model: Model = None,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Repeats; medians are printed.")] = 15,
    as_json: Json = False,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Time prefill and denoising steps, the engine's overhead, and what the cached prompt saves."""
    import json

    from dg_lsp.cli.loading import configure, overrides
    from dg_lsp.cli.steps import measure
    from dg_lsp.errors import UsageError

    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads))
    if settings.backend == "remote":
        raise UsageError("the steps of a server cannot be seen from here: name a model with --model")
    report = measure(settings, rounds)
    for line in [json.dumps(report.json())] if as_json else report.lines():
        typer.echo(line)
    return 0
