"""`dg-lsp bench`: measurements."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dg_lsp.bench.typing_model import EditorModel, MatchingKey, TypingModel
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli import INTERRUPTED
from dg_lsp.cli.options import GpuLayers, Json, Model, Remote, Threads

if TYPE_CHECKING:
    from dg_lsp.bench.contenders import Contender, LengthHint
    from dg_lsp.bench.dataset import TestCase
    from dg_lsp.bench.metrics import Table
    from dg_lsp.bench.replay import EngineCompleter, Event, Replay
    from dg_lsp.bench.report import Film
    from dg_lsp.bench.runner import Run, RunFile, RunHeader
    from dg_lsp.bench.sandbox import Sandbox
    from dg_lsp.bench.typing_model import Selection, TypingTask
    from dg_lsp.cli.bench_models import BenchModel
    from dg_lsp.settings import Settings

app = typer.Typer(help="Measure fills and steps.")
_TYPING, _EDITOR = TypingModel(), EditorModel()

Data = Annotated[Path, typer.Argument(metavar="DATA.jsonl[.gz]", help="Test cases in the HumanEval-Infilling format.")]
Decoder = Annotated[
    DecoderName | None,
    typer.Option("--decoder", metavar="DECODER", help="Decoder of the fills, instead of the setting."),
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of random cases.")]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the random choices.")]
Length = Annotated[Literal["none", "oracle"], typer.Option(help="Known length: nothing, or the reference's lines.")]
Warm = Annotated[
    bool, typer.Option("--warm", help="The cache holds the prompt without its last character, as while typing.")
]
Execute = Annotated[bool, typer.Option("--execute", help="Run the tests of each case in a sandbox (needs bubblewrap).")]
Output = Annotated[
    Path | None, typer.Option(metavar="RUN.jsonl", help="Keep every attempt, and resume an earlier run.")
]
Html = Annotated[Path | None, typer.Option(metavar="OUT.html", help="Also write a page.")]


@app.callback()
def bench() -> None:
    """Measure fills and steps."""


@app.command("compare")
def compare(
    data: Data,
    model: Model = None,
    decoders: Annotated[
        list[DecoderName] | None,
        typer.Option("--decoder", metavar="DECODER", help="Another decoder to compare; may be repeated."),
    ] = None,
    pretrained: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A causal model, by name or path: gemma3-270m, X.gguf.")
    ] = None,
    remote: Annotated[str | None, typer.Option(metavar="URL", help="Compare with this server.")] = None,
    llama_server: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A llama-server to start with the same GGUF file.")
    ] = None,
    llama_diffusion_cli: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A llama-diffusion-cli to run with the same weights.")
    ] = None,
    diffusion_steps: Annotated[
        int, typer.Option(min=0, metavar="N", help="Steps of llama-diffusion-cli; 0 for one per token.")
    ] = 0,
    limit: Limit = None,
    seed: Seed = 0,
    length: Length = "none",
    early_stop: Annotated[
        float, typer.Option(min=0, metavar="MS", help="Time after which whole lines are enough; 0 waits for all.")
    ] = 0.0,
    warm: Warm = False,
    execute: Execute = False,
    as_json: Json = False,
    output: Output = None,
    html: Html = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Compare contenders on the same cases, in turn: diffusion, the same weights autoregressively, and others."""
    from dg_lsp.bench.compare import compare_json, compare_tables
    from dg_lsp.bench.contenders import ANSWER_SECONDS, RequestOptions
    from dg_lsp.bench.dataset import read_cases, sample_cases
    from dg_lsp.bench.runner import run_cases
    from dg_lsp.cli.bench_models import ContenderChoice, open_contenders
    from dg_lsp.cli.loading import configure, overrides

    _check_page(html)
    # the model runs here in any case
    here = overrides(model=model, gpu_layers=gpu_layers, threads=threads)
    settings = configure(here if remote is None else {**here, "remote": {"url": remote}})
    choice = ContenderChoice(
        decoders=tuple(decoders or ()),
        pretrained=pretrained,
        llama_server=llama_server,
        llama_diffusion_cli=llama_diffusion_cli,
        diffusion_steps=diffusion_steps,
        remote=settings.remote if settings.is_remote else None,
    )
    options = RequestOptions(
        _known_length(length, None), deadline_ms=1e3 * ANSWER_SECONDS, early_stop_ms=early_stop, is_warm=warm
    )
    cases = sample_cases(read_cases(data), limit, seed)
    sandbox = _open_sandbox(cases) if execute else None
    with open_contenders(settings, choice, options) as (opened, contenders):
        listed = {**choice.json(), **options.json(), "seed": seed, "execute": execute}
        header = _header("compare", opened, settings, {data.name: data}, listed)
        run = run_cases(cases, contenders, header, output, seed=seed, sandbox=sandbox, progress=progress_bar)
        run = replace(run, notes=(options.length.sentence, *run.notes))
        films = _films(run, contenders[0], cases) if html else ()
    tree = compare_json(run, seed) if as_json else None
    return _finish(run, compare_tables(run, seed), tree, html, films)


