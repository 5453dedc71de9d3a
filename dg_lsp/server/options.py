"""LSP `initializationOptions` as settings."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dg_lsp.errors import SettingsError
from dg_lsp.reading import parse_settings
from dg_lsp.settings import Settings

EDITOR_KEYS = ("editorInfo", "editorPluginInfo")
"""What clients of Copilot's server say of themselves; no settings."""


def names_editor(options: object) -> bool:
    """Whether the client says which editor it is, as those do that show our status."""
    return isinstance(options, Mapping) and "editorInfo" in options


def parse_options(options: object, over: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Settings with the options over them, and a sentence for each option that cannot be taken.

    A bad option leaves its setting as it was and costs no other one.
    """
    if options is None:
        return over, ()
    if not isinstance(options, Mapping):
        return over, ("initializationOptions must be an object",)
    complaints = []
    for path, value in _values({key: value for key, value in options.items() if key not in EDITOR_KEYS}):
        try:
            over = parse_settings(_tree(path, value), over)
        except SettingsError as error:
            complaints.append(f"{'.'.join(path)} = {json.dumps(value)[:80]} is not used ({error})")
    return over, tuple(complaints)


def _values(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is no object with something in it, and the keys that lead there."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _values(value, (*above, key))
        else:
            yield (*above, key), value


def _tree(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """The value alone at the end of its path."""
    for key in reversed(path):
        value = {key: value}
    return value  # type: ignore[return-value]  # a path has at least one key
