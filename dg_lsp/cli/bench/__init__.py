"""`dg-lsp bench`: measurements, one command and one module each."""

import typer

from dg_lsp.cli.bench import compare, infill, replay, samples, steps

app = typer.Typer(help="Measure fills and steps.")


@app.callback()
def bench() -> None:
    """Measure fills and steps."""


app.command("compare")(compare.compare)
app.command("infill")(infill.infill)
app.command("replay")(replay.replay)
app.command("samples")(samples.samples)
app.command("steps")(steps.steps)
