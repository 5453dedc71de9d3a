"""`dg-lsp why`: what automatic completion does at one position, and why nothing is shown there."""

import sys
import time
from contextlib import closing
from typing import Annotated, Any

import typer
from typer import Option

from dg_lsp.cli import loading
from dg_lsp.cli.options import Json, Position, with_model_options
from dg_lsp.cli.printing import print_json, print_line


@with_model_options
def why(
    position: Position,
    show_text: Annotated[bool, Option("--text", help="Also print the completion that is not shown.")] = False,
    as_json: Json = False,
    *,
    over: dict[str, Any],
) -> int:
    """Explain what an editor shows at one position of a file while you type, or why it shows nothing."""
    from dg_lsp.cli.output import for_stream
    from dg_lsp.cli.source import SourceFile, parse_position
    from dg_lsp.engine.request import FillRequest
    from dg_lsp.server.explanation import Visibility, explain, not_requested

    path, line, column = parse_position(position)
    source = SourceFile.read(path)
    settings = loading.configure(over)
    request = FillRequest(source.snapshot(), source.offset_at(line, column), max_lines=settings.completion.max_lines)
    exclusion = loading.exclusion(settings)
    found = not_requested(request, exclusion, settings.completion)
    if found is None:
        with closing(loading.open_engine(settings)) as engine:
            deadline = time.monotonic() + settings.completion.deadline_ms / 1e3
            found = not_requested(request, exclusion, settings.completion, engine)
            found = found or explain(engine.fill(request, deadline=deadline), settings.completion, engine)
    if as_json:
        print_json(found.as_object())
    else:
        print_line(found.sentence)
        if found.text and (show_text or found.outcome is Visibility.SHOWN):
            typer.echo(for_stream(found.text, sys.stdout))
    return 0 if found.outcome is Visibility.SHOWN else 1
