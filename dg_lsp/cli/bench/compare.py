"""`dg-lsp bench compare`: the same sites by several ways, in turn."""

from pathlib import Path
from typing import Annotated

import typer

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.options import GpuLayers, Json, Model, Threads


def compare(
    data: Annotated[Path, typer.Argument(metavar="DATA.jsonl[.gz]", help="Sites in the HumanEval-Infilling format.")],
    model: Model = None,
    decoders: Annotated[
        list[DecoderName] | None,
        typer.Option("--decoder", metavar="DECODER", help="Another decoder to compare; may be repeated."),
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option("--pretrained", metavar="MODEL", help="A causal model, by name or path: gemma3-270m, X.gguf."),
    ] = None,
    remote: Annotated[str | None, typer.Option("--remote", metavar="URL", help="Ask the server there, too.")] = None,
    llama_server: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A llama-server to start and ask, with the same GGUF file.")
    ] = None,
    llama_diffusion_cli: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A llama-diffusion-cli to run, with the same weights.")
    ] = None,
    diffusion_steps: Annotated[
        int, typer.Option(min=0, metavar="N", help="Steps of llama-diffusion-cli; 0 is one a token.")
    ] = 0,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="So many sites, drawn by the seed.")] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Draws the sites and the turns of the ways.")] = 0,
    length: Annotated[
        str, typer.Option(metavar="none|oracle", help="What is told: nothing, or the reference's lines.")
    ] = "none",
    patience: Annotated[
        float, typer.Option(min=0, metavar="MS", help="After it whole lines are enough; 0 waits for all.")
    ] = 0.0,
    warm: Annotated[
        bool, typer.Option("--warm", help="Every way knows the text but for its last character, as while typing.")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Run the tests of each site, in a sandbox.")] = False,
    as_json: Json = False,
    output: Annotated[
        Path | None, typer.Option(metavar="RUN.jsonl", help="Keep every answer here, and go on with an earlier run.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="OUT.html", help="Write a page, too.")] = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Answer the same sites by several ways, in turn: diffusion, the same weights token by token, and others."""
    from dg_lsp.bench.report.page import check_report_path
    from dg_lsp.bench.ways import Terms
    from dg_lsp.cli.bench.comparing import Comparison
    from dg_lsp.cli.bench.contenders import Contenders
    from dg_lsp.cli.bench.infilling import known_length
    from dg_lsp.cli.loading import configure, overrides

    if html is not None:
        check_report_path(html)
    here = overrides(model=model, gpu_layers=gpu_layers, threads=threads)
    # the model competes here, whatever else does
    settings = configure(here if remote is None else {**here, "backend": "remote", "remote": {"url": remote}})
    contenders = Contenders(
        decoders=tuple(decoders or ()),
        pretrained=pretrained,
        llama_server=llama_server,
        llama_diffusion_cli=llama_diffusion_cli,
        diffusion_steps=diffusion_steps,
        remote=settings.remote if settings.backend == "remote" else None,
        terms=Terms(is_warm=warm, early_stop_ms=patience, is_oracle=known_length(length, None) == "oracle"),
    )
    comparison = Comparison.run(
        data,
        settings,
        contenders,
        limit=limit,
        seed=seed,
        execute=execute,
        output=output,
        has_films=html is not None,
    )
    comparison.print(as_json=as_json)
    if html is not None:
        comparison.write_page(html)
    return comparison.exit_code
