"""The tree of commands. The module of a command is imported when the command is used."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup, TyperOption
from typing_extensions import override

from dg_lsp import __version__
from dg_lsp.cli.options import with_groups
from dg_lsp.cli.printing import print_line

_GROUPS = {
    "daemon": "Start, stop or show the daemon, which holds one model for all editors.",
    "models": "List, recommend, show, pull, remove and convert models.",
    "bench": "Measure how often, how soon and at what cost a model is right.",
}
COMMANDS: dict[str, tuple[str, str, str]] = {
    "setup": ("setup", "set_up", ""),
    "fill": ("edits", "fill", "app.py:12"),
    "rewrite": ("edits", "rewrite", 'app.py:12-20 "use a list comprehension" --write'),
    "why": ("edits", "why", "app.py:12"),
    "generate": ("chat", "generate", '"def add(a, b):" --max-tokens 64'),
    "chat": ("chat", "chat", "--model diffusiongemma"),
    "lsp": ("servers", "lsp", "--stdio"),
    "serve": ("servers", "serve", "--port 8012"),
    "doctor": ("doctor", "doctor", "--model dg-mini"),
    "report": ("bench", "report", "audit.jsonl"),
    "daemon start": ("servers", "start", "--exit-when-idle"),
    "daemon run": ("servers", "run", ""),
    "daemon stop": ("servers", "stop", ""),
    "daemon status": ("servers", "status", "--json"),
    "models list": ("models", "list_models", "--json"),
    "models recommend": ("setup", "recommend_models", ""),
    "models show": ("models", "show_model", "dg-base"),
    "models pull": ("models", "pull_model", "qwen2.5-coder-0.5b"),
    "models rm": ("models", "remove_model", "qwen2.5-coder-0.5b"),
    "models convert": ("models", "convert_model", "checkpoint -o model.gguf"),
    "models build-runtime": ("models", "build_changed_runtime", "--backend cuda"),
    "bench cut": ("bench", "cut", "src -o cases.jsonl"),
    "bench infill": ("bench", "infill", "cases.jsonl --limit 50"),
    "bench next-edit": ("bench", "next_edit", "."),
    "bench replay": ("bench", "replay", "app.py --region 10-40"),
}
"""The module and the function of each command, and arguments for the example of its help page."""


_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def root(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
) -> int:
    """Complete code with a block-diffusion language model, in an editor or on the command line."""
    if version:
        print_line(f"dg-lsp {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is not None:
        return 0
    typer.echo(context.get_help())
    return 2


class CommandGroup(TyperGroup):
    """The root, or one of the groups."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._prefix = f"{self.name} " if self.name in _GROUPS else ""

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        names = [words.removeprefix(self._prefix) for words in COMMANDS if words.startswith(self._prefix)]
        return [*(name for name in names if " " not in name), *super().list_commands(ctx)]

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """For the lists of help pages: the name and the docstring of a command, whose module is not imported."""
        words = f"{self._prefix}{cmd_name}"
        return _listed(words) if words in COMMANDS else super().get_command(ctx, cmd_name)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        words = f"{self._prefix}{args[0]}"
        if words in COMMANDS:
            return args[0], load_command(words), args[1:]
        return super().resolve_command(ctx, args)


def _listed(words: str) -> TyperCommand:
    module, function, _ = COMMANDS[words]
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    [command] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return TyperCommand(words.rpartition(" ")[2], help=ast.get_docstring(command), hidden=words == "daemon run")


def load_command(words: str) -> Any:
    """A command by its words, such as `models list`."""
    module, function, arguments = COMMANDS[words]
    command = getattr(import_module(f"dg_lsp.cli.{module}"), function)
    app = typer.Typer(add_completion=False, context_settings=_CONTEXT)
    example = f"Example: dg-lsp {words} {arguments}".rstrip()
    app.command(words.rpartition(" ")[2], epilog=example)(with_groups(command))
    return _without_flag_types(typer.main.get_command(app))


def command_tree() -> Any:
    """The commands, with the options of their groups."""
    app = typer.Typer(
        name="dg-lsp",
        cls=CommandGroup,
        epilog="Exit codes: 0 done, 1 no result, 2 wrong usage or invalid input, 3 no model or not enough memory.",
        pretty_exceptions_enable=False,
        context_settings=_CONTEXT,
    )
    app.callback(invoke_without_command=True)(root)
    for name, text in _GROUPS.items():
        app.add_typer(typer.Typer(help=text, cls=CommandGroup), name=name)
    return _without_flag_types(typer.main.get_command(app))


def _without_flag_types(command: Any) -> Any:
    """The command or group, whose help pages name no type at options that take no value."""
    help_option = command.get_help_option(typer.Context(command, **_CONTEXT))
    for parameter in (*command.params, help_option):
        if isinstance(parameter, TyperOption) and parameter.is_flag:
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _without_flag_types(inner)
    return command
