"""`dg-lsp bench infill`: what comes out at given sites, and when."""

from pathlib import Path
from typing import Annotated

import typer

from dg_lsp.cli.options import Decoder, GpuLayers, Json, Model, Remote, Threads


def infill(
    data: Annotated[Path, typer.Argument(metavar="DATA.jsonl[.gz]", help="Sites in the HumanEval-Infilling format.")],
    model: Model = None,
    remote: Remote = None,
    decoder: Decoder = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="So many sites, drawn by the seed.")] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Draws the sites of --limit.")] = 0,
    execute: Annotated[bool, typer.Option("--execute", help="Run the tests of each site, in a sandbox.")] = False,
    length: Annotated[
        str, typer.Option(metavar="none|oracle", help="What a fill is told: nothing, or the reference's lines.")
    ] = "none",
    max_lines: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tell every fill that it may have N lines.")
    ] = None,
    suffix_lines: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Lines after the cursor's that the model may see.")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(min=1, metavar="MS", help="Take what is stable after this time, as an editor does.")
    ] = None,
    warm: Annotated[
        bool, typer.Option("--warm", help="The text but for its last character is known already, as while typing.")
    ] = False,
    as_json: Json = False,
    output: Annotated[
        Path | None, typer.Option(metavar="RUN.jsonl", help="Keep every attempt here, and go on with an earlier run.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="OUT.html", help="Write a page, too.")] = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Fill given sites as an editor would be answered: how many fills are right, and after what time."""
    from dg_lsp.bench.infill import Asking
    from dg_lsp.bench.report.page import check_report_path
    from dg_lsp.bench.sites import read_sites, sample
    from dg_lsp.cli.bench.infilling import Infilling, known_length
    from dg_lsp.cli.loading import configure, overrides

    asking = Asking(
        length=known_length(length, max_lines),
        max_lines=max_lines,
        suffix_lines=suffix_lines,
        decoder=decoder,
        deadline_ms=deadline,
        is_warm=warm,
    )
    if html is not None:
        check_report_path(html)
    sites = sample(read_sites(data), limit, seed)
    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    infilling = Infilling.run(data, sites, asking, settings, execute=execute, output=output, html=html)
    infilling.print(as_json=as_json)
    return infilling.exit_code
