"""`dg-lsp bench` and `dg-lsp report`: runs test cases, or types files again, and prints or keeps the results."""

import hashlib
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import attrs
from typer import Argument, Option

from dg_lsp.bench import metrics, runner
from dg_lsp.bench import replay as simulation
from dg_lsp.bench.dataset import TestCase, read_cases, read_sources, sample_cases, useful_cases, write_cases
from dg_lsp.bench.next_edit import cases_of, cut_history, measure, summary, table
from dg_lsp.bench.replay import TypingTask
from dg_lsp.cli import INTERRUPTED, loading
from dg_lsp.cli.loading import LoadedModel, open_engine
from dg_lsp.cli.options import Deadline, Decoder, Json, ModelOptions, RunOptions, Sampler, Seed, configure
from dg_lsp.cli.printing import note, plural, print_json, print_line, progress_bar
from dg_lsp.cli.source import Location, SourceFile, parse_location
from dg_lsp.context.exclusion import Exclusion
from dg_lsp.context.languages import LANGUAGE_IDS
from dg_lsp.engine.audit import read_log
from dg_lsp.engine.engine import Engine
from dg_lsp.errors import InputFileError, UsageError, map_input_errors
from dg_lsp.sandbox import Sandbox
from dg_lsp.settings import RemoteSettings, Settings, with_setting
from dg_lsp.system import file_sha256

Output = Annotated[Path | None, Option(metavar="RUN.jsonl", help="Keep every attempt, and resume an earlier run.")]
Item = TypeVar("Item")
REMOTE = "remote"
_INTERRUPTED = "Interrupted: only the attempts until then are counted."


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
    settings = with_setting(configure({}), "privacy.exclude_gitignored", True)
    if unknown := [name for name in languages or () if name not in LANGUAGE_IDS]:
        raise UsageError(f"unknown language {unknown[0]}: name one of {', '.join(LANGUAGE_IDS)}")
    exclusion = Exclusion(settings.privacy, [folder.absolute().as_uri()])
    sources = read_sources(folder, languages or (), seed, exclusion.is_excluded)
    cases = useful_cases(sources, num, seed)
    counts = ", ".join(f"{number} {name}" for name, number in write_cases(cases, output).most_common())
    files = plural(len({case.path for case in cases}), "file")
    print_line(f"{plural(len(cases), 'test case')} of {files} ({counts}): {output}")
    print_line(f"next: dg-lsp bench infill {shlex.quote(str(output))}")
    return 0