@app.command("infill")
def infill(
    data: Data,
    model: Model = None,
    remote: Remote = None,
    decoder: Decoder = None,
    limit: Limit = None,
    seed: Seed = 0,
    execute: Execute = False,
    length: Length = "none",
    max_lines: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum number of lines of every fill.")
    ] = None,
    suffix_lines: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Lines after the line of the cursor that the model sees.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=1, metavar="MS", help="Return what is stable after this time, as an editor does."),
    ] = None,
    warm: Warm = False,
    as_json: Json = False,
    output: Output = None,
    html: Html = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Fill test cases as in an editor: how many fills are right, and how fast."""
    from dg_lsp.bench.contenders import EngineContender, RequestOptions
    from dg_lsp.bench.dataset import read_cases, sample_cases
    from dg_lsp.bench.metrics import summarize
    from dg_lsp.bench.runner import infill_tables, run_cases
    from dg_lsp.cli import bench_models
    from dg_lsp.cli.loading import configure, overrides

    _check_page(html)
    options = RequestOptions(_known_length(length, max_lines), max_lines, suffix_lines, deadline, None, warm)
    cases = sample_cases(read_cases(data), limit, seed)
    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    is_remote = _check_decoder(decoder, settings)
    sandbox = _open_sandbox(cases) if execute else None
    opened = bench_models.open_model(settings)
    try:
        name = bench_models.REMOTE if is_remote else decoder.value if decoder else settings.completion.decoder
        notes = bench_models.remote_notes(settings.remote) if is_remote else ()
        contender = EngineContender(name, opened.engine, decoder, options, notes)
        listed = {**options.json(), "decoder": decoder, "execute": execute}
        header = _header("infill", opened, settings, {data.name: data}, listed)
        run = run_cases(cases, [contender], header, output, sandbox=sandbox, progress=progress_bar)
        run = replace(run, notes=(options.length.sentence, *run.notes))
        films = _films(run, contender, cases) if html else ()
    finally:
        opened.engine.close()
    known = {"model": header.model, "length_knowledge": options.length}
    summary = summarize(run.attempts).json()
    tree = {**{key: summary[key] for key in _INFILL_KEYS}, **known} if as_json else None
    return _finish(run, infill_tables(run), tree, html, films)


_INFILL_KEYS = (
    "num",
    "exact_match",
    "first_line_match",
    "pass_at_1",
    "ttfue_ms",
    "useful_by",
    "miss_rate",
    "latency_ms",
    "steps_mean",
    "tokens_per_forward",
)


@app.command("replay")
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files to type again.")],
    region: Annotated[
        str | None, typer.Option(metavar="FIRST-LAST", help="Type only these lines, inside the file.")
    ] = None,
    bodies: Annotated[
        bool, typer.Option("--bodies", help="Type the body of each function, inside the file (Python).")
    ] = False,
    start: Annotated[
        int | None, typer.Option(min=1, metavar="LINE", help="Type from this line on, with nothing after the cursor.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N requests of each file.")] = None,
    seed: Seed = 0,
    speed: Annotated[
        float, typer.Option(min=0.1, max=100, metavar="X", help="Typing speed, relative to the average.")
    ] = _TYPING.speed,
    reaction: Annotated[
        float, typer.Option(min=0, metavar="MS", help="From the display of an item to its acceptance.")
    ] = _TYPING.reaction_ms,
    debounce: Annotated[
        float, typer.Option(min=0, metavar="MS", help="From a key to the request of the editor.")
    ] = _EDITOR.debounce_ms,
    on_matching_key: Annotated[
        MatchingKey, typer.Option(help="If a key matches the item: send a request, keep the item, or dismiss it.")
    ] = _EDITOR.on_matching_key,
    model: Model = None,
    remote: Remote = None,
    decoder: Decoder = None,
    as_json: Json = False,
    output: Output = None,
    html: Html = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Type files again in virtual time: what would be shown, accepted and saved, and its cost."""
    from dg_lsp.bench.replay import (
        EngineCompleter,
        Replay,
        RequestEvent,
        assumptions,
        replay_json,
        replay_tables,
        summarize_replay,
    )
    from dg_lsp.bench.runner import INTERRUPTED_NOTE, Run, RunFile
    from dg_lsp.cli import bench_models
    from dg_lsp.cli.loading import configure, overrides

    _check_page(html)
    selection = _selection(region, start, bodies=bodies)
    played = Replay(
        [task for path in dict.fromkeys(files) for task in _typing_tasks(path, selection, region, start)],
        TypingModel(speed=speed, reaction_ms=reaction),
        EditorModel(debounce, on_matching_key),
        seed,
        limit,
        decoder,
    )
    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote))
    is_remote = _check_decoder(decoder, settings)
    opened = bench_models.open_model(settings)
    try:
        paths = {task.path: Path(task.path) for task in played.tasks}
        header = _header("replay", opened, settings, paths, _replay_options(played, selection))
        with RunFile(output, header) as file:
            events, is_complete = _play(played, EngineCompleter(opened.engine, file.attempts), file)
    finally:
        opened.engine.close()
    attempts = tuple(event.attempt for event in events if isinstance(event, RequestEvent))
    notes = bench_models.remote_notes(settings.remote, "is the time until its answers") if is_remote else ()
    notes = (*assumptions(played, selection), *notes, *(() if is_complete else (INTERRUPTED_NOTE,)))
    run, summary = Run(header, attempts, is_complete, notes), summarize_replay(events)
    return _finish(run, replay_tables(run, summary), replay_json(run, summary) if as_json else None, html)


