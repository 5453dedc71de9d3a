"""Settings of one command: the nearest `dg-lsp.toml`, and the command line over it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from dg_lsp.errors import SettingsError
from dg_lsp.models.registry import known_names
from dg_lsp.reading import parse_settings, read_settings
from dg_lsp.settings import AuditSettings, RemoteSettings, Settings

FILE_NAME = "dg-lsp.toml"


def settings_file(start: Path) -> Path | None:
    """The nearest `dg-lsp.toml` in this directory or above it."""
    return next((path for path in (folder / FILE_NAME for folder in (start, *start.parents)) if _is_file(path)), None)


def overrides(
    *,
    model: str | None,
    gpu_layers: int | None,
    threads: int | None,
    prompt_format: str | None = None,
    remote: str | None = None,
) -> dict[str, Any]:
    """The settings tree of what was given on the command line. With a remote server, the model is one of its own."""
    runtime = {"gpu_layers": gpu_layers, "threads": threads}
    tree: dict[str, Any] = {"runtime": {key: value for key, value in runtime.items() if value is not None}}
    if prompt_format is not None:
        tree["fill"] = {"prompt_format": str(prompt_format)}
    if remote is not None:
        there = {"url": remote} if model is None else {"url": remote, "model": model}
        return {**tree, "backend": "remote", "remote": there}
    return tree if model is None else {**tree, "model": model, "backend": "local"}


def configure(over: Mapping[str, Any]) -> Settings:
    """Defaults, then the settings file of the working directory's tree, then `over`.

    Raises:
        SettingsError: the file or a value is bad.
    """
    path = settings_file(Path.cwd())
    return parse_settings(over, file_settings(path) if path else None)


def file_settings(path: Path) -> Settings:
    """The file's settings; a relative path of a model in it counts from the file's own directory.

    Raises:
        SettingsError: the file or a value in it is bad, or says more than a folder that somebody opens may say.
    """
    settings = read_settings(path)
    if path.parent != _home() and (settings.remote, settings.audit) != (RemoteSettings(), AuditSettings()):
        raise SettingsError(
            f"{path} says remote or audit: a folder that you open must not say where your code goes or which files are"
            f" written; put that into {FILE_NAME} of your home, into the editor's settings, or pass --remote"
        )
    if settings.model in known_names():
        return settings
    return attrs.evolve(settings, model=str(path.parent / Path(settings.model).expanduser()))


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # nobody knows where it is
        return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a directory above that may not be looked into
        return False
