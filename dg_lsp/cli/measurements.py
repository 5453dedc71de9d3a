"""Measurements of `dg-lsp bench`: opens models and contenders, runs them, and prints or writes the results."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import attrs
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TimeRemainingColumn

from dg_lsp.bench import runner
from dg_lsp.bench.contenders import Contender, EngineContender, RequestOptions
from dg_lsp.bench.dataset import SamplePosition, TestCase, read_cases, read_positions, sample_cases
from dg_lsp.bench.metrics import Attempt, Table, by_contender, by_language, grouped, summarize, sweep_table
from dg_lsp.bench.report import benchmark_page, check_page_path
from dg_lsp.bench.sandbox import Sandbox
from dg_lsp.bench.timeline import Timeline
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli import INTERRUPTED, loading
from dg_lsp.cli.options import check_decoder, sampler_of
from dg_lsp.cli.output import progress
from dg_lsp.cli.printing import note, print_json, print_lines
from dg_lsp.cli.source import SourceFile
from dg_lsp.engine.engine import Engine
from dg_lsp.errors import UsageError
from dg_lsp.sampler_options import SamplerOptions, parse_option
from dg_lsp.settings import RemoteSettings, Settings

REMOTE = "remote"
_REMOTE_OPTIONS = ("url", "api", "model", "fim", "max_prompt_tokens")
_INFILL_KEYS = (
    *("num", "exact_match", "first_line_match", "pass_at_1", "ttfue_ms", "useful_by", "miss_rate", "latency_ms"),
    *("steps_mean", "tokens_per_forward"),
)
Sweep = Mapping[str, SamplerOptions]
"""Combinations by name, see `sweep_of`."""
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
    html: Path | None

    def run(
        self,
        command: str,
        settings: Settings,
        options: RequestOptions,
        opening: AbstractContextManager[tuple[BenchModel, list[Contender]]],
        listed: dict[str, Any],
    ) -> runner.Run:
        """Runs the contenders, which are opened after all other checks. `listed` belongs to the header of the run."""
        if self.html is not None:
            check_page_path(self.html)
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
    return finish(run, runner.infill_tables(run), tree, cases.html)


def infill_summary(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """What `bench infill --json` prints of some attempts."""
    summary = summarize(attempts)
    return {key: summary[key] for key in _INFILL_KEYS}


def _language_shares(attempts: Sequence[Attempt]) -> dict[str, Any]:
    summary = summarize(attempts)
    by_kind = grouped(attempts, lambda attempt: attempt.kind)
    exact = {kind: summarize(listed)["exact_match"] for kind, listed in by_kind.items()}
    return {**{key: summary[key] for key in _LANGUAGE_KEYS}, "exact_match_by_kind": exact}


def sweep_of(texts: Sequence[str], sampler: SamplerOptions) -> dict[str, SamplerOptions]:
    """All combinations of `NAME=VALUE,VALUE,...` over the other options, by a name such as `canvas_length=16`.

    Raises:
        UsageError: an unknown option, a bad value, one option twice, or one that `sampler` has already.
    """
    listed: dict[str, list[Any]] = {}
    for text in texts:
        name, has_values, values = text.partition("=")
        if not has_values or not values:
            raise UsageError(f"--sweep {text}: expected NAME=VALUE,VALUE,... such as canvas_length=16,32,64")
        if name in listed or name in sampler.values:
            raise UsageError(f"--sweep {text}: {name} is given twice")
        try:
            listed[name] = list(dict.fromkeys(parse_option(name, value.strip()) for value in values.split(",")))
        except ValueError as error:
            raise UsageError(f"--sweep {text}: {error}") from error
    combinations = (dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values()))
    return {_sweep_label(values): sampler_of({**sampler.values, **values}) for values in combinations}


def _sweep_label(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={str(value).lower()}" for name, value in values.items())


def measure_sweep(
    cases: Cases, settings: Settings, options: RequestOptions, decoder: DecoderName | None, sweep: Sweep
) -> int:
    """Runs the combinations in turn and in a new order at each case; returns the exit code.

    The values are not part of the header: a resumed run may add some.
    """
    check_decoder(decoder, settings)
    if settings.is_remote:
        raise UsageError("a remote server has its own sampler: leave --sweep out")
    opening = _open_sweep(settings, decoder, options, sweep)
    run = cases.run("infill", settings, options, opening, {"decoder": decoder, "sweep": True})
    groups = by_contender(run.attempts)
    rows = [{"sampler": _swept(sweep[name], options), **infill_summary(group)} for name, group in groups.items()]
    tree = {"model": run.header.model, "length_knowledge": options.length, "sweep": rows} if cases.as_json else None
    return finish(run, [sweep_table(groups)], tree, cases.html)


def _swept(sampler: SamplerOptions, options: RequestOptions) -> dict[str, Any]:
    """What a combination changes."""
    return {name: value for name, value in sampler.values.items() if name not in options.sampler.values}


@contextmanager
def _open_sweep(
    settings: Settings, decoder: DecoderName | None, options: RequestOptions, sweep: Sweep
) -> Iterator[tuple[BenchModel, list[Contender]]]:
    """One model for all combinations; each is a client of its own, so that no prompt is cached by another one."""
    opened = open_model(settings)
    with closing(opened.engine):
        contenders: list[Contender] = [
            EngineContender(name, opened.engine, decoder, replace(options, sampler=sampler), client=name)
            for name, sampler in sweep.items()
        ]
        yield opened, contenders


@contextmanager
def _open_contender(
    settings: Settings, decoder: DecoderName | None, options: RequestOptions
) -> Iterator[tuple[BenchModel, list[Contender]]]:
    opened = open_model(settings)
    name = REMOTE if settings.is_remote else decoder.value if decoder else settings.completion.decoder
    notes = remote_notes(settings.remote) if settings.is_remote else ()
    with closing(opened.engine):
        yield opened, [EngineContender(name, opened.engine, decoder, options, notes)]


def read_samples(places: Path, settings: Settings) -> tuple[tuple[SamplePosition, ...], dict[str, SourceFile]]:
    """The cursor positions of a TOML file, and the files by name; refuses files that the settings exclude."""
    positions = read_positions(places)
    sources = {position.file: SourceFile.read(places.parent / position.file) for position in positions}
    for source in sources.values():
        loading.check_allowed(source, settings)
    return positions, sources


@contextmanager
def progress_bar(description: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A bar with the remaining time; yields a function that advances it."""
    with progress(BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), MofNCompleteColumn()) as bars:
        task = bars.add_task(description, total=total, completed=done)
        yield lambda num: bars.advance(task, num)


def markdown(tables: Iterable[Table]) -> str:
    """The tables as lines of Markdown."""
    return "\n".join(line for table in tables for line in table.markdown())


def finish(
    run: runner.Run,
    tables: Sequence[Table],
    tree: dict[str, Any] | None,
    html: Path | None,
    timelines: Sequence[Timeline] = (),
) -> int:
    """Prints the JSON tree or the tables, writes the page, and returns the exit code."""
    header = run.header
    if tree is not None:
        print_json(tree)
    else:
        digest = "" if header.model_sha256 is None else f", sha256 {header.model_sha256[:16]}"
        print_lines((f"{header.model}{digest}; {header.machine.line()}", *run.notes, ""))
        print_lines(markdown(tables))
    if html is not None:
        title = f"dg-lsp bench {header.command}: {', '.join(header.data)}"
        benchmark_page(title, run, tables, timelines).write(html)
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
