"""`dg-lsp bench serve`: reads the prompts, runs the load on one or two servers, and prints or writes the results."""

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from dg_lsp.backends.remote.client import RemoteModel
from dg_lsp.bench import runner
from dg_lsp.bench.dataset import sample_cases
from dg_lsp.bench.gpu_usage import GpuMonitor
from dg_lsp.bench.load import (
    LoadPlan,
    LoadPrompt,
    LoadRound,
    load_levels,
    load_page,
    load_tables,
    read_prompts,
    run_load,
)
from dg_lsp.bench.report import check_page_path
from dg_lsp.cli import INTERRUPTED
from dg_lsp.cli.measurements import progress_bar, read_samples
from dg_lsp.cli.printing import print_json, print_lines
from dg_lsp.errors import InputFileError, UsageError
from dg_lsp.settings import RemoteSettings, Settings, parse_settings

MAX_CONCURRENCY = 512
"""Each open request has a thread."""


def parse_levels(text: str) -> tuple[int, ...]:
    """The numbers of `--concurrency`, which are separated by commas."""
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if not all(1 <= number <= MAX_CONCURRENCY for number in numbers):
        raise UsageError(f"--concurrency {text}: give numbers from 1 to {MAX_CONCURRENCY}, such as 1,4,16")
    return tuple(dict.fromkeys(numbers))


def servers_of(
    urls: Sequence[str], apis: Sequence[str], fims: Sequence[str], models: Sequence[str], settings: Settings
) -> list[RemoteSettings]:
    """The settings of each server: those of `remote`, with the options; a single option applies to both servers."""
    if len(urls) > 2:
        raise UsageError("bench serve compares two servers at most: leave the other addresses out")
    servers = []
    for index, url in enumerate(urls):
        tree = {"url": url}
        for name, values in (("api", apis), ("fim", fims), ("model", models)):
            if len(values) > len(urls):
                raise UsageError(f"--{name} is given {len(values)} times for {len(urls)} server{'s' * (len(urls) > 1)}")
            if values:
                tree[name] = values[min(index, len(values) - 1)]
        servers.append(parse_settings({"remote": tree}, settings).remote)
    return servers


def measure_load(
    servers: Sequence[RemoteSettings],
    path: Path,
    plan: LoadPlan,
    settings: Settings,
    limit: int | None,
    seed: int,
    *,
    as_json: bool,
    output: Path | None,
    html: Path | None,
) -> int:
    """Runs `bench serve`; returns the exit code. Ctrl-C keeps the finished rounds."""
    if html is not None:
        check_page_path(html)
    prompts = _sample_prompts(path, settings) if path.suffix == ".toml" else read_prompts(path)
    chosen = sample_cases(prompts, limit, seed)
    with ExitStack() as stack:
        models: dict[str, RemoteModel] = {}
        for server in servers:
            model = stack.enter_context(closing(RemoteModel(server, is_measured=True)))
            models[model.name if model.name not in models else f"{model.name} (2)"] = model
        header = runner.RunHeader(
            "serve",
            runner.Machine.here(None),
            ", ".join(models),
            None,
            {path.name: runner.file_sha256(path)},
            {**asdict(plan), "limit": limit, "seed": seed, "servers": list(map(_listed, servers))},
        )
        file = None if output is None else stack.enter_context(_create(output))
        _write(file, asdict(header))
        rounds: list[LoadRound] = []
        is_complete = True
        try:
            for one in run_load(models, chosen, plan, GpuMonitor.open(), progress_bar):
                rounds.append(one)
                _write(file, asdict(one))  # numbers and ids, no text
        except KeyboardInterrupt:
            is_complete = False
    levels, notes = load_levels(rounds, list(models)), _notes(servers, list(models), plan)
    problems = dict.fromkeys(answer.error for one in rounds for answer in one.answers if answer.error)
    notes += [f"error: {problem}" for problem in list(problems)[:3]]
    notes += [] if is_complete else ["Interrupted: only the finished rounds are counted."]
    if as_json:
        facts = {"is_complete": is_complete, "num_prompts": len(chosen), "machine": asdict(header.machine)}
        print_json({**facts, **header.options, "levels": levels})
    else:
        print_lines((f"{header.model}; {header.machine.line()}", *notes, ""))
        print_lines(line for table in load_tables(levels) for line in table.markdown())
    if html is not None:
        load_page(header, rounds, notes).write(html)
    return 0 if is_complete else INTERRUPTED


def _sample_prompts(path: Path, settings: Settings) -> list[LoadPrompt]:
    positions, sources = read_samples(path, settings)
    prompts = []
    for one in positions:
        source = sources[one.file]
        offset, name = source.offset_at(one.line, one.col), f"{one.file}:{one.line}"
        before, after = source.text[:offset], source.text[offset:]
        prompts.append(LoadPrompt(name, before, after, tuple(one.expect), one.file, source.language))
    return prompts


def _notes(servers: Sequence[RemoteSettings], names: Sequence[str], plan: LoadPlan) -> list[str]:
    """Sentences for a reader of the tables."""
    notes = [f"{name} is {one.url} by {one.api}." for name, one in zip(names, servers, strict=True)]
    notes.append(
        f"Times are those of a client, with the network; answers have at most {plan.max_tokens} tokens."
        " Tokens and blocks count as far as the server reports them."
    )
    if len(names) > 1:
        notes.append(f"ratio: the number of {names[0]} over that of {names[1]}; both ran in turn.")
    return notes


def _listed(settings: RemoteSettings) -> dict[str, Any]:
    """What a reader needs, without secrets."""
    return {name: getattr(settings, name) for name in ("url", "api", "model", "fim", "max_prompt_tokens")}


def _create(path: Path) -> BinaryIO:
    """A new file; a load run cannot be resumed."""
    try:
        return path.open("xb")
    except FileExistsError as error:
        raise InputFileError(f"{path} exists: name another --output, or delete that file") from error
    except OSError as error:
        raise InputFileError(f"cannot write {path}: {error.strerror or error}") from error


def _write(file: BinaryIO | None, *trees: dict[str, Any]) -> None:
    if file is not None:
        try:
            file.write(b"".join(json.dumps(tree).encode() + b"\n" for tree in trees))
            file.flush()
        except OSError as error:
            raise InputFileError(f"cannot write {file.name}: {error.strerror or error}") from error
