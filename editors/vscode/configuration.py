"""Writes the server's settings into the extension's package.json: `python editors/vscode/configuration.py`.

The extension's own settings are defined here; all others come from the tree in `dg_lsp/settings.py`. Settings that only
`dg-lsp serve` reads, or that are read before an editor sends options, are left out.
"""

import ast
import inspect
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from dg_lsp import __version__, settings

PACKAGE = Path(__file__).with_name("package.json")
NOT_IN_EDITORS = ("http.", "daemon.", "privacy.trusted_folders", "remote.key_variable", "remote.keyring")
"""What only `dg-lsp serve` reads, what is read before the editor sends any, and what only the user's file may set."""
NOT_IN_WORKSPACES = ("dg-lsp.remote.", "dg-lsp.privacy.audit_log")
"""A folder must not decide where the user's code is sent or which files are written."""
RESTRICTED = ("dg-lsp.context.", "dg-lsp.privacy.", "dg-lsp.model.", "dg-lsp.remote.", "dg-lsp.rewrite.preview")
RESTRICTED_OWN = ("dg-lsp.languages", "dg-lsp.server.path", "dg-lsp.trace.server")
"""Settings that run, load or send something; a folder that is not trusted cannot change them."""
OWN: dict[str, dict[str, Any]] = {
    "dg-lsp.enable": {
        "type": "boolean",
        "default": True,
        "scope": "language-overridable",
        "markdownDescription": "Show completions automatically. Requested completions and rewrites work either way.",
    },
    "dg-lsp.languages": {
        "type": "array",
        "items": {"type": "string"},
        "default": ["python"],
        "markdownDescription": "Languages whose files are sent to the server. The bundled model supports Python only.",
    },
    "dg-lsp.server.path": {
        "type": "string",
        "default": "",
        "scope": "machine-overridable",
        "markdownDescription": "The `dg-lsp` to run; may contain `~` and `${workspaceFolder}`. Empty: searched in the "
        "workspace's `.venv`, `venv` and `env`, then on `PATH`, then in `~/.local/bin`.",
    },
    "dg-lsp.trace.server": {
        "type": "string",
        "enum": ["off", "messages", "verbose"],
        "default": "off",
        "markdownDescription": "Log the messages between editor and server, including your code.",
    },
}


def sentences(kind: type) -> dict[str, str]:
    """The docstring of each field of a class."""
    [body] = [
        node.body
        for node in ast.parse(inspect.getsource(settings)).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    ]
    return {
        line.target.id: after.value.value
        for line, after in pairwise(body)
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }


def properties() -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and JSON schema of every setting."""
    for name, field, kind in settings.leaves():
        key = f"dg-lsp.{name}"
        if not name.startswith(NOT_IN_EDITORS):
            scope = {"scope": "machine"} if key.startswith(NOT_IN_WORKSPACES) else {}
            yield key, {**schema(field), **scope, "markdownDescription": sentences(kind)[field.name]}


def schema(field: "attrs.Attribute[Any]") -> dict[str, Any]:
    """Type, default and bounds."""
    kinds: dict[Any, dict[str, Any]] = {
        bool: {"type": "boolean"},
        int: {"type": "integer"},
        float: {"type": "number"},
        str: {"type": "string"},
        tuple[str, ...]: {"type": "array", "items": {"type": "string"}},
    }
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return {**kinds[field.type], "default": default, **bounds(field.validator)}


def bounds(validator: Any) -> dict[str, Any]:
    """The keywords of JSON schema for a validator of attrs; none for a validator without such keywords."""
    match type(validator).__name__:
        case "_AndValidator":
            return {key: value for one in validator._validators for key, value in bounds(one).items()}  # noqa: SLF001
        case "_NumberValidator":
            names = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}
            return {names[validator.compare_op]: validator.bound}
        case "_InValidator":
            return {"enum": list(validator.options)}
        case "_MatchesReValidator":
            return {"pattern": f"^({validator.pattern.pattern})$"}
    return {}


def configuration() -> list[dict[str, Any]]:
    """`contributes.configuration`: one group for the editor, one for the server."""
    return [
        {"title": "Editor", "order": 1, "properties": OWN},
        {"title": "Server", "order": 2, "properties": dict(properties())},
    ]


def generated(package: dict[str, Any]) -> dict[str, Any]:
    """The package with the current version and settings."""
    contributes = {**package["contributes"], "configuration": configuration()}
    restricted = [*RESTRICTED_OWN, *(key for key, _ in properties() if key.startswith(RESTRICTED))]
    workspaces = {**package["capabilities"]["untrustedWorkspaces"], "restrictedConfigurations": restricted}
    capabilities = {**package["capabilities"], "untrustedWorkspaces": workspaces}
    return {**package, "version": __version__, "capabilities": capabilities, "contributes": contributes}


if __name__ == "__main__":
    package = json.loads(PACKAGE.read_text(encoding="utf-8"))
    PACKAGE.write_text(json.dumps(generated(package), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
