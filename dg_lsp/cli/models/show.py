"""`dg-lsp models show`: what a model says of itself."""

from typing import Annotated

import typer


def show_model(
    model: Annotated[str | None, typer.Argument(help="A name or the path of a GGUF file; the default model.")] = None,
) -> int:
    """Show a model's file, its spec and its metadata."""
    from dg_lsp.cli import loading
    from dg_lsp.cli.configuration import configure, overrides

    # nothing is computed here, so nothing has to go to a GPU
    loaded = loading.load_model(configure(overrides(model=model, gpu_layers=0, threads=None)))
    loaded.weights.close()
    for key, value in loaded.facts().items():
        typer.echo(f"{key}: {value}")
    for key, value in loaded.spec.metadata:
        typer.echo(f"  {key} = {value}")
    return 0
