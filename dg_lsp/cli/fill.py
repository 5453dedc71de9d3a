"""`dg-lsp fill`: completes code at one position of a file, or fills the gaps of its lines."""

import math
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli import loading
from dg_lsp.cli.options import (
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
from dg_lsp.cli.rewrite import introduce, run_rewrite
from dg_lsp.settings import SamplerOptions

if TYPE_CHECKING:
    from dg_lsp.cli.source import SourceFile
    from dg_lsp.engine.engine import Engine
    from dg_lsp.engine.request import FillRequest, FillResult, RewriteRequest
    from dg_lsp.settings import CompletionSettings, Settings


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
    from dg_lsp.engine.request import FillRequest, Priority

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
    loading.check_allowed(source, settings, even_secret=even_secret)
    if prompt_format is not None:
        settings = attrs.evolve(
            settings, completion=attrs.evolve(settings.completion, prompt_format=prompt_format.value)
        )
    common: dict[str, Any] = {"seed": seed, "decoder": decoder, "sampler": sampler}
    if gaps:
        request = _gaps_request(source, start, end, math.inf if deadline is None else deadline, common)
        return run_rewrite(request, source, settings, as_json=as_json, write=write, visual=visual)
    fill_request = FillRequest(
        source.snapshot(),
        start,
        num_candidates=candidates,
        max_lines=settings.completion.max_lines,
        suffix_lines=suffix_lines,
        deadline_ms=deadline,
        priority=Priority.INVOKED,
        **common,
    )
    return _fill_position(fill_request, source, settings, visual=visual, as_json=as_json, write=write)


def _gaps_request(
    source: "SourceFile", start: int, end: int, deadline_ms: float, common: dict[str, Any]
) -> "RewriteRequest":
    """The gaps between two offsets. Raises RequestError if there is none."""
    from dg_lsp.context.gaps import find_gaps
    from dg_lsp.engine.request import RewriteRequest
    from dg_lsp.errors import RequestError

    snapshot = source.snapshot()
    gaps = find_gaps(snapshot, start, end)
    if not gaps:
        raise RequestError("there is no gap: write ... or a TODO comment where code is missing")
    return RewriteRequest(snapshot, start, end, deadline_ms=deadline_ms, gaps=gaps, **common)


def _fill_position(
    request: "FillRequest", source: "SourceFile", settings: "Settings", *, visual: bool, as_json: bool, write: bool
) -> int:
    """Completes the code at an offset; returns the exit code."""
    from dg_lsp.cli.output import fill_object, timing_line
    from dg_lsp.context.eligibility import Eligibility
    from dg_lsp.server.explanation import Explanation, Visibility, explain

    completion = settings.completion
    with loading.timed_engine(settings, source.language) as (engine, load_ms):
        result = _run(engine, request, completion, visual=visual, as_json=as_json)
        problem = engine.spec.language_problem(source.language)
        eligibility = Eligibility.of_typing(
            request.snapshot, request.offset, loading.exclusion(settings), completion.trigger, problem
        )
        typed = Explanation.of(eligibility) or explain(result.confident(completion.min_confidence), completion, engine)
    write = write and bool(result.candidates)
    if write:
        source.replace(request.offset, request.offset, result.text)
    if as_json:
        print_json(fill_object(result, load_ms))
    else:
        if not result.candidates:
            print_line(f"no completion: the result {result.problem}")
        elif typed.outcome is not Visibility.SHOWN:
            print_line(f"while you type, an editor shows nothing here. {typed.sentence}")
        if write:
            print_line(f"wrote {source.path}")
        print_line(timing_line(result, load_ms))
    return 0 if result.candidates else 1


def _run(
    engine: "Engine", request: "FillRequest", completion: "CompletionSettings", *, visual: bool, as_json: bool
) -> "FillResult":
    """Runs the request and shows the code. With --visual and --json, the steps are printed on standard error."""
    from rich.console import Console

    from dg_lsp.cli.output import show_fill, watch

    until = math.inf if request.deadline_ms is None else None  # no user is typing: without --deadline no limit
    console = Console(highlight=False, stderr=as_json)
    if not visual:
        result = engine.fill(request, deadline=until)
    if not as_json:
        introduce(engine)
    if visual:
        result = watch(engine.frames(request, deadline=until), request.snapshot, request.offset, console)
        if request.decoder is None and not result.canvas_length and engine.spec.canvas_lengths:
            reason = ", which is faster here" if completion.decoder == DecoderName.AUTO else ""
            console.print(f"decoded token by token{reason}: --decoder diffusion shows a canvas", soft_wrap=True)
    elif not as_json:
        show_fill(result, request.snapshot, request.offset, console)
    return result
