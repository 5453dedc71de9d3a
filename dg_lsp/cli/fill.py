"""`dg-lsp fill` completes code at one position of a file, or fills gaps; `dg-lsp why` explains what an editor shows."""

import math
import sys
import time
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from typer import Option

from dg_lsp.cli import loading, output
from dg_lsp.cli.options import FileOptions, Json, ModelOptions, Position, RunOptions, configure, sampler_options
from dg_lsp.cli.output import for_stream
from dg_lsp.cli.printing import note, print_json, print_line
from dg_lsp.cli.rewrite import introduce, run_rewrite, trials_object, verification_for
from dg_lsp.cli.source import SourceFile, parse_location
from dg_lsp.context.eligibility import Eligibility
from dg_lsp.context.gaps import find_gaps
from dg_lsp.engine.request import FillRequest, FillResult, Priority, Replacement, RewriteRequest
from dg_lsp.engine.verification import NUM_CANDIDATES, Trial
from dg_lsp.errors import RequestError
from dg_lsp.server.explanation import Explanation, Visibility, explain
from dg_lsp.settings import Settings


def fill(
    position: Position,
    file: FileOptions,
    run: RunOptions,
    model: ModelOptions,
    gaps: Annotated[
        bool, Option("--gaps", help="Fill every ..., pass, TODO line and missing argument of FILE or FILE:FIRST-LAST.")
    ] = False,
    candidates: Annotated[int, Option(min=1, max=8, metavar="N", help="Number of completions to generate.")] = 1,
) -> int:
    """Complete code at one position of a file, or fill its gaps. Without --write the file is not changed."""
    location = parse_location(position, "FILE[:FIRST-LAST]" if gaps else "FILE:LINE[:COL]")
    source = SourceFile.read(location.path)
    snapshot = source.snapshot()
    if gaps:
        start, end = source.span_of(location)
        settings = run.with_attention(loading.configure_for(source, model.tree, file, as_json=run.as_json))
        rewrite = RewriteRequest(
            snapshot,
            start,
            end,
            deadline_ms=math.inf if run.deadline is None else run.deadline,
            seed=run.seed,
            gaps=find_gaps(snapshot, start, end),
            decoder=run.decoder,
            sampler=sampler_options(run.sampler, run.top_k),
        )
        if not rewrite.gaps:
            raise RequestError("there is no gap: write ... or a TODO comment where code is missing")
        return run_rewrite(rewrite, source, settings, run, file)
    offset = source.offset_at(location.first, location.column)
    settings = run.with_attention(loading.configure_for(source, model.tree, file, as_json=run.as_json))
    request = FillRequest(
        snapshot,
        offset,
        num_candidates=NUM_CANDIDATES if file.test is not None and candidates == 1 else candidates,
        is_thorough=file.test is not None,
        max_lines=settings.completion.max_lines,
        deadline_ms=run.deadline,
        decoder=run.decoder,
        seed=run.seed,
        sampler=sampler_options(run.sampler, run.top_k),
        priority=Priority.INVOKED,
    )
    return _fill_position(request, source, settings, run, file)


def _fill_position(
    request: FillRequest, source: SourceFile, settings: Settings, run: RunOptions, file: FileOptions
) -> int:
    """Completes the code at an offset; returns the exit code."""
    trials: list[Trial] = []
    if (verification := verification_for(source, file)) is not None:
        request = replace(request, snippets=verification.failure(note))
    completion = settings.completion
    until = math.inf if run.deadline is None else None  # no user is typing: without --deadline no limit
    with loading.timed_engine(settings, source.language) as (engine, load_ms):
        if run.visual:
            console = Console(highlight=False, stderr=run.as_json or file.is_patch)
            result = output.watch(engine.frames(request, deadline=until), request.snapshot, request.offset, console)
        else:
            result = engine.fill(request, deadline=until)
        typed = _reason_for_silence(request, settings, engine.spec.language_problem(source.language))
        typed = typed or explain(result.confident(completion.min_confidence), completion, engine)
        if not run.as_json:
            introduce(engine, file)
    edits = [Replacement(request.offset, request.offset, candidate) for candidate in result.candidates]
    if verification is not None:
        passing, trials = verification.first_passing(edits, source.data_with, note)
        edits = [passing] if passing is not None else []
        result = result.after_test(passing)
    if file.write and edits:
        source.replace(edits[0])
    if run.as_json:
        print_json(output.fill_object(result, load_ms) | trials_object(trials, file))
    else:
        _show(result, typed, request, source, file)
        print_line(output.timing_line(result, load_ms), err=file.is_patch)
    return 0 if result.candidates else 1


def _show(result: FillResult, typed: Explanation, request: FillRequest, source: SourceFile, file: FileOptions) -> None:
    """Prints the best candidate as code or as a patch, and what an editor does with it."""
    report = partial(print_line, err=file.is_patch)
    if not file.is_patch:
        output.show_fill(result, request.snapshot, request.offset, Console(highlight=False))
    elif result.candidates:
        output.print_patch(source.patch(Replacement(request.offset, request.offset, result.candidates[0])))
    if not result.candidates:
        report(f"no completion: the result {result.problem}")
    elif typed.outcome is not Visibility.SHOWN:
        report(f"while you type, an editor shows nothing here. {typed.sentence}")
    if file.write and result.candidates:
        report(f"wrote {source.path}")


def _reason_for_silence(request: FillRequest, settings: Settings, language_problem: str = "") -> Explanation | None:
    """Why an editor computes nothing at this position while a user types; None where it does."""
    trigger = settings.completion.trigger
    document = Eligibility.of_document(request.snapshot, loading.exclusion(settings), language_problem)
    return Explanation.of(document.while_typing(request.snapshot, request.offset, trigger))


def why(
    position: Position,
    model: ModelOptions,
    as_json: Json = False,
) -> int:
    """Explain what an editor shows at one position of a file while you type, or why it shows nothing."""
    location = parse_location(position, "FILE:LINE[:COL]")
    source = SourceFile.read(location.path)
    settings = configure(model.tree)
    completion = settings.completion
    offset = source.offset_at(location.first, location.column)
    request = FillRequest(source.snapshot(), offset, max_lines=completion.max_lines)
    explanation = _reason_for_silence(request, settings)  # before a model is opened
    if explanation is None:
        with closing(loading.open_engine(settings)) as engine:
            deadline = time.monotonic() + completion.deadline_ms / 1e3
            explanation = _reason_for_silence(request, settings, engine.spec.language_problem(source.language))
            explanation = explanation or explain(engine.fill(request, deadline=deadline), completion, engine)
    if as_json:
        print_json(asdict(explanation))
    else:
        print_line(explanation.sentence)
        if explanation.text.strip():
            typer.echo(for_stream(explanation.text, sys.stdout))
    return 0 if explanation.outcome is Visibility.SHOWN else 1
