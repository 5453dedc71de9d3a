"""`dg-lsp models`: which models there are, and what one says of itself."""

from typing import Annotated

import typer

app = typer.Typer(help="List the models there are, or show what one says of itself.", no_args_is_help=False)


@app.command("list")
def list_models() -> int:
    """List the bundled models with their sizes."""
    from dg_lsp.models.registry import BUNDLED

    for model in BUNDLED:
        size = f"{model.path.stat().st_size / 1e6:.1f} MB" if model.path.is_file() else "missing"
        typer.echo(f"{model.name}  {size}  {model.path}")
    return 0


@app.command("show")
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
