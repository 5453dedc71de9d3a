"""`dg-lsp bench` and `dg-lsp report`: their options. `measurements` does the work."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.loading import configure
from dg_lsp.cli.options import (
    Deadline,
    Decoder,
    GpuLayers,
    Json,
    Model,
    Remote,
    Seed,
    SuffixLines,
    Threads,
    overrides,
    with_sampler_options,
)
from dg_lsp.sampler_options import SamplerOptions

app = typer.Typer(help="Measure how often, how soon and at what cost a model is right.")

Data = Annotated[Path, Argument(metavar="DATA.jsonl[.gz]", help="Test cases in the HumanEval-Infilling format.")]
Limit = Annotated[int | None, Option(min=1, metavar="N", help="Number of cases, drawn at random; default: all.")]
Length = Annotated[
    Literal["none", "oracle"], Option(help="What is known of the length: nothing, or the reference's number of lines.")
]
Warm = Annotated[bool, Option("--warm", help="The cache holds the prompt without its last character, as while typing.")]
Execute = Annotated[bool, Option("--execute", help="Run the tests of each case in a sandbox (needs bubblewrap).")]
Output = Annotated[Path | None, Option(metavar="RUN.jsonl", help="Keep every attempt, and resume an earlier run.")]
Html = Annotated[Path | None, Option(metavar="OUT.html", help="Also write a page.")]


@app.command("compare")
@with_sampler_options
def compare(
    data: Data,
    model: Model = None,
    decoders: Annotated[list[DecoderName] | None, Option("--decoder", help="Another decoder to compare.")] = None,
    pretrained: Annotated[str | None, Option(metavar="MODEL", help="A causal model, by name or path.")] = None,
    remote: Annotated[str | None, Option(metavar="URL", help="Compare with this server.")] = None,
    llama_server: Annotated[Path | None, Option(metavar="PATH", help="A llama-server to start with the model.")] = None,
    llama_diffusion_cli: Annotated[Path | None, Option(metavar="PATH", help="A llama-diffusion-cli to run.")] = None,
    diffusion_steps: Annotated[
        int, Option(min=0, metavar="N", help="Steps of that program; 0: one for each token.")
    ] = 0,
    limit: Limit = None,
    seed: Seed = 0,
    length: Length = "none",
    early_stop: Annotated[
        float, Option(min=0, metavar="MS", help="Accept whole lines after this time; 0: never.")
    ] = 0.0,
    warm: Warm = False,
    execute: Execute = False,
    as_json: Json = False,
    output: Output = None,
    html: Html = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
    *,
    sampler: SamplerOptions,
) -> int:
    """Compare contenders on the same cases, in turn: diffusion, the same weights autoregressively, and others."""
    from dg_lsp.cli.measurements import Cases, ContenderChoice, measure_contenders

    # the model runs here in any case
    over = overrides(model=model, gpu_layers=gpu_layers, threads=threads)
    settings = configure(over if remote is None else {**over, "remote": {"url": remote}})
    choice = ContenderChoice(tuple(decoders or ()), pretrained, llama_server, llama_diffusion_cli, diffusion_steps)
    cases = Cases(data, limit, seed, execute, as_json, output, html)
    more: dict[str, Any] = {"early_stop_ms": early_stop, "is_warm": warm, "sampler": sampler}
    return measure_contenders(cases, settings, choice, length, **more)


@app.command("cut")
def cut(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A repository, or a part of one.")],
    output: Annotated[Path, Option("-o", "--output", metavar="CASES.jsonl", help="The file to write.")],
    languages: Annotated[
        list[str] | None, Option("--language", metavar="ID", help="Only this LSP language; may be repeated.")
    ] = None,
    num: Annotated[int, Option("--number", min=1, metavar="N", help="Number of test cases.")] = 100,
    seed: Seed = 0,
) -> int:
    """Make test cases for `bench infill` from your own files, without ignored and secret ones."""
    from dg_lsp.cli.measurements import write_cut

    return write_cut(folder, output, languages or (), num, seed, configure({}))


@app.command("infill")
@with_sampler_options
def infill(
    data: Data,
    model: Model = None,
    remote: Remote = None,
    decoder: Decoder = None,
    limit: Limit = None,
    seed: Seed = 0,
    execute: Execute = False,
    length: Length = "none",
    max_lines: Annotated[int | None, Option(min=1, metavar="N", help="Maximum number of lines of every fill.")] = None,
    suffix_lines: SuffixLines = None,
    deadline: Deadline = None,
    warm: Warm = False,
    as_json: Json = False,
    output: Output = None,
    html: Html = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
    sweep: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE,...", help="Measure each value of a sampler option; several: all combinations."),
    ] = None,
    *,
    sampler: SamplerOptions,
) -> int:
    """Fill test cases as in an editor: how many fills are right, and how fast."""
    from dg_lsp.cli.measurements import Cases, measure_infill, measure_sweep, request_options, sweep_of

    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    options = request_options(length, max_lines, suffix_lines, deadline, None, warm, sampler)
    cases = Cases(data, limit, seed, execute, as_json, output, html)
    if sweep:
        return measure_sweep(cases, settings, options, decoder, sweep_of(sweep, sampler))
    return measure_infill(cases, settings, options, decoder)


@app.command("replay")
def replay(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Files to type again.")],
    region: Annotated[str | None, Option(metavar="FIRST-LAST", help="Type only these lines, inside the file.")] = None,
    bodies: Annotated[bool, Option("--bodies", help="Type the body of each Python function.")] = False,
    start: Annotated[int | None, Option(min=1, metavar="LINE", help="Type everything from this line on.")] = None,
    limit: Annotated[int | None, Option(min=1, metavar="N", help="Stop after N requests of each file.")] = None,
    seed: Seed = 0,
    speed: Annotated[float, Option(min=0.1, max=100, metavar="X", help="Typing speed; 1 is average.")] = 1.0,
    reaction: Annotated[
        float, Option(min=0, metavar="MS", help="Time from the display of an item to its acceptance.")
    ] = 380.0,
    debounce: Annotated[float, Option(min=0, metavar="MS", help="Time from a key to the request.")] = 50.0,
    on_matching_key: Annotated[
        Literal["request", "keep", "dismiss"],
        Option(help="If a key matches the item: send a request, keep the item, or dismiss it."),
    ] = "request",
    model: Model = None,
    remote: Remote = None,
    api: Annotated[str | None, Option(metavar="API", help="API of the server: completions, infill or chat.")] = None,
    fim: Annotated[
        str | None, Option(metavar="FIM", help="How completions send the text after the cursor; see remote.fim.")
    ] = None,
    decoder: Decoder = None,
    as_json: Json = False,
    output: Output = None,
    html: Html = None,
    against: Annotated[
        list[Path] | None, Option(metavar="RUN.jsonl", help="An --output of the same typing, to compare with.")
    ] = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Type files again in virtual time: what would be shown, accepted and saved, and its cost."""
    from dg_lsp.bench.replay import Replay
    from dg_lsp.bench.typing_model import EditorModel, MatchingKey, TypingModel
    from dg_lsp.cli.replay import measure_replay, typing_tasks

    typing, editor = TypingModel(speed=speed, reaction_ms=reaction), EditorModel(debounce, MatchingKey(on_matching_key))
    over = overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote)
    if server := {name: value for name, value in (("api", api), ("fim", fim)) if value is not None}:
        over["remote"] = {**over.get("remote", {}), **server}
    settings = configure(over)
    selection, tasks = typing_tasks(files, region, start, settings, bodies=bodies)
    played = Replay(tasks, typing, editor, seed, limit, decoder)
    return measure_replay(played, selection, settings, as_json=as_json, output=output, html=html, others=against or ())


