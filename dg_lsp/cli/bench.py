"""`dg-lsp bench` and `dg-lsp report`. `measurements` runs test cases, `replay` types."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from dg_lsp.cli.loading import configure
from dg_lsp.cli.options import Deadline, Decoder, Json, ModelOptions, Seed
from dg_lsp.cli.printing import print_line, print_lines
from dg_lsp.errors import InputFileError, UsageError
from dg_lsp.settings import SamplerOptions

Output = Annotated[Path | None, Option(metavar="RUN.jsonl", help="Keep every attempt, and resume an earlier run.")]


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
    import attrs

    from dg_lsp.bench.cut import case_middles, read_sources, write_cases
    from dg_lsp.bench.metrics import count
    from dg_lsp.context.exclusion import Exclusion
    from dg_lsp.context.languages import LANGUAGE_IDS

    settings = configure({})
    languages = languages or []
    if unknown := [name for name in languages if name not in LANGUAGE_IDS]:
        raise UsageError(f"unknown language {unknown[0]}: name one of {', '.join(LANGUAGE_IDS)}")
    privacy = attrs.evolve(settings.privacy, exclude_gitignored=True)
    exclusion = Exclusion(privacy, [folder.resolve().as_uri()])
    sources = read_sources(folder, languages, seed, exclusion.is_excluded)
    middles = case_middles(sources, num, seed)
    counts = ", ".join(f"{number} {name}" for name, number in write_cases(middles, output).most_common())
    print_line(f"{count(len(middles), 'test case')} of {count(len(sources), 'file')} ({counts}): {output}")
    print_line(f"next: dg-lsp bench infill {shlex.quote(str(output))}")
    return 0


def infill(
    data: Annotated[Path, Argument(metavar="DATA.jsonl[.gz]", help="Test cases in the HumanEval-Infilling format.")],
    model: ModelOptions,
    sampler: SamplerOptions,
    limit: Annotated[
        int | None, Option(min=1, metavar="N", help="Number of cases, drawn at random; default: all.")
    ] = None,
    seed: Seed = 0,
    execute: Annotated[
        bool, Option("--execute", help="Run the tests of each case in a sandbox (needs bubblewrap).")
    ] = False,
    decoder: Decoder = None,
    length: Annotated[
        Literal["none", "oracle"],
        Option(help="What is known of the length: nothing, or the reference's number of lines."),
    ] = "none",
    suffix_lines: Annotated[
        int | None, Option(min=0, metavar="N", help="Number of lines after the cursor's line in the prompt.")
    ] = None,
    deadline: Deadline = None,
    warm: Annotated[
        bool, Option("--warm", help="The cache holds the prompt without its last character, as while typing.")
    ] = False,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Fill test cases as in an editor: how many fills are right, and how fast."""
    from dg_lsp.bench.contenders import LengthHint, RequestOptions
    from dg_lsp.cli.measurements import Cases, measure_infill

    settings = configure(model.tree)
    cases = Cases(data, limit, seed, execute, as_json, output)
    options = RequestOptions(
        length=LengthHint(length),
        suffix_lines=suffix_lines,
        deadline_ms=deadline,
        is_warm=warm,
        sampler=sampler,
    )
    return measure_infill(cases, settings, options, decoder)


def replay(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Files to type again.")],
    model: ModelOptions,
    region: Annotated[str | None, Option(metavar="FIRST-LAST", help="Type only these lines, inside the file.")] = None,
    start: Annotated[int | None, Option(min=1, metavar="LINE", help="Type everything from this line on.")] = None,
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
    from dg_lsp.bench.replay import Replay, TypingModel
    from dg_lsp.cli.measurements import measure_replay, typing_tasks

    over = model.tree
    if server := {name: value for name, value in (("api", api), ("fim", fim)) if value is not None}:
        over["remote"] = {**over.get("remote", {}), **server}
    settings = configure(over)
    tasks = typing_tasks(files, region, start, settings)
    played = Replay(tasks, TypingModel(speed=speed, debounce_ms=debounce), seed, limit, decoder)
    return measure_replay(played, settings, as_json=as_json)


def report(
    log: Annotated[Path, Argument(metavar="AUDIT.jsonl", help="The audit log.")],
) -> int:
    """Summarize an audit log: how many requests, how fast, and their outcomes."""
    from dg_lsp.bench.audit import audit_tables
    from dg_lsp.cli.measurements import markdown
    from dg_lsp.engine.audit import read_log

    configure({})
    try:
        records, outcomes, num_bad = read_log(log)
    except OSError as error:
        raise InputFileError(f"cannot read {log}: {error.strerror or error}") from error
    if not records:
        raise InputFileError(f"{log} has no records: set privacy.audit_log and use dg-lsp for a while")
    print_lines(markdown(audit_tables(records, num_bad, outcomes)))
    return 0
