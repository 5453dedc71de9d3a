"""`dg-lsp why`: what automatic completion does at one position, and why nothing is shown there."""

import sys
import time
from contextlib import closing
from dataclasses import asdict

import typer

from dg_lsp.cli import loading
from dg_lsp.cli.options import Json, ModelOptions, Position
from dg_lsp.cli.printing import print_json, print_line


def why(
    position: Position,
    model: ModelOptions,
    as_json: Json = False,
) -> int:
    """Explain what an editor shows at one position of a file while you type, or why it shows nothing."""
    from dg_lsp.cli.output import for_stream
    from dg_lsp.cli.source import SourceFile, parse_location
    from dg_lsp.context.eligibility import Eligibility
    from dg_lsp.engine.request import FillRequest
    from dg_lsp.server.explanation import Explanation, Visibility, explain

    location = parse_location(position, "FILE:LINE[:COL]")
    source = SourceFile.read(location.path)
    settings = loading.configure(model.tree)
    snapshot = source.snapshot()
    offset = source.offset_at(location.first, location.column)
    request = FillRequest(snapshot, offset, max_lines=settings.completion.max_lines)
    exclusion, trigger = loading.exclusion(settings), settings.completion.trigger
    explanation = Explanation.of(Eligibility.of_typing(snapshot, offset, exclusion, trigger))
    if explanation is None:
        with closing(loading.open_engine(settings)) as engine:
            deadline = time.monotonic() + settings.completion.deadline_ms / 1e3
            problem = engine.spec.language_problem(snapshot.language)
            explanation = Explanation.of(Eligibility.of_typing(snapshot, offset, exclusion, trigger, problem))
            if explanation is None:
                explanation = explain(engine.fill(request, deadline=deadline), settings.completion, engine)
    if as_json:
        print_json(asdict(explanation))
    else:
        print_line(explanation.sentence)
        if explanation.text:
            typer.echo(for_stream(explanation.text, sys.stdout))
    return 0 if explanation.outcome is Visibility.SHOWN else 1
