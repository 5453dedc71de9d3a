"""Settings from what people write: a TOML file, the options of a client."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cattrs

from dg_lsp.errors import SettingsError
from dg_lsp.settings import Settings

_CONVERTER = cattrs.Converter(forbid_extra_keys=True, prefer_attrib_converters=True)


def _strict(value: Any, kind: type) -> Any:
    """cattrs would turn `"8"` into 8 and 1 into True; a settings file that says so is wrong."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {value!r}")
    return value


def _strings(value: Any, _kind: type) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"expected a list of strings, got {value!r:.80}")
    return tuple(value)


_CONVERTER.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _strings)
for _kind in (int, float, bool, str):
    _CONVERTER.register_structure_hook(_kind, _strict)


def parse_settings(tree: Mapping[str, Any], over: Settings | None = None) -> Settings:
    """Settings from a mapping such as TOML gives; what is absent keeps its value in `over`.

    Raises:
        SettingsError: unknown keys, wrong types, values out of range; all of them named in one line.
    """
    base = cattrs.unstructure(over or Settings())
    try:
        return _CONVERTER.structure(_merge(base, tree), Settings)
    except (cattrs.BaseValidationError, ValueError, TypeError, AttributeError) as error:
        reasons = cattrs.transform_error(error, path="settings", format_exception=_reason)
        raise SettingsError("; ".join(reasons)) from error


def _reason(error: BaseException, kind: type | None) -> str:
    """The message of a validator, which names the field and the bound; cattrs would say "invalid value"."""
    if isinstance(error, ValueError) and error.args:
        return str(error.args[0])
    return cattrs.v.format_exception(error, kind)


def _merge(base: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in tree.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def read_settings(path: Path, over: Settings | None = None) -> Settings:
    """Settings from a TOML file.

    Raises:
        SettingsError: the file cannot be read, is no TOML or has bad values.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    return parse_settings(tree, over)
