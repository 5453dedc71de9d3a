"""The tree of commands. Each command imports heavy modules when it runs, so that `--help` and `--version` are fast."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup, TyperOption

from dg_lsp.cli.bench import app as bench
from dg_lsp.cli.bench import report
from dg_lsp.cli.chat import chat, generate
from dg_lsp.cli.daemon import app as daemon
from dg_lsp.cli.doctor import doctor
from dg_lsp.cli.fill import fill
from dg_lsp.cli.models import app as models
from dg_lsp.cli.printing import print_line
from dg_lsp.cli.rewrite import rewrite
from dg_lsp.cli.servers import lsp, serve
from dg_lsp.cli.why import why

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="dg-lsp",
    epilog="Exit codes: 0 done, 1 no result, 2 wrong usage or invalid input, 3 no model or not enough memory.",
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


def setup(yes: Annotated[bool, Option("--yes", "-y", help="Agree to the plan without the question.")] = False) -> int:
    """Measure this machine, get llama.cpp for its GPU and the best model, test a fill, print settings for editors.

    One question is asked before anything is fetched or built.
    """
    from dg_lsp.cli.setup import set_up

    set_up(is_agreed=yes)
    return 0


_EXAMPLES: dict[Callable[..., int], str] = {
    setup: "setup",
    fill: "fill app.py:12",
    rewrite: 'rewrite app.py:12-20 "use a list comprehension" --write',
    why: "why app.py:12",
    generate: 'generate "def add(a, b):" --max-tokens 64',
    chat: "chat --model diffusiongemma",
    lsp: "lsp --stdio",
    serve: "serve --port 8012",
    doctor: "doctor --model dg-mini",
    report: "report audit.jsonl",
}
for command, example in _EXAMPLES.items():
    app.command(epilog=f"Example: dg-lsp {example}")(command)
for name, group in {"daemon": daemon, "models": models, "bench": bench}.items():
    app.add_typer(group, name=name)


def command_tree() -> TyperGroup:
    """The commands; help pages name no type at options without a value."""
    tree = typer.main.get_command(app)
    assert isinstance(tree, TyperGroup)
    _hide_flag_types(tree)
    return tree


def _hide_flag_types(command: Any) -> None:
    help_option = command.get_help_option(typer.Context(command, **CONTEXT))
    for parameter in (*command.params, help_option):
        if isinstance(parameter, TyperOption) and parameter.is_flag:
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _hide_flag_types(inner)


def _print_version(value: bool | None) -> None:
    if value:
        from dg_lsp import __version__

        print_line(f"dg-lsp {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
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
