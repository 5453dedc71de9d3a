"""The user's settings file and the workspace's: where they are, whether they are trusted, and which keys are used.

A workspace's file comes with a folder that others wrote. Until the user trusts the folder, it can change how code is
completed and exclude more; it cannot choose models, send more or exclude less.
"""

import os
import tomllib
from collections.abc import Collection
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from dg_lsp.errors import SettingsError
from dg_lsp.gitignore import below
from dg_lsp.settings import SAMPLER_KEY, Settings, setting_of, valid_settings, with_setting
from dg_lsp.system import config_folder, expanded

FILE_NAME = "dg-lsp.toml"
MAX_BYTES = 20_000
"""Longer files are refused: a parser of TOML takes quadratic time for one long key."""
USER_KEYS = ("daemon.", "remote.", "privacy.audit_log", "privacy.trusted_folders", SAMPLER_KEY)
"""Keys that no folder may set, trusted or not.

They decide where code is sent, which clients are served, and which files are written.
"""
FREE_KEYS = ("completion.", "rewrite.", "next_edit.")
"""Keys that every folder may set, except those that choose models."""
MODEL_KEYS = ("model.name", "rewrite.model")
"""Keys with the name or the path of a model."""
PATH_KEYS = (*MODEL_KEYS, "privacy.audit_log", "remote.ca_file")
"""Keys whose value may be a path."""
PATTERNS = "privacy.exclude_patterns"
_CONTEXT_ORDER = ("never", "auto", "always")
_ONLY_TRUE = ("rewrite.preview", "privacy.exclude_secrets", "privacy.exclude_gitignored")
"""Flags that a folder without trust can set and not clear."""


def user_file() -> Path:
    """The user's settings file; it may not exist."""
    return config_folder() / FILE_NAME


def user_settings(names: Collection[str]) -> tuple[Settings, tuple[str, ...]]:
    """The defaults with the user's file applied, and messages for what is ignored of it.

    `names` are the names of models, see `with_paths`. A file that cannot be opened, and one that another user can
    change, is ignored.
    """
    path = user_file()
    try:
        if not path.is_file() and not path.is_symlink():
            return Settings(), ()
        tree = _read(path)
        if tree is None:
            raise SettingsError(f"{path} can be changed by other users: correct its owner and its mode")
    except (OSError, SettingsError) as error:  # OSError: its folder is not readable
        return _without_file(Settings(), error)
    settings, keys, messages = _parse(path, tree, Settings())
    return with_paths(settings, keys, path.parent, names), messages


def workspace_file(start: Path) -> Path | None:
    """The nearest `dg-lsp.toml` in this directory or above it, except the user's."""
    with suppress(OSError):  # a directory above is not readable
        paths = (folder / FILE_NAME for folder in (start, *start.parents))
        present = (path for path in paths if path.is_file() or path.is_symlink())  # a broken link is reported
        return next((path for path in present if path != user_file()), None)
    return None


def with_workspace_file(
    settings: Settings, folder: Path | None, names: Collection[str], *, editor_trusts: bool | None = None
) -> tuple[Settings, tuple[str, ...]]:
    """The settings with the `workspace_file` of a folder applied as far as it is trusted, and what is ignored of it.

    `editor_trusts` is None for an editor that does not know trust. The trust of an editor ends with its folder.
    """
    path = workspace_file(folder) if folder is not None else None
    if path is None:
        return settings, ()
    if editor_trusts is False:
        return settings, (f"{path} is ignored, because the editor does not trust this folder",)
    place = path.parent
    is_trusted = (editor_trusts is True and place == folder) or _is_below(place, settings.privacy.trusted_folders)
    advice = f"to allow it, add {place} to privacy.trusted_folders in {user_file()}, or trust it in the editor"
    try:
        tree = _read(path, is_trusted=is_trusted)
    except SettingsError as error:
        return _without_file(settings, error)
    if tree is None:
        return settings, (f"{path} is ignored, because other users can change it: {advice}",)
    wanted, keys, problems = _parse(path, tree, settings)
    merged = {
        key: _merged(key, setting_of(settings, key), setting_of(wanted, key), is_trusted=is_trusted) for key in keys
    }
    ignored = [key for key, value in merged.items() if not _is_honoured(value, setting_of(wanted, key))]
    for key, value in merged.items():
        settings = with_setting(settings, key, value)
    settings = with_setting(settings, "privacy.is_incomplete", wanted.privacy.is_incomplete)
    forbidden = [key for key in ignored if key.startswith(USER_KEYS)]
    untrusted = [key for key in ignored if key not in forbidden]
    messages = list(problems)
    if untrusted:
        messages.append(f"{path}: ignored {', '.join(untrusted)}, because this folder is not trusted: {advice}")
    if forbidden:
        where = f"set it in {user_file()}, in the editor or on the command line"
        messages.append(f"{path}: ignored {', '.join(forbidden)}, which a folder must not decide: {where}")
    if is_trusted:
        settings = with_paths(settings, keys, place, names)
    return settings, tuple(messages)