def infill(
    data: Annotated[Path, Argument(metavar="DATA.jsonl[.gz]", help="Test cases in the HumanEval-Infilling format.")],
    model: ModelOptions,
    sampler: Sampler = None,
    limit: Annotated[
        int | None, Option(min=1, metavar="N", help="Number of cases, drawn at random; default: all.")
    ] = None,
    seed: Seed = 0,
    execute: Annotated[
        bool, Option("--execute", help="Run the tests of each case in a sandbox (needs bubblewrap).")
    ] = False,
    decoder: Decoder = None,
    length: Annotated[
        runner.LengthHint, Option(help="What is known of the length: nothing, or the reference's number of lines.")
    ] = "none",
    deadline: Deadline = None,
    warm: Annotated[
        bool, Option("--warm", help="The cache holds the prompt without its last character, as while typing.")
    ] = False,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Fill test cases as in an editor: how many fills are right, and how fast."""
    given = RunOptions(decoder=decoder, sampler=sampler)
    settings = given.configured(configure(model.tree))
    context = settings.context.enabled
    options = runner.RequestOptions(
        length, deadline_ms=deadline, is_warm=warm, sampler=given.sampler_options, context=context
    )
    cases = sample_cases(read_cases(data), limit, seed)
    sandbox = open_sandbox(cases) if execute else None
    name = REMOTE if settings.is_remote else decoder.value if decoder else settings.completion.decoder
    notes = remote_notes(settings.remote) if settings.is_remote else ()
    engine, loaded = open_model(settings)
    with closing(engine):
        listed = {"decoder": decoder} | options.tree | {"execute": execute}
        run = runner.run_cases(
            cases,
            [runner.EngineContender(name, engine, decoder, options, notes)],
            run_header("infill", loaded, settings, {data.name: data}, listed),
            output,
            seed=seed,
            sandbox=sandbox,
            progress=progress_bar,
            notes=(*options.notes, *runner.language_notes(engine.spec, (case.language for case in cases))),
        )
    tree = _infill_object(run, options.length)
    return finish(run, runner.infill_tables(run, tree), tree if as_json else None)


def replay(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Files to type again.")],
    model: ModelOptions,
    region: Annotated[str | None, Option(metavar="FIRST-LAST", help="Type only these lines, inside the file.")] = None,
    limit: Annotated[int | None, Option(min=1, metavar="N", help="Stop after N requests of each file.")] = None,
    seed: Seed = 0,
    speed: Annotated[float, Option(min=0.1, max=100, metavar="X", help="Typing speed; 1 is average.")] = 1.0,
    debounce: Annotated[float, Option(min=0, metavar="MS", help="Time from a key to the request.")] = 50.0,
    api: Annotated[str | None, Option(metavar="API", help="API of the server: completions, infill or chat.")] = None,
    fim: Annotated[
        str | None, Option(metavar="FIM", help="How completions send the text after the cursor; see remote.fim.")
    ] = None,
    decoder: Decoder = None,
    as_json: Json = False,
) -> int:
    """Type files again in virtual time: what would be shown, accepted and saved, and its cost."""
    overrides = model.tree
    if server := {name: value for name, value in (("api", api), ("fim", fim)) if value is not None}:
        overrides["remote"] = overrides.get("remote", {}) | server
    settings = RunOptions(decoder=decoder).configured(configure(overrides))
    tasks = typing_tasks(files, region, settings)
    played = simulation.Replay(tasks, simulation.TypingModel(speed=speed, debounce_ms=debounce), seed, limit, decoder)
    listed = {"region": region, "typing": asdict(played.typing), "seed": seed, "decoder": decoder}
    engine, loaded = open_model(settings)
    with closing(engine):
        header = run_header("replay", loaded, settings, {task.path: Path(task.path) for task in tasks}, listed)
        events, is_complete = _collect(played.run(engine), "keys", played.num_keys, lambda event: event.num_keys)
    attempts = tuple(event.attempt for event in events if isinstance(event, simulation.RequestEvent))
    limits = f"Limits: every answer has a deadline of {settings.completion.deadline_ms:g} ms, as in an editor."
    languages = (task.language for task in tasks)
    notes = [*simulation.assumptions(played), limits, *runner.language_notes(engine.spec, languages)]
    if settings.is_remote:
        notes += remote_notes(settings.remote)
    run = runner.Run(header, attempts, is_complete, tuple(notes))
    summary = simulation.summarize_replay(events)
    table = metrics.measure_table("Typing with the model", {"all requests": summary})
    facts = {"files": list(run.header.data), "length_knowledge": "none", **run.header.options}
    return finish(run, [table], run.facts() | facts | summary if as_json else None)


def next_edit(
    repository: Annotated[Path, Argument(metavar="GIT_DIR", help="A folder of a git repository.")],
    num: Annotated[
        int, Option("--number", min=1, metavar="N", help="Changed files, of commits drawn at random.")
    ] = 300,
    seed: Seed = 0,
    model: Annotated[
        str | None, Option("--model", metavar="MODEL", help="An edit model in place of repetitions of the last edits.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Propose the next edits of a history: how often they are shown, right, and how fast."""
    settings = configure(ModelOptions(model=model).tree)
    exclusion = Exclusion(settings.privacy, [repository.absolute().as_uri()])
    with closing(open_engine(settings)) if model else nullcontext() as engine:
        changes = cut_history(repository, num, seed, exclusion.is_excluded)
        measured = ([measure(case, change.language, engine) for case in cases_of(change)] for change in changes)
        by_file, is_complete = _collect(measured, "files", num, lambda _: 1)
    outcomes = [outcome for of_file in by_file for outcome in of_file]
    if is_complete and not outcomes:
        raise InputFileError(f"no commit of {repository} changes a file in 2 to 12 places")
    if as_json:
        print_json(summary(outcomes) | {"is_complete": is_complete})
    else:
        print_line(*([] if is_complete else [_INTERRUPTED]))
        _print_tables([table(outcomes)])
    return 0 if is_complete else INTERRUPTED


def report(log: Annotated[Path, Argument(metavar="AUDIT.jsonl", help="The audit log.")]) -> int:
    """Summarize an audit log: how many requests, how fast, and their outcomes."""
    configure({})
    with map_input_errors("read", log):
        records, outcomes, num_bad = read_log(log)
    if not records:
        raise InputFileError(f"{log} has no records: set privacy.audit_log and use dg-lsp for a while")
    _print_tables(metrics.audit_tables(records, num_bad, outcomes))
    return 0


def open_model(settings: Settings) -> tuple[Engine, LoadedModel | str]:
    """Loads the model of the settings and measures its costs, as a server does; of a remote model only the name."""
    if settings.is_remote:
        remote = open_engine(settings)
        return remote, remote.spec.name
    model, engine = loading.open_measured(settings)
    return engine, model


def open_sandbox(cases: Iterable[TestCase]) -> Sandbox:
    """A sandbox for the tests of the cases. Raises UsageError if there are none."""
    if all(case.program("") is None for case in cases):
        raise UsageError("these cases have no tests (test, entry_point): leave --execute out")
    sandbox = Sandbox()
    note("--execute runs model-written programs, in a bubblewrap sandbox")
    return sandbox


def _infill_object(run: runner.Run, length: runner.LengthHint) -> dict[str, Any]:
    """What `bench infill --json` prints, with the keys in the documented order."""
    by_language = metrics.grouped(run.attempts, lambda attempt: attempt.language)
    return metrics.summarize(run.attempts) | {
        "model": run.header.model,
        "length_knowledge": length,
        "is_complete": run.is_complete,
        "languages": {name: _language_object(attempts) for name, attempts in sorted(by_language.items())},
        "tasks": metrics.summarize_tasks(map(metrics.TaskResult.of, run.attempts)),
        "calibration": metrics.calibrate(run.attempts),
    }


def _language_object(attempts: Sequence[metrics.Attempt]) -> dict[str, Any]:
    by_kind = metrics.grouped(attempts, lambda attempt: attempt.kind)
    exact = {kind: metrics.summarize(of_kind)["exact_match"] for kind, of_kind in by_kind.items()}
    return metrics.summarize(attempts) | {"exact_match_by_kind": exact}


def run_header(
    command: str, model: LoadedModel | str, settings: Settings, data: dict[str, Path], options: dict[str, Any]
) -> runner.RunHeader:
    """What was measured, by which model, on which machine; without secrets of a remote server."""
    options = options | {"settings": attrs.asdict(settings.completion)}
    if settings.is_remote:
        extra = hashlib.sha256(settings.remote.extra.encode()).hexdigest()  # because it may contain a key
        # a user may have written the key itself in place of the name of its variable
        shown = attrs.asdict(settings.remote, filter=attrs.filters.exclude("key_source", "ca_file"))
        options[REMOTE] = shown | {"extra": extra}
    return runner.RunHeader(
        command=command,
        machine=runner.run_machine(None if isinstance(model, str) else model.threads),
        model=model if isinstance(model, str) else model.spec.name,
        model_sha256=None if isinstance(model, str) else checksum(model.path),
        data={name: file_sha256(path) for name, path in data.items()},
        options=options,
    )


def checksum(path: Path) -> str:
    """The checksum of a model's file, or of the checksums of all files in its folder."""
    if path.is_file():
        return file_sha256(path)
    checksums = "".join(file_sha256(file) for file in sorted(path.iterdir()) if file.is_file())
    return hashlib.sha256(checksums.encode()).hexdigest()


def remote_notes(settings: RemoteSettings) -> tuple[str, ...]:
    """Sentences for a reader of the numbers of a remote server."""
    return (
        f"{REMOTE} is {settings.url} by {settings.api}: its times are those of a client and include the network.",
        "It may not report steps, tokens and model time.",
    )


def finish(run: runner.Run, tables: Iterable[metrics.Table], tree: dict[str, Any] | None) -> int:
    """Prints the JSON tree or the tables, and returns the exit code."""
    header = run.header
    if tree is not None:
        print_json(tree)
    else:
        digest = "" if header.model_sha256 is None else f", sha256 {header.model_sha256[:16]}"
        machine = ", ".join(f"{name} {value}" for name, value in header.machine.items() if value is not None)
        notes = run.notes if run.is_complete else (*run.notes, _INTERRUPTED)
        print_line(f"{header.model}{digest}; {machine}", *notes, "")
        _print_tables(tables)
    return 0 if run.is_complete else INTERRUPTED


def _print_tables(tables: Iterable[metrics.Table]) -> None:
    print_line(*(line for table in tables for line in table.markdown()))


def typing_tasks(files: Iterable[Path], region: str | None, settings: Settings) -> list[TypingTask]:
    """The tasks of all files by the options of `bench replay`; the indentation of their first lines is not typed.

    Raises UsageError if nothing is left to type, InputFileError if the settings exclude a file.
    """
    tasks = []
    for path in dict.fromkeys(files):
        file = SourceFile.read(path)
        loading.check_allowed(file, settings)
        location = parse_location(f"{path}:{region}", "FILE:FIRST-LAST") if region else Location(path, 0, 0, None)
        start, end = file.span_of(location)
        text = file.text[start:end].lstrip(" \t")
        if not text.strip():
            raise UsageError(f"{path} has nothing to type there: choose other lines")
        tasks.append(TypingTask(str(path), file.language, file.text[: end - len(text)], text, file.text[end:]))
    return tasks


def _collect(items: Iterable[Item], name: str, total: int, size: Callable[[Item], int]) -> tuple[list[Item], bool]:
    """All items, and False after Ctrl-C. The progress bar of this total advances by the size of each item."""
    collected: list[Item] = []
    try:
        with progress_bar(name, total) as advance:
            for item in items:
                collected.append(item)
                advance(size(item))
    except KeyboardInterrupt:
        return collected, False
    return collected, True