@app.command("samples")
def samples(
    places: Annotated[Path, typer.Argument(help="A TOML file with cursor positions.")] = Path("samples/places.toml"),
    model: Model = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Fill all listed cursor positions; print a Markdown table of the results."""
    import math

    from dg_lsp.bench.dataset import SamplePosition, read_positions, sample_table
    from dg_lsp.cli import loading
    from dg_lsp.cli.loading import configure, overrides
    from dg_lsp.cli.source import SourceFile
    from dg_lsp.engine.request import FillRequest
    from dg_lsp.engine.result import FillResult

    positions = read_positions(places)
    engine = loading.open_engine(configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads)))

    def fill(position: SamplePosition) -> FillResult:
        source = SourceFile.read(places.parent / position.file)
        request = FillRequest(source.snapshot(), source.offset_at(position.line, position.col))
        return engine.fill(request, deadline=math.inf)

    try:
        _print(sample_table(positions, fill).markdown())
    finally:
        engine.close()
    return 0


@app.command("steps")
def steps(
    model: Model = None,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Repetitions; medians are printed.")] = 15,
    as_json: Json = False,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
) -> int:
    """Measure prefill and denoising steps, and the engine overhead."""
    from dg_lsp.bench.steps import measure_model
    from dg_lsp.cli.loading import configure, load_model, open_denoiser, overrides
    from dg_lsp.errors import UsageError

    settings = configure(overrides(model=model, gpu_layers=gpu_layers, threads=threads))
    if settings.is_remote:
        raise UsageError("the steps of a remote server cannot be measured: name a model with --model")
    report = measure_model(open_denoiser(load_model(settings), settings), settings.completion, rounds=rounds)
    if as_json:
        _print(report.json())
    else:
        _print([f"{report.model}, {report.threads} threads, medians in milliseconds", ""])
        _print(line for table in report.tables() for line in table.markdown())
    return 0


@contextmanager
def progress_bar(description: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A bar on standard error with the remaining time; yields a function that advances it. A pipe gets nothing."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    console = Console(stderr=True)
    with Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(description, total=total, completed=done)
        yield lambda num: bar.advance(task, num)


def _print(output: dict[str, Any] | Iterable[str]) -> None:
    """One JSON object, or lines."""
    import json

    for line in [json.dumps(output)] if isinstance(output, dict) else output:
        typer.echo(line)


def _finish(
    run: "Run", tables: "list[Table]", tree: dict[str, Any] | None, html: Path | None, films: "tuple[Film, ...]" = ()
) -> int:
    """Prints the JSON tree or the tables, writes the page, and returns the exit code."""
    header = run.header
    if tree is not None:
        _print(tree)
    else:
        digest = "" if header.model_sha256 is None else f", sha256 {header.model_sha256[:16]}"
        _print([f"{header.model}{digest}; {header.machine.line()}", *run.notes, ""])
        _print(line for table in tables for line in table.markdown())
    if html is not None:
        from dg_lsp.bench.report import benchmark_page

        title = f"dg-lsp bench {header.command}: {', '.join(header.data)}"
        benchmark_page(title, run, tables, films).write(html)
    return 0 if run.is_complete else INTERRUPTED


def _films(run: "Run", contender: "Contender", cases: "Iterable[TestCase]") -> "tuple[Film, ...]":
    """Films of a complete run, if the contender is an engine in this process."""
    from dg_lsp.bench.contenders import EngineContender
    from dg_lsp.bench.report import choose_cases, record_films

    if not (run.is_complete and isinstance(contender, EngineContender) and run.header.model_sha256):
        return ()
    own = [attempt for attempt in run.attempts if attempt.contender == contender.name]
    return record_films(contender.engine, choose_cases(cases, own), contender.request)


def _check_page(html: Path | None) -> None:
    if html is not None:
        from dg_lsp.bench.report import check_page_path

        check_page_path(html)


def _header(
    command: str, opened: "BenchModel", settings: "Settings", data: "dict[str, Path]", options: dict[str, Any]
) -> "RunHeader":
    import attrs

    from dg_lsp.bench.runner import Machine, RunHeader, file_sha256
    from dg_lsp.cli.bench_models import remote_options

    remote = remote_options(settings.remote) if settings.is_remote else {}
    return RunHeader(
        command,
        Machine.here(opened.threads),
        opened.engine.spec.name,
        opened.sha256,
        {name: file_sha256(path) for name, path in data.items()},
        {**options, **remote, "settings": attrs.asdict(settings.completion)},
    )


def _open_sandbox(cases: Iterable["TestCase"]) -> "Sandbox":
    from dg_lsp.bench.runner import check_tests
    from dg_lsp.bench.sandbox import Sandbox

    check_tests(cases)
    sandbox = Sandbox()
    typer.echo("dg-lsp: --execute runs model-written programs, in a bubblewrap sandbox", err=True)
    return sandbox


def _known_length(length: str, max_lines: int | None) -> "LengthHint":
    from dg_lsp.bench.contenders import LengthHint
    from dg_lsp.errors import UsageError

    if max_lines is None:
        return LengthHint(length)
    if length == LengthHint.ORACLE:
        raise UsageError("--length oracle and --max-lines contradict each other: leave one out")
    return LengthHint.GIVEN


def _check_decoder(decoder: DecoderName | None, settings: "Settings") -> bool:
    """True for a remote server, which chooses its decoder itself."""
    from dg_lsp.errors import UsageError

    is_remote = settings.is_remote
    if is_remote and decoder is not None:
        raise UsageError("a remote server chooses its decoder itself: leave --decoder out")
    return is_remote


def _selection(region: str | None, start: int | None, *, bodies: bool) -> "Selection":
    from dg_lsp.bench.typing_model import Selection
    from dg_lsp.errors import UsageError

    if (region is not None) + bodies + (start is not None) > 1:
        raise UsageError("--region, --bodies and --start exclude each other: give one of them")
    return Selection.BODIES if bodies else Selection.ONWARDS if region is None else Selection.REGION


def _typing_tasks(path: Path, selection: "Selection", region: str | None, start: int | None) -> Iterator["TypingTask"]:
    from dg_lsp.bench.typing_model import Selection, SourceText
    from dg_lsp.cli.source import SourceFile
    from dg_lsp.errors import UsageError

    file = SourceFile.read(path)
    source = SourceText(str(path), file.language, file.text)
    if selection is Selection.BODIES:
        yield from source.bodies()
    elif region is None:
        yield source.task(start or 1)
    else:
        lines = re.fullmatch(r"(\d{1,9})-(\d{1,9})", region)
        if lines is None:
            raise UsageError(f"--region takes FIRST-LAST, two line numbers, not {region}")
        yield source.task(int(lines[1]), int(lines[2]))


def _replay_options(played: "Replay", selection: "Selection") -> dict[str, Any]:
    return {
        "selection": selection.value,
        "lines": [[task.first_line, task.last_line] for task in played.tasks],
        "editor": asdict(played.editor),
        "typing": asdict(played.typing),
        "seed": played.seed,
        "decoder": played.decoder,
    }


def _play(played: "Replay", completer: "EngineCompleter", file: "RunFile") -> "tuple[list[Event], bool]":
    """All events, and False after Ctrl-C."""
    from dg_lsp.bench.replay import CONTENDER, AcceptEvent, RequestEvent

    events: list[Event] = []
    num_files = len({task.path for task in played.tasks})
    total = played.num_keys if played.limit is None else played.limit * num_files
    try:
        with progress_bar("keys" if played.limit is None else "requests", total) as advance:
            for event in played.run(completer):
                events.append(event)
                if isinstance(event, RequestEvent):
                    if not file.has(event.attempt.case, CONTENDER):
                        file.add(event.attempt)
                    advance(int(played.limit is not None))
                elif played.limit is None:
                    advance(event.num_keys if isinstance(event, AcceptEvent) else 1)
    except KeyboardInterrupt:
        return events, False
    return events, True
