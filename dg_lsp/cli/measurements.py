"""Measurements of `dg-lsp bench`: opens models and contenders, runs or types, and prints or writes the results."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import attrs

from dg_lsp.bench import replay as typing
from dg_lsp.bench import runner
from dg_lsp.bench.contenders import Contender, EngineContender, RequestOptions
from dg_lsp.bench.dataset import TestCase, read_cases, sample_cases
from dg_lsp.bench.metrics import Attempt, Table, by_language, grouped, summarize
from dg_lsp.bench.sandbox import Sandbox
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli import INTERRUPTED, loading
from dg_lsp.cli.options import check_decoder
from dg_lsp.cli.printing import note, print_json, print_lines, progress_bar
from dg_lsp.cli.source import SourceFile
from dg_lsp.engine.engine import Engine
from dg_lsp.errors import UsageError
from dg_lsp.settings import RemoteSettings, Settings

REMOTE = "remote"
_REMOTE_OPTIONS = ("url", "api", "model", "fim", "max_prompt_tokens")
_INFILL_KEYS = (
    *("num", "exact_match", "first_line_match", "pass_at_1", "ttfue_ms", "useful_by", "miss_rate", "latency_ms"),
    *("steps_mean", "tokens_per_forward"),
)
_LANGUAGE_KEYS = ("num", "exact_match", "first_line_match", "miss_rate")


@dataclass(frozen=True, slots=True, eq=False)
class BenchModel:
    """The engine of a benchmark and the origin of its model."""

    engine: Engine
    path: Path | None  # none for a remote server, like the threads
    threads: int | None

    @property
    def sha256(self) -> str | None:
        """Digest of the model file."""
        return None if self.path is None else runner.file_sha256(self.path)


def open_model(settings: Settings) -> BenchModel:
    """Loads the model of the settings and measures its costs, as a server does."""
    if settings.is_remote:
        return BenchModel(loading.open_engine(settings), None, None)
    model, engine, threads = loading.open_measured(settings)
    return BenchModel(engine, model.path, threads)


@dataclass(frozen=True, slots=True)
class Cases:
    """Test cases, and what is done with the attempts."""

    data: Path
    limit: int | None
    seed: int
    execute: bool
    as_json: bool
    output: Path | None

    def run(
        self,
        command: str,
        settings: Settings,
        options: RequestOptions,
        opening: AbstractContextManager[tuple[BenchModel, list[Contender]]],
        listed: dict[str, Any],
    ) -> runner.Run:
        """Runs the contenders, which are opened after all other checks. `listed` belongs to the header of the run."""
        cases = sample_cases(read_cases(self.data), self.limit, self.seed)
        sandbox = _open_sandbox(cases) if self.execute else None
        with opening as (opened, contenders):
            listed = {**listed, **asdict(options), "execute": self.execute}
            header = header_of(command, opened, settings, {self.data.name: self.data}, listed)
            run = runner.run_cases(
                cases, contenders, header, self.output, seed=self.seed, sandbox=sandbox, progress=progress_bar
            )
        return replace(run, notes=(options.length.sentence, options.time_limits, *run.notes))


def measure_infill(cases: Cases, settings: Settings, options: RequestOptions, decoder: DecoderName | None) -> int:
    """Runs `bench infill`; returns the exit code."""
    check_decoder(decoder, settings)
    opening = _open_contender(settings, decoder, options)
    run = cases.run("infill", settings, options, opening, {"decoder": decoder})
    known = {"model": run.header.model, "length_knowledge": options.length}
    languages = {name: _language_shares(attempts) for name, attempts in by_language(run.attempts).items()}
    tree = {**infill_summary(run.attempts), **known, "languages": languages} if cases.as_json else None
    return finish(run, runner.infill_tables(run), tree)


def infill_summary(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """What `bench infill --json` prints of some attempts."""
    summary = summarize(attempts)
    return {key: summary[key] for key in _INFILL_KEYS}


def _language_shares(attempts: Sequence[Attempt]) -> dict[str, Any]:
    summary = summarize(attempts)
    by_kind = grouped(attempts, lambda attempt: attempt.kind)
    exact = {kind: summarize(listed)["exact_match"] for kind, listed in by_kind.items()}
    return {**{key: summary[key] for key in _LANGUAGE_KEYS}, "exact_match_by_kind": exact}


@contextmanager
def _open_contender(
    settings: Settings, decoder: DecoderName | None, options: RequestOptions
) -> Iterator[tuple[BenchModel, list[Contender]]]:
    opened = open_model(settings)
    name = REMOTE if settings.is_remote else decoder.value if decoder else settings.completion.decoder
    notes = remote_notes(settings.remote) if settings.is_remote else ()
    with closing(opened.engine):
        yield opened, [EngineContender(name, opened.engine, decoder, options, notes)]


def markdown(tables: Iterable[Table]) -> str:
    """The tables as lines of Markdown."""
    return "\n".join(line for table in tables for line in table.markdown())


def finish(run: runner.Run, tables: Sequence[Table], tree: dict[str, Any] | None) -> int:
    """Prints the JSON tree or the tables, and returns the exit code."""
    header = run.header
    if tree is not None:
        print_json(tree)
    else:
        digest = "" if header.model_sha256 is None else f", sha256 {header.model_sha256[:16]}"
        print_lines((f"{header.model}{digest}; {header.machine.line()}", *run.notes, ""))
        print_lines(markdown(tables))
    return 0 if run.is_complete else INTERRUPTED


def header_of(
    command: str, opened: BenchModel, settings: Settings, data: dict[str, Path], options: dict[str, Any]
) -> runner.RunHeader:
    """What was measured, by which model, on which machine."""
    remote = _remote_options(settings.remote) if settings.is_remote else {}
    return runner.RunHeader(
        command,
        runner.Machine.here(opened.threads),
        opened.engine.spec.name,
        opened.sha256,
        {name: runner.file_sha256(path) for name, path in data.items()},
        {**options, **remote, "settings": attrs.asdict(settings.completion)},
    )


def _open_sandbox(cases: Iterable[TestCase]) -> Sandbox:
    if all(case.program("") is None for case in cases):
        raise UsageError("these cases have no tests (test, entry_point): leave --execute out")
    sandbox = Sandbox()
    note("--execute runs model-written programs, in a bubblewrap sandbox")
    return sandbox


def _remote_options(settings: RemoteSettings) -> dict[str, Any]:
    """Plain JSON values of a remote server for the header of a run, without secrets."""
    tree = attrs.asdict(settings)
    extra = hashlib.sha256(settings.extra.encode()).hexdigest()[:16] if settings.extra else None
    return {REMOTE: {**{name: tree[name] for name in _REMOTE_OPTIONS}, "extra_sha256": extra}}


def remote_notes(settings: RemoteSettings, name: str = REMOTE, model_time: str = "is unknown") -> tuple[str, ...]:
    """Sentences for a reader of the numbers of a remote server."""
    return (
        f"{name} is {settings.url} by {settings.api}: its times are those of a client and include the network.",
        f"Steps and tokens are known as far as the server reports them; its model time {model_time}.",
    )


# replay


def measure_replay(played: typing.Replay, settings: Settings, *, as_json: bool) -> int:
    """Runs `bench replay`; returns the exit code."""
    check_decoder(played.decoder, settings)
    listed = {
        "lines": [task.lines for task in played.tasks],
        "typing": asdict(played.typing),
        "seed": played.seed,
        "decoder": played.decoder,
    }
    opened = open_model(settings)
    with closing(opened.engine):
        header = header_of("replay", opened, settings, {task.path: Path(task.path) for task in played.tasks}, listed)
        completer = typing.EngineCompleter(opened.engine)
        events, is_complete = _play(played, completer)
    attempts = tuple(event.attempt for event in events if isinstance(event, typing.RequestEvent))
    limit = f"Limits: every answer has a deadline of {settings.completion.deadline_ms:g} ms, as in an editor."
    if stop_ms := settings.completion.early_stop_ms:
        limit += f" It stops early after {stop_ms:g} ms of an idle machine, counted in passes."
    notes = [*typing.assumptions(played), limit]
    if settings.is_remote:
        notes += remote_notes(settings.remote, completer.contender, "is the time until its answers")
    if not is_complete:
        notes.append(runner.INTERRUPTED_NOTE)
    run = runner.Run(header, attempts, is_complete, tuple(notes))
    summary = typing.summarize_replay(events)
    tree = typing.replay_json(run, summary) if as_json else None
    return finish(run, typing.replay_tables(run, summary), tree)


def typing_tasks(
    files: Iterable[Path], region: str | None, start: int | None, settings: Settings
) -> list[typing.TypingTask]:
    """The tasks of all files by the options of `bench replay`; the settings must exclude none of the files."""
    if region is not None and start is not None:
        raise UsageError("--region and --start exclude each other: give one of them")
    lines = re.fullmatch(r"(\d{1,9})-(\d{1,9})", region or "1-1")
    if lines is None:
        raise UsageError(f"--region takes FIRST-LAST, two line numbers, not {region}")
    span = (start or 1,) if region is None else (int(lines[1]), int(lines[2]))
    tasks = []
    for path in dict.fromkeys(files):
        file = SourceFile.read(path)
        loading.check_allowed(file, settings)
        tasks.append(typing.typing_task(str(path), file.language, file.text, *span))
    return tasks


def _play(played: typing.Replay, completer: typing.EngineCompleter) -> tuple[list[typing.Event], bool]:
    """All events, and False after Ctrl-C."""
    events: list[typing.Event] = []
    try:
        with progress_bar("keys", played.num_keys) as advance:
            for event in played.run(completer):
                events.append(event)
                if not isinstance(event, typing.TaskEvent | typing.RequestEvent):
                    advance(event.num_keys if isinstance(event, typing.AcceptEvent) else 1)
    except KeyboardInterrupt:
        return events, False
    return events, True