@app.command("samples")
def samples(
    places: Annotated[Path, Argument(metavar="PLACES.toml", help="A TOML file with cursor positions.")] = Path(
        "samples/places.toml"
    ),
    model: Model = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Fill all listed cursor positions; print a Markdown table of the results."""
    from dg_lsp.cli.measurements import fill_samples

    return fill_samples(places, configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads)))


@app.command("serve")
def serve(
    urls: Annotated[list[str], Argument(metavar="URL [URL2]", help="One server, or two to compare.")],
    prompts: Annotated[
        Path, Option(metavar="FILE", help="Prompts or test cases (JSON lines), or cursor positions (TOML).")
    ] = Path("samples/places.toml"),
    concurrency: Annotated[str, Option(metavar="N,N,...", help="Numbers of requests at the same time.")] = "1",
    rounds: Annotated[int, Option(min=1, metavar="N", help="How often all prompts are sent.")] = 3,
    warm_up: Annotated[int, Option(min=0, metavar="N", help="Uncounted requests before each level.")] = 2,
    max_tokens: Annotated[int, Option("--max-tokens", "-n", min=1, metavar="N", help="Longest answer.")] = 64,
    api: Annotated[
        list[str] | None, Option(metavar="API", help="API of the server; a second one is that of URL2.")
    ] = None,
    fim: Annotated[
        list[str] | None, Option(metavar="FIM", help="See remote.fim; a second one is that of URL2.")
    ] = None,
    model: Annotated[
        list[str] | None, Option(metavar="NAME", help="Model's name there; a second one for URL2.")
    ] = None,
    limit: Annotated[int | None, Option(min=1, metavar="N", help="Number of random prompts.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
    output: Annotated[
        Path | None, Option(metavar="RUN.jsonl", help="Keep every answer's times, in a new file.")
    ] = None,
    html: Html = None,
) -> int:
    """Send many requests at a time to a server, or to two in turn: latency, throughput, useful first lines."""
    from dg_lsp.bench.load import LoadPlan
    from dg_lsp.cli.server_load import measure_load, parse_levels, servers_of

    settings = configure({})
    servers = servers_of(urls, api or (), fim or (), model or (), settings)
    plan = LoadPlan(parse_levels(concurrency), rounds, warm_up, max_tokens)
    return measure_load(servers, prompts, plan, settings, limit, seed, as_json=as_json, output=output, html=html)


@app.command("steps")
def steps(
    model: Model = None,
    rounds: Annotated[int, Option(min=1, metavar="N", help="Repetitions; medians are printed.")] = 15,
    as_json: Json = False,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Measure prefill and denoising steps, and the engine overhead."""
    from dg_lsp.cli.measurements import measure_steps

    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads))
    return measure_steps(settings, rounds, as_json=as_json)


def report(
    log: Annotated[Path, Argument(metavar="AUDIT.jsonl", help="The audit log.")],
    output: Annotated[
        Path | None, Option("-o", "--output", metavar="OUT.html", help="The page; default: beside the log.")
    ] = None,
) -> int:
    """Write an audit log as a page: how many requests, how fast, and their outcomes."""
    from dg_lsp.cli.measurements import write_report

    return write_report(log, output or log.with_suffix(".html"))
