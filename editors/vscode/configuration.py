"""Writes the server's settings into the extension's package.json: `python editors/vscode/configuration.py`.

The extension's own settings are defined here; all others come from the tree in `dg_lsp/settings.py`. Settings that are
read before an editor sends options, or that only the user's file may set, are left out.
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
NOT_IN_EDITORS = ("daemon.", "privacy.trusted_folders", "remote.key_source")
"""What is read before the editor sends any, and what only the user's file may set."""
NOT_IN_WORKSPACES = ("dg-lsp.remote.", "dg-lsp.privacy.audit_log")
"""A folder must not decide where the user's code is sent or which files are written."""
RESTRICTED = (
    "dg-lsp.context.",
    "dg-lsp.privacy.",
    "dg-lsp.model.",
    "dg-lsp.remote.",
    "dg-lsp.rewrite.model",
    "dg-lsp.rewrite.preview",
)
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
        "default": [],
        "markdownDescription": "Languages whose files are sent to the server; empty: all. Where the model "
        "does not know a language, the status bar shows that.",
    },
    "dg-lsp.server.path": {
        "type": "string",
        "default": "",
        "scope": "machine-overridable",
        "markdownDescription": "The `dg-lsp` to run; may contain `~` and `${workspaceFolder}`. Empty: searched in the "
        "workspace's `.venv`, `venv` and `env`, on `PATH`, in `~/.local/bin`, then where *Install the Server* puts it.",
    },
    "dg-lsp.test.command": {
        "type": "string",
        "default": "",
        "scope": "machine",
        "markdownDescription": "The command that *Fix the Failing Test* runs, in a sandbox in a copy of the folder. "
        "Empty: you enter it each time.",
    },
    "dg-lsp.trace.server": {
        "type": "string",
        "enum": ["messages", "verbose"],
        "enumDescriptions": [
            "The name and the time of each message.",
            "Each message with its content, including your code.",
        ],
        "default": "messages",
        "markdownDescription": "What is logged of the messages between editor and server while the level of the log "
        "is *Trace* (*Developer: Set Log Level…*).",
    },
}

GROUPS = {
    "Completion": ("enable", "model.name", "completion.", "languages", "privacy.exclude_languages", "rewrite."),
    "Next Edits": ("next_edit.",),
    "Context": ("context.",),
    "Privacy": ("privacy.",),
    "Remote": ("remote.url", "remote.api", "remote.model", "remote.fim", "remote."),
    "Advanced": ("server.path", "test.command", "completion.", "context.", "rewrite.", "model.", "remote.", ""),
}
"""Titles, and the settings of each group in the order of their use: keys, and beginnings of keys."""
ADVANCED = (
    *("completion.debounce_ms", "completion.early_stop_ms", "completion.max_tokens", "completion.decoder"),
    "completion.speculate",
    *("rewrite.strength", "rewrite.deadline_ms", "remote.max_prompt_tokens", "remote.extra"),
)
"""Settings that are rarely changed in an editor, although their group is another one."""
CHOICES = {
    "completion.trigger": {
        "auto": "While you type.",
        "manual": "Only when you request one.",
    },
    "completion.lines": {
        "auto": "A whole block on an empty line, else the rest of the line.",
        "single": "Never more than one line.",
    },
    "completion.decoder": {
        "auto": "The fastest one of the model, by measured costs.",
        "diffusion": "Denoises the positions of a canvas together.",
        "autoregressive": "Decodes token by token.",
        "speculative": "Drafts a canvas and verifies it in one causal pass; the text is that of autoregressive.",
        "prompt-lookup": "Drafts from earlier text and verifies; the text is that of autoregressive.",
        "infill": "Denoises gaps of several lengths between the text before and after the cursor.",
    },
    "next_edit.trigger": {
        "pause": "After a pause in typing, an accepted suggestion or a saved file.",
        "request": "Only when you request one.",
    },
    "context.enabled": {
        "auto": "For models that use it.",
        "always": "For every model.",
        "never": "Only the code around the cursor.",
    },
    "remote.api": {
        "completions": "/v1/completions: dg-lsp serve, vLLM, SGLang and others.",
        "infill": "/infill: the server of llama.cpp.",
        "chat": "/v1/chat/completions: models that follow instructions.",
    },
    "remote.fim": {
        "suffix": "In the field suffix of the request.",
        "none": "Not sent.",
        "qwen": "FIM tokens of Qwen2.5-Coder and Qwen3-Coder.",
        "codegemma": "FIM tokens of CodeGemma.",
        "granite": "FIM tokens of Granite 4.",
        "granite-code": "FIM tokens of Granite 3.3 and Granite Code.",
        "mellum": "FIM tokens of Mellum.",
        "starcoder2": "FIM tokens of StarCoder2.",
        "starcoder": "FIM tokens of StarCoder.",
        "santacoder": "FIM tokens of SantaCoder.",
        "deepseek": "FIM tokens of DeepSeek-Coder.",
        "codestral": "FIM tokens of Codestral.",
        "codellama": "FIM tokens of Code Llama.",
        "zeta": "FIM tokens of Zeta.",
        "seed-coder": "FIM tokens of Seed-Coder.",
    },
}
"""One sentence for each value of a setting, where the setting has a list of them."""


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
            described = schema(field)
            for part in (described, described.get("items", {})):
                if choices := part.get("enum"):
                    part["enumDescriptions"] = [CHOICES[name][choice] for choice in choices]
            yield key, {**described, **scope, "markdownDescription": sentences(kind)[field.name]}


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
            return {key: value for part in validator._validators for key, value in bounds(part).items()}  # noqa: SLF001
        case "_NumberValidator":
            names = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}
            return {names[validator.compare_op]: validator.bound}
        case "_InValidator":
            return {"enum": list(validator.options)}
        case "_DeepIterable":
            return {"items": {"type": "string", **bounds(validator.member_validator)}, "uniqueItems": True}
        case "_MatchesReValidator":
            return {"pattern": f"^({validator.pattern.pattern})$"}
    return {}


def configuration() -> list[dict[str, Any]]:
    """`contributes.configuration`: the groups, with the settings of each in the order of their use."""
    placed: dict[str, dict[str, dict[str, Any]]] = {title: {} for title in GROUPS}
    for key, described in sorted({**OWN, **dict(properties())}.items(), key=lambda item: place(item[0])):
        group = placed[list(GROUPS)[place(key)[0]]]
        group[key] = {**described, "order": len(group) + 1}
    return [
        {"title": title, "order": number, "properties": one} for number, (title, one) in enumerate(placed.items(), 1)
    ]


def place(key: str) -> tuple[int, int]:
    """The number of the group of a setting, and its rank in the group."""
    name = key.removeprefix("dg-lsp.")
    return next(
        (number, rank)
        for number, (title, beginnings) in enumerate(GROUPS.items())
        if title == "Advanced" or name not in ADVANCED
        for rank, beginning in enumerate(beginnings)
        if name.startswith(beginning)
    )


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
