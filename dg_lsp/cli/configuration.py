"""Settings of one command: the nearest `dg-lsp.toml`, and the command line over it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from dg_lsp.models.registry import known_names
from dg_lsp.settings import Settings, parse_settings, read_settings

FILE_NAME = "dg-lsp.toml"


def settings_file(start: Path) -> Path | None:
    """The nearest `dg-lsp.toml` in this directory or above it."""
    return next((path for path in (folder / FILE_NAME for folder in (start, *start.parents)) if _is_file(path)), None)


def overrides(
    *, model: str | None, gpu_layers: int | None, threads: int | None, prompt_format: str | None = None
) -> dict[str, Any]:
    """The settings tree of what was given on the command line."""
    runtime = {"gpu_layers": gpu_layers, "threads": threads}
    tree: dict[str, Any] = {"runtime": {key: value for key, value in runtime.items() if value is not None}}
    if prompt_format is not None:
        tree["fill"] = {"prompt_format": str(prompt_format)}
    return tree if model is None else {**tree, "model": model}


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
        SettingsError: the file or a value in it is bad.
    """
    settings = read_settings(path)
    if settings.model in known_names():
        return settings
    return attrs.evolve(settings, model=str(path.parent / Path(settings.model).expanduser()))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a directory above that may not be looked into
        return False
