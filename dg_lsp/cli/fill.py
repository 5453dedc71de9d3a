"""`dg-lsp fill`: completes code at one position of a file, or fills the gaps of its lines."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli import loading
from dg_lsp.cli.options import (
    USE_EVEN_SECRET,
    Deadline,
    Decoder,
    EvenSecret,
    Format,
    Json,
    Position,
    Seed,
    SuffixLines,
    Visual,
    Write,
    with_model_options,
    with_sampler_options,
)
from dg_lsp.cli.printing import print_json, print_line
from dg_lsp.sampler_options import SamplerOptions

if TYPE_CHECKING:
    from dg_lsp.cli.source import SourceFile
    from dg_lsp.engine.engine import Engine
    from dg_lsp.engine.request import FillRequest
    from dg_lsp.engine.result import FillResult
    from dg_lsp.settings import Settings


@with_sampler_options
@with_model_options
def fill(
    position: Position,
    gaps: Annotated[
        bool, Option("--gaps", help="Fill every ..., pass, TODO line and missing argument of FILE or FILE:FIRST-LAST.")
    ] = False,
    suffix_lines: SuffixLines = None,
    candidates: Annotated[int, Option(min=1, max=8, metavar="N", help="Number of completions to generate.")] = 1,
    deadline: Deadline = None,
    decoder: Decoder = None,
    prompt_format: Format = None,
    seed: Seed = 0,
    visual: Visual = False,
    as_json: Json = False,
    write: Write = False,
    even_secret: EvenSecret = False,
    *,
    over: dict[str, Any],
    sampler: SamplerOptions,
) -> int:
    """Complete code at one position of a file, or fill its gaps. Without --write the file is not changed."""
    import attrs

    from dg_lsp.cli.source import SourceFile, parse_position, parse_range

    path, first, second = parse_range(position) if gaps else parse_position(position)
    source = SourceFile.read(path)
    if first is None:
        start, end = 0, len(source.text)
    elif gaps:
        start, end = source.offset_at(first, 1), source.offset_at(second or first, None)
    else:
        start = end = source.offset_at(first, second)
    if write:
        source.check_writable()
    settings = loading.configure(over)
    if not even_secret:
        loading.check_allowed(source, settings, USE_EVEN_SECRET)
    if prompt_format is not None:
        completion = attrs.evolve(settings.completion, prompt_format=prompt_format.value)
        settings = attrs.evolve(settings, completion=completion)
    how = {"visual": visual, "as_json": as_json, "write": write}
    command = _Command(source, settings, decoder, deadline, seed, sampler, **how)
    return command.fill_gaps(start, end) if gaps else command.fill(start, candidates, suffix_lines)


@dataclass(frozen=True, slots=True)
class _Command:
    """What the fill of a position and of gaps have in common."""

    source: "SourceFile"
    settings: "Settings"
    decoder: DecoderName | None
    deadline: float | None
    seed: int
    sampler: SamplerOptions
    visual: bool
    as_json: bool
    write: bool

    def fill(self, offset: int, candidates: int, suffix_lines: int | None) -> int:
        """Completes the code at an offset; returns the exit code."""
        from dg_lsp.cli.output import fill_object, timing_line
        from dg_lsp.context.eligibility import Eligibility
        from dg_lsp.engine.request import FillRequest, Priority
        from dg_lsp.server.explanation import Explanation, Visibility, explain

        request = FillRequest(
            self.source.snapshot(),
            offset,
            num_candidates=candidates,
            max_lines=self.settings.completion.max_lines,
            suffix_lines=suffix_lines,
            deadline_ms=self.deadline,
            seed=self.seed,
            decoder=self.decoder,
            priority=Priority.INVOKED,
            sampler=self.sampler,
        )
        with loading.timed_engine(self.settings, self.source.language) as (engine, load_ms):
            result = self._run(engine, request)
            completion, exclusion = self.settings.completion, loading.exclusion(self.settings)
            problem = engine.spec.language_problem(self.source.language)
            eligibility = Eligibility.of_typing(request.snapshot, offset, exclusion, completion.trigger, problem)
            typed = Explanation.of(eligibility) or explain(
                result.confident(completion.min_confidence), completion, engine
            )
        if self.write and result.candidates:
            self.source.replace(offset, offset, result.text)
        if self.as_json:
            print_json(fill_object(result, load_ms))
        else:
            if not result.candidates:
                print_line(f"no completion: the result {result.problem}")
            elif typed.outcome is not Visibility.SHOWN:
                print_line(f"while you type, an editor shows nothing here. {typed.sentence}")
            if self.write and result.candidates:
                print_line(f"wrote {self.source.path}")
            print_line(timing_line(result, load_ms))
        return 0 if result.candidates else 1

    def fill_gaps(self, start: int, end: int) -> int:
        """Fills the gaps between two offsets; returns the exit code.

        Raises:
            RequestError: there is none.
        """
        from dg_lsp.cli.output import times, watch_gaps
        from dg_lsp.cli.rewrite import finish
        from dg_lsp.context.gaps import find_gaps
        from dg_lsp.engine.engine import drain
        from dg_lsp.engine.request import RewriteRequest
        from dg_lsp.errors import RequestError

        snapshot = self.source.snapshot()
        gaps = find_gaps(snapshot, start, end)
        wait_ms = math.inf if self.deadline is None else self.deadline
        if not gaps:
            raise RequestError("there is no gap: write ... or a TODO comment where code is missing")
        request = RewriteRequest(
            snapshot,
            start,
            end,
            deadline_ms=wait_ms,
            seed=self.seed,
            gaps=gaps,
            decoder=self.decoder,
            sampler=self.sampler,
        )
        with loading.timed_engine(self.settings, self.source.language) as (engine, load_ms):
            if not self.as_json:
                loading.show_instruction_note(request, engine)
            steps = engine.rewrite(request)
            result = watch_gaps(steps, engine.frame, is_json=self.as_json) if self.visual else drain(steps)
            self._introduce(engine)
        missing = [
            f"line {self.source.line_of(gap.start)} is not filled: the result {gap.rejection.reason.problem}"
            for gap in result.gaps
            if gap.rejection
        ]
        filled_gaps = [
            {
                "line": self.source.line_of(gap.start),
                "placeholder": self.source.text[gap.start : gap.end],
                "text": gap.text,
                "rejected": gap.rejection.reason.value if gap.rejection else None,
                "confidence": round(gap.confidence, 4),
            }
            for gap in result.gaps
        ]
        tree = {
            "text": result.text,
            "model": result.model,
            "gaps": filled_gaps,
            "rejected": result.rejection.reason.value if result.rejection else None,
            "steps": result.steps,
            "timings_ms": times(result.timings, load_ms),
        }
        return finish(result, self.source, load_ms, missing, tree if self.as_json else None, write=self.write)

    def _introduce(self, engine: "Engine") -> None:
        """Prints which model answers, and what it knows, before its answer: an error prints nothing else."""
        if not self.as_json:
            languages = ", ".join(engine.spec.languages) or "all languages"
            follows = "instructions" if engine.follows_instructions else "no instructions"
            print_line(f"{engine.spec.name} answers: it knows {languages}, and follows {follows}")

    def _run(self, engine: "Engine", request: "FillRequest") -> "FillResult":
        """Runs the request and shows the code. With --visual and --json, the steps are printed on standard error."""
        from rich.console import Console

        from dg_lsp.cli.output import show_fill, watch

        until = math.inf if request.deadline_ms is None else None  # no user is typing: without --deadline no limit
        console = Console(highlight=False, stderr=self.as_json)
        if self.visual:
            self._introduce(engine)
            result = watch(engine.frames(request, deadline=until), request.snapshot, request.offset, console)
            if request.decoder is None and not result.canvas_length and engine.spec.canvas_lengths:
                reason = ", which is faster here" if self.settings.completion.decoder == DecoderName.AUTO else ""
                console.print(f"decoded token by token{reason}: --decoder diffusion shows a canvas", soft_wrap=True)
            return result
        result = engine.fill(request, deadline=until)
        self._introduce(engine)
        if not self.as_json:
            show_fill(result, request.snapshot, request.offset, console)
        return result
