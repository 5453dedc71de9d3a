"""Settings of a session: the file of the workspace, then `initializationOptions`, then later changes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lsprotocol import types

from dg_lsp.errors import SettingsError
from dg_lsp.models.registry import known_names
from dg_lsp.server.session import Server
from dg_lsp.settings import Settings, file_settings, parse_settings, resolve_path, settings_file

SECTION = "dg-lsp"
EDITOR_KEYS = ("editorInfo", "editorPluginInfo")
"""Options that describe the client, as sent to Copilot's server. They are no settings."""


def register(server: Server) -> None:
    """Registers the handlers."""
    server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)(did_change_configuration)
    server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)(did_change_workspace_folders)


def initial_settings(ls: Server, options: object) -> tuple[Settings, tuple[str, ...]]:
    """Settings at the start of a session, and an error for each part that is not used."""
    folder = first_folder(ls)
    settings, file_errors = workspace_settings(folder, ls.settings)
    settings, option_errors = parse_options(options, settings, folder)
    return settings, file_errors + option_errors


async def did_change_configuration(ls: Server, params: types.DidChangeConfigurationParams) -> None:
    """Takes over settings that the client sends, or requests them from a client that sends none."""
    tree = params.settings
    if isinstance(tree, Mapping) and SECTION in tree:
        tree = tree[SECTION]
    if not isinstance(tree, Mapping) or not tree:
        tree = await _requested(ls)
    if not isinstance(tree, Mapping):
        return
    settings, errors = parse_options(tree, ls.settings, first_folder(ls))
    ls.show_settings_errors(errors)
    if ls.configure(settings):
        await ls.load_model()
    ls.update_status()


def did_change_workspace_folders(ls: Server, params: types.DidChangeWorkspaceFoldersParams) -> None:
    """Updates the roots of .gitignore files and imports."""
    removed = {folder.uri for folder in params.event.removed}
    added = [folder.uri for folder in params.event.added]
    kept = [uri for uri in ls.workspace_folders if uri not in removed and uri not in added]
    ls.set_workspace_folders([*kept, *added])
    ls.update_status()


async def _requested(ls: Server) -> object:
    workspace = ls.client_capabilities.workspace
    if workspace is None or not workspace.configuration:
        return None
    params = types.ConfigurationParams([types.ConfigurationItem(section=SECTION)])
    answers = await ls.workspace_configuration_async(params)
    return answers[0] if answers else None


def first_folder(ls: Server) -> Path | None:
    """The first workspace folder on this machine."""
    return next(iter(ls.exclusion.roots), None)


def has_status_bar(options: object) -> bool:
    """Whether the client displays our status: such clients send `editorInfo`."""
    return isinstance(options, Mapping) and "editorInfo" in options


def workspace_settings(folder: Path | None, settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Settings of the nearest file in the folder or above it, and an error if that file is invalid.

    Without a valid file, `settings` are returned: those of the working directory, which may be outside the workspace.
    """
    path = settings_file(folder) if folder is not None else None
    if path is None:
        return settings, ()
    try:
        return file_settings(path, known_names()), ()
    except SettingsError as error:
        return settings, (f"{error} (the file is ignored)",)


def parse_options(options: object, base: Settings, folder: Path | None = None) -> tuple[Settings, tuple[str, ...]]:
    """`base` with the options applied, and an error for each invalid option.

    An invalid option changes nothing, and the others are applied. A relative model path is relative to `folder`.
    """
    if options is None:
        return base, ()
    if not isinstance(options, Mapping):
        return base, ("initializationOptions must be an object",)
    errors = []
    for path, value in _values({key: value for key, value in options.items() if key not in EDITOR_KEYS}):
        if path == ("model", "name") and isinstance(value, str) and folder is not None:
            value = resolve_path(value, folder, known_names())  # noqa: PLW2901
        try:
            base = parse_settings(_tree(path, value), base)
        except SettingsError as error:
            errors.append(f"{'.'.join(path)} = {json.dumps(value)[:80]} is not used ({error})")
    return base, tuple(errors)


def _values(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every leaf of the tree with its path. An empty object is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _values(value, (*above, key))
        else:
            yield (*above, key), value


def _tree(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """A tree with one leaf."""
    for key in reversed(path):
        value = {key: value}
    return value  # type: ignore[return-value]  # a path has at least one key
