"""The tree of commands. Each command imports heavy modules when it runs, so that `--help` and `--version` are fast."""

from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperOption

from dg_lsp.cli import bench, conversion, daemon, models
from dg_lsp.cli.chat import chat, generate
from dg_lsp.cli.doctor import doctor
from dg_lsp.cli.fill import fill, why
from dg_lsp.cli.options import Command, with_groups
from dg_lsp.cli.printing import print_line
from dg_lsp.cli.pull import pull_model
from dg_lsp.cli.rewrite import rewrite
from dg_lsp.cli.servers import lsp, serve


def setup(yes: Annotated[bool, Option("--yes", "-y", help="Agree to the plan without the question.")] = False) -> int:
    """Measure this machine, get llama.cpp for its GPU and the best model, test a fill, print settings for editors.

    One question is asked before anything is fetched or built.
    """
    from dg_lsp.cli.setup import set_up

    set_up(is_agreed=yes)
    return 0


_GROUPS = {
    "daemon": "Start, stop or show the daemon, which holds one model for all editors.",
    "models": "List, recommend, show, pull, remove and convert models.",
    "bench": "Measure how often, how soon and at what cost a model is right.",
}
_COMMANDS: tuple[tuple[str, Command, str], ...] = (
    ("setup", setup, ""),
    ("fill", fill, "app.py:12"),
    ("rewrite", rewrite, 'app.py:12-20 "use a list comprehension" --write'),
    ("why", why, "app.py:12"),
    ("generate", generate, '"def add(a, b):" --max-tokens 64'),
    ("chat", chat, "--model diffusiongemma"),
    ("lsp", lsp, "--stdio"),
    ("serve", serve, "--port 8012"),
    ("doctor", doctor, "--model dg-mini"),
    ("report", bench.report, "audit.jsonl"),
    ("daemon start", daemon.start, "--exit-when-idle"),
    ("daemon run", daemon.run, ""),
    ("daemon stop", daemon.stop, ""),
    ("daemon status", daemon.status, "--json"),
    ("models list", models.list_models, "--json"),
    ("models recommend", models.recommend_models, ""),
    ("models show", models.show_model, "dg-base"),
    ("models pull", pull_model, "qwen2.5-coder-0.5b"),
    ("models rm", models.remove_model, "qwen2.5-coder-0.5b"),
    ("models convert", conversion.convert_model, "checkpoint -o model.gguf"),
    ("models build-runtime", conversion.build_runtime, "--backend cuda"),
    ("bench cut", bench.cut, "src -o cases.jsonl"),
    ("bench infill", bench.infill, "cases.jsonl --limit 50"),
    ("bench next-edit", bench.next_edit, "."),
    ("bench replay", bench.replay, "app.py --region 10-40"),
)
"""Names, functions, and arguments for the examples of help pages."""


_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def _print_version(value: bool | None) -> None:
    if value:
        from dg_lsp import __version__

        print_line(f"dg-lsp {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  (read by its callback)
        bool | None,
        Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = None,
) -> int:
    """Complete code with a block-diffusion language model, in an editor or on the command line."""
    if context.invoked_subcommand is not None:
        return 0
    typer.echo(context.get_help())
    return 2


def command_tree() -> Any:
    """The commands, with the options of their groups."""
    app = typer.Typer(
        name="dg-lsp",
        epilog="Exit codes: 0 done, 1 no result, 2 wrong usage or invalid input, 3 no model or not enough memory.",
        pretty_exceptions_enable=False,
        context_settings=_CONTEXT,
    )
    app.callback(invoke_without_command=True)(root)
    groups = {name: typer.Typer(help=text) for name, text in _GROUPS.items()}
    for words, command, arguments in _COMMANDS:
        group, _, name = words.rpartition(" ")
        parent = groups.get(group, app)
        example = f"Example: dg-lsp {words} {arguments}".rstrip()
        parent.command(name, epilog=example, hidden=words == "daemon run")(with_groups(command))
    for name, group_app in groups.items():
        app.add_typer(group_app, name=name)
    tree = typer.main.get_command(app)
    _hide_flag_types(tree)
    return tree


def _hide_flag_types(command: Any) -> None:
    """Help pages name no type at options without a value."""
    help_option = command.get_help_option(typer.Context(command, **_CONTEXT))
    for parameter in (*command.params, help_option):
        if isinstance(parameter, TyperOption) and parameter.is_flag:
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _hide_flag_types(inner)
