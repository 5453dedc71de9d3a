"""`dg-lsp fill`, `rewrite` and `why`: completes code, fills gaps, rewrites lines, and explains what an editor shows."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from dg_lsp.canvas.prompt_format import own_snippets
from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.cli import loading, output
from dg_lsp.cli.options import Deadline, FileOptions, Json, ModelOptions, Position, RunOptions, Seed, configure
from dg_lsp.cli.printing import note, plural, print_json, print_line
from dg_lsp.cli.source import Location, SourceFile, parse_location
from dg_lsp.context.exclusion import Eligibility
from dg_lsp.context.gaps import find_gaps
from dg_lsp.context.languages import opening_of
from dg_lsp.context.window import Snippets
from dg_lsp.engine.decoders.base import Result
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import (
    EngineRequest,
    FillRequest,
    FillResult,
    Frame,
    Priority,
    Replacement,
    RewriteRequest,
    RewriteResult,
    max_lines,
)
from dg_lsp.engine.rewrite import instruction_note
from dg_lsp.engine.verification import NUM_CANDIDATES, OptionT, Verification
from dg_lsp.errors import RequestError, UsageError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.sandbox import Sandbox
from dg_lsp.server.status import Explanation, Visibility, explain
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
    if gaps and candidates > 1:
        raise UsageError("--gaps takes the best fill of each gap: leave --candidates out")
    location = parse_location(position, "FILE[:FIRST-LAST]" if gaps else "FILE:LINE[:COL]")
    source = SourceFile.read(location.path)
    settings = run.configured(loading.configure_for(source, model.tree, file, as_json=run.as_json))
    sampler = run.sampler_options
    command = _EditCommand(source, settings, run, file)
    if gaps:
        snapshot = source.snapshot()
        start, end = source.span_of(location)
        placeholders = find_gaps(snapshot, start, end)
        if not placeholders:
            raise RequestError("there is no gap: write ... or a TODO comment where code is missing")
        return command.rewrite(
            RewriteRequest(snapshot, start, end, gaps=placeholders, seed=run.seed, decoder=run.decoder, sampler=sampler)
        )
    request = replace(
        _request(source, location, settings),
        num_candidates=NUM_CANDIDATES if file.test is not None and candidates == 1 else candidates,
        deadline_ms=run.deadline,
        decoder=run.decoder,
        seed=run.seed,
        sampler=sampler,
        priority=Priority.INVOKED,
    )
    return command.fill(request)


def rewrite(
    lines: Annotated[
        str, Argument(metavar="FILE:FIRST-LAST", help="Line numbers count from 1; both lines are included.")
    ],
    file: FileOptions,
    model: ModelOptions,
    instruction: Annotated[str, Argument(metavar="INSTRUCTION", help="What to change.")] = "",
    strength: Annotated[float, Option(metavar="0..1", help="Fraction of the tokens to replace; 1 replaces all.")] = 1.0,
    deadline: Deadline = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> int:
    """Rewrite lines of a file and show a diff. Without --write the file is not changed."""
    location = parse_location(lines, "FILE:FIRST-LAST")
    source = SourceFile.read(location.path)
    start, end = source.span_of(location)
    settings = loading.configure_for(source, model.tree_of_rewrites, file, as_json=as_json).for_rewrites
    run = RunOptions(deadline=deadline, seed=seed, as_json=as_json)
    request = RewriteRequest(source.snapshot(), start, end, instruction, strength, seed=seed)
    return _EditCommand(source, settings, run, file).rewrite(request)


@dataclass(frozen=True, slots=True)
class _EditCommand:
    """One run of `fill` or `rewrite`: the file, the settings and the options of the command line."""

    source: SourceFile
    settings: Settings
    run: RunOptions
    file: FileOptions

    def fill(self, request: FillRequest) -> int:
        """Completes the code at an offset; returns the exit code."""
        verification = self._verification()
        failure = None if verification is None else verification.failure(note)
        with loading.timed_engine(self.settings, self.source.language) as (engine, load_ms):
            self.run.note_effects(engine.spec)
            request = replace(request, snippets=failure or _similar_code(request, engine.spec, self.settings))
            excerpt_with = partial(output.excerpt, request.snapshot, request.offset)
            result = self._drain(request, engine, lambda frame: excerpt_with(output.drawing(frame)))
            silence = _reason_for_silence(request, self.settings, engine.spec.language_problem(self.source.language))
            completion = self.settings.completion
            while_typing = silence or explain(result.confident(completion.min_confidence), completion, engine)
            self._report_model(engine)
        at = request.offset + len(self.source.text) - len(request.snapshot.text)
        opening = request.snapshot.text[at : request.offset]
        candidates = tuple(replace(candidate, text=opening + candidate.text) for candidate in result.candidates)
        result = replace(result, candidates=candidates)
        edits = [Replacement(at, at, candidate) for candidate in candidates]
        edit, trials = self._apply_best(edits, verification)
        if verification is not None:
            result = result.after_test(edit)
        if self.run.as_json:
            print_json(output.fill_object(result, load_ms) | trials)
        else:
            self._show_fill(result, edit, at)
            if edit is not None and while_typing.outcome is not Visibility.SHOWN:
                self.file.report(f"while you type, an editor shows nothing here. {while_typing.sentence}")
            self.file.report(output.cost_line(result, load_ms))
        return 1 if edit is None else 0

    def rewrite(self, request: RewriteRequest) -> int:
        """Writes lines anew, or fills their gaps; returns the exit code."""
        verification = self._verification()
        if verification is not None:
            request = replace(request, snippets=verification.failure(note), num_candidates=NUM_CANDIDATES)
        with loading.timed_engine(self.settings, self.source.language) as (engine, load_ms):
            self.run.note_effects(engine.spec)
            if sentence := instruction_note(request, engine.spec):
                note(sentence)
            result = self._drain(request, engine, partial(output.drawing, is_marked=True))
            follows = engine.spec.follows_instructions
            if request.gaps:
                self._report_model(engine)
        edit, trials = self._apply_best(() if result.reason else (result, *result.alternatives), verification)
        if not result.reason:
            result = edit or result.rejected(Reason.FAILS_TEST)
        if self.run.as_json:
            print_json(_rewrite_object(result, request, self.source, load_ms, follows_instructions=follows) | trials)
        else:
            self._show_rewrite(result, load_ms)
        return 1 if result.reason else 0

    def _verification(self) -> Verification | None:
        """How the candidates are tested, in the working directory; None without `--test`.

        Raises UsageError if the file is elsewhere, SandboxError if there is no sandbox.
        """
        if self.file.test is None:
            return None
        folder = Path.cwd()
        path = self.source.path.resolve()
        if not path.is_relative_to(folder):
            problem = f"--test runs in the working directory, and {self.source.path} is not in it"
            raise UsageError(f"{problem}: change to its project")
        sandbox = Sandbox(option="--test")
        seconds = self.file.test_deadline / 1e3
        return Verification(self.file.test, folder, path, {path: self.source.data}, sandbox, seconds)

    def _drain(self, request: EngineRequest[Result], engine: Engine, drawn: Callable[[Frame], Text]) -> Result:
        """Runs a request to its end; with `--visual` it shows every canvas."""
        steps = request.run(engine, self.run.end())  # no user is typing: without --deadline no limit
        if not self.run.visual:
            return drain(steps)
        console = Console(highlight=False, stderr=self.run.as_json or self.file.format == "patch")
        with output.canvas_screen(console, drawn) as show:
            return drain(steps, lambda progress: show(progress.frame()))

    def _report_model(self, engine: Engine) -> None:
        """Prints which model answers, and what it knows, before its answer: an error prints nothing else."""
        if not self.run.as_json:
            names = engine.spec.languages
            languages = ", ".join(names) or "all languages" if len(names) <= 3 else f"{len(names)} languages"
            follows = f"follows {'' if engine.spec.follows_instructions else 'no '}instructions"
            self.file.report(f"{engine.spec.name} answers: it knows {languages}, and {follows}")

    def _apply_best(
        self, edits: Sequence[OptionT], verification: Verification | None
    ) -> tuple[OptionT | None, dict[str, Any]]:
        """Writes the best edit to the file if the user passed `--write`; returns it.

        With `--test` it is the first edit with which the test passes. The second value is then the key `tests` of the
        JSON object, and empty otherwise.
        """
        edit = next(iter(edits), None)
        trials = {}
        if verification is not None:
            edit, tried = verification.first_passing(edits, self.source.data_with, note)
            trials = {"tests": [asdict(trial) for trial in tried]}
        if edit is not None and self.file.write:
            self.source.replace(edit)
        return edit, trials

    def _show_fill(self, result: FillResult, edit: Replacement | None, offset: int) -> None:
        """Prints the best completion as code or as a patch."""
        if self.file.format != "patch":
            output.show_fill(result, self.source.snapshot(), offset, Console(highlight=False))
        elif edit is not None:
            output.print_patch(self.source.patch(edit))
        if edit is None:
            self.file.report(f"no completion: the result {result.problem}")
        elif self.file.write:
            self.file.report(f"wrote {self.source.path}")

    def _show_rewrite(self, result: RewriteResult, load_ms: float) -> None:
        """Prints the difference, what is not filled, and the costs."""
        if not result.reason:
            output.print_patch(self.source.patch(result))
        elif not result.gaps:
            self.file.report(f"no rewrite: the result {result.reason.problem}")
        problems = [(self.source.line_of(gap.start), gap.reason.problem) for gap in result.gaps if gap.reason]
        for line, problem in problems:
            self.file.report(f"line {line} is not filled: the result {problem}")
        if self.file.write and not result.reason:
            self.file.report(f"wrote {self.source.path}")
        filled = f"{len(result.gaps) - len(problems)} of {len(result.gaps)} gaps, " if result.gaps else ""
        times = f"{result.timings.total:.0f} ms; load {load_ms:.0f} ms"
        self.file.report(f"{result.model}: {filled}{times}; {plural(result.steps, 'step')}")


def _rewrite_object(
    result: RewriteResult, request: RewriteRequest, source: SourceFile, load_ms: float, *, follows_instructions: bool
) -> dict[str, Any]:
    """What `rewrite --json` and `fill --gaps --json` print, with the keys in the documented order."""
    return {
        "text": result.text,
        "model": result.model,
        "first": source.line_of(request.start),
        "last": source.line_of(request.end),
        "gaps": [_gap_object(gap, source) for gap in result.gaps],
        "rejected": result.reason,
        "follows_instructions": follows_instructions,
        "score": round(result.verdict.score, 4),
        "steps": result.steps,
        "timings_ms": output.times(result.timings, load_ms),
    }


def _gap_object(gap: Replacement, source: SourceFile) -> dict[str, Any]:
    return {
        "line": source.line_of(gap.start),
        "placeholder": source.text[gap.start : gap.end],
        "text": gap.text,
        "rejected": gap.reason,
        "confidence": round(gap.verdict.confidence, 4),
    }


def why(position: Position, model: ModelOptions, as_json: Json = False) -> int:
    """Explain what an editor shows at one position of a file while you type, or why it shows nothing."""
    location = parse_location(position, "FILE:LINE[:COL]")
    source = SourceFile.read(location.path)
    settings = configure(model.tree)
    completion = settings.completion
    request = _request(source, location, settings)
    explanation = _reason_for_silence(request, settings)  # before a model is opened
    if explanation is None:
        with closing(loading.open_engine(settings)) as engine:
            deadline = time.monotonic() + completion.deadline_ms / 1e3
            explanation = _reason_for_silence(request, settings, engine.spec.language_problem(source.language))
            request = replace(request, snippets=_similar_code(request, engine.spec, settings))
            explanation = explanation or explain(engine.fill(request, deadline=deadline), completion, engine)
    if as_json:
        print_json(asdict(explanation))
    else:
        print_line(explanation.sentence)
        if explanation.text.strip():
            typer.echo(output.for_stream(explanation.text, sys.stdout))
    return 0 if explanation.outcome is Visibility.SHOWN else 1


def _request(source: SourceFile, location: Location, settings: Settings) -> FillRequest:
    """The request that an editor sends at a position: behind the header of a block, its body is begun."""
    snapshot = source.snapshot()
    offset = source.offset_at(location.first, location.column)
    opening = opening_of(snapshot.text, offset, snapshot.language)
    opened = replace(snapshot, text=snapshot.text[:offset] + opening + snapshot.text[offset:])
    return FillRequest(opened, offset + len(opening), max_lines=max_lines(settings.completion))


def _similar_code(request: FillRequest, spec: ModelSpec, settings: Settings) -> Snippets:
    """The similar code that an editor without other open files would find."""
    return own_snippets(request.snapshot, request.offset, spec, settings.context.enabled)


def _reason_for_silence(request: FillRequest, settings: Settings, language_problem: str = "") -> Explanation | None:
    """Why an editor computes nothing at this position while a user types; None where it does."""
    document = Eligibility.of_document(request.snapshot, loading.exclusion(settings), language_problem)
    return Explanation.of(document.while_typing(request.snapshot, request.offset, settings.completion.trigger))