def with_paths(settings: Settings, keys: Collection[str], folder: Path | None, names: Collection[str]) -> Settings:
    """Makes the paths absolute that these keys set; names of models stay.

    Paths of models are relative to `folder`, if there is one, and all others to that of the user's file.
    """
    for key in PATH_KEYS:
        path = setting_of(settings, key)
        start = folder if key in MODEL_KEYS else config_folder()
        is_name = path in names or (key == "rewrite.model" and settings.is_remote)  # of a model of the server
        if key in keys and path and start is not None and not is_name:
            settings = with_setting(settings, key, str(start / expanded(path)))
    return settings


def _merged(key: str, old: Any, new: Any, *, is_trusted: bool) -> Any:
    """The value of a key after the workspace's file; without trust, one that sends and loads no more than `old`."""
    if key.startswith(USER_KEYS):
        return old
    if is_trusted:
        return new
    if key in _ONLY_TRUE:
        return old or new
    match key:
        case "privacy.exclude_patterns" | "privacy.exclude_languages":
            # a pattern that the user has too is added again, because the last pattern that matches decides
            return (*old, *(pattern for pattern in new if not pattern.startswith("!")))
        case "context.enabled":
            return min(old, new, key=_CONTEXT_ORDER.index)
    return new if key.startswith(FREE_KEYS) and key not in MODEL_KEYS else old


def _is_honoured(value: Any, wanted: Any) -> bool:
    return set(wanted) <= set(value) if isinstance(wanted, tuple) else value == wanted


def _is_below(folder: Path, trusted: Collection[str]) -> bool:
    """Whether a folder is in one of the trusted ones; a relative path, which any directory could be, trusts none."""
    with suppress(OSError, RuntimeError):  # RuntimeError: links in a circle
        target = folder.resolve()
        return any(root.is_absolute() and target.is_relative_to(root.resolve()) for root in map(expanded, trusted))
    return False


def _read(path: Path, *, is_trusted: bool = False) -> dict[str, Any] | None:
    """The tree of a settings file; None if it is not trusted and others than this user and root can change it."""
    try:
        if not path.is_file():  # reading a pipe, such as /dev/stdin, would block
            raise SettingsError(f"{path}: this is no regular file, or a broken link")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise SettingsError(f"{path}: longer than {MAX_BYTES:,} bytes")
        is_own = not hasattr(os, "getuid") or (status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o002)
        return tomllib.loads(data.decode("utf-8-sig")) if is_own or is_trusted else None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise SettingsError(f"{path}: {error}") from error


def _without_file(settings: Settings, error: Exception) -> tuple[Settings, tuple[str, ...]]:
    """The settings without a file that cannot be used, and a message."""
    return with_setting(settings, "privacy.is_incomplete", True), (f"{error} (the file is ignored)",)


def _parse(path: Path, tree: dict[str, Any], base: Settings) -> tuple[Settings, list[str], tuple[str, ...]]:
    """The settings of a file, the keys that it sets, and a message with file and key for each bad key."""
    settings, keys, problems = valid_settings(tree, base)
    messages = [f"{path}: {problem} (this key is ignored)" for problem in problems.values() if problem]
    if len(messages) < len(problems):
        messages.append(f"{path}: {len(problems) - len(messages)} more unknown settings are ignored")
    if any(key.startswith("privacy.") or "." not in key for key in problems):  # a misspelled group may be `privacy`
        settings = with_setting(settings, "privacy.is_incomplete", True)
    if PATTERNS in keys:  # each line for workspace folders and repositories, and for the folder of the file
        folders = dict.fromkeys(folder.as_posix() for folder in (path.parent, path.parent.resolve()))
        lines = setting_of(settings, PATTERNS)
        every = [dict.fromkeys((line, *(below(folder, line) for folder in folders))) for line in lines]
        settings = with_setting(settings, PATTERNS, tuple(chain.from_iterable(every)))
    return settings, keys, tuple(messages)
