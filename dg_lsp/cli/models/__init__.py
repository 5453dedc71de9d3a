"""`dg-lsp models`: which models there are, what one says of itself, and how to get one; a module each."""

import typer

from dg_lsp.cli.models import build_runtime, listing, pull, repack, show

app = typer.Typer(help="List the models there are, show what one says of itself, or fetch one.", no_args_is_help=False)

app.command("list")(listing.list_models)
app.command("show")(show.show_model)
app.command("pull")(pull.pull_model)
app.command("build-runtime")(build_runtime.build_runtime)
app.command("repack")(repack.repack_model)
