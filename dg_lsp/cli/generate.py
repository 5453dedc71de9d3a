"""`dg-lsp generate`: continues a text as it is."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from dg_lsp.cli import loading
from dg_lsp.cli.options import (
    USE_EVEN_SECRET,
    EvenSecret,
    TextOptions,
    check_decoder,
    with_model_options,
    with_sampler_options,
    with_text_options,
)
from dg_lsp.errors import UsageError
from dg_lsp.sampler_options import SamplerOptions


@with_sampler_options
@with_model_options
@with_text_options(max_tokens=256)
def generate(
    prompt: Annotated[
        str | None, Argument(metavar="PROMPT", help="The text. Without it: --file, or standard input.")
    ] = None,
    file: Annotated[Path | None, Option("--file", "-f", metavar="FILE", help="File with the text.")] = None,
    even_secret: EvenSecret = False,
    *,
    text: TextOptions,
    over: dict[str, Any],
    sampler: SamplerOptions,
) -> int:
    """Continue a text. The result is not checked; Ctrl-C ends it and keeps the text so far."""
    from dg_lsp.cli.generation import Display
    from dg_lsp.cli.source import SourceFile, read_input
    from dg_lsp.engine.request import ChatRequest

    if prompt is not None and file is not None:
        raise UsageError("a prompt and --file exclude each other: give one of them")
    settings = loading.configure(text.over(over))
    check_decoder(text.decoder, settings)
    if file is not None:
        source = SourceFile.read(file)
        if not even_secret:
            loading.check_allowed(source, settings, USE_EVEN_SECRET)
        prompt = source.text
    if prompt is None:
        prompt = read_input()
    if not prompt:
        raise UsageError("there is no text to continue: give a prompt, --file, or standard input")
    request = ChatRequest((), name="", text=prompt, sampler=sampler, **text.limits)
    with loading.timed_engine(settings) as (engine, load_ms):
        code, _ = Display(text.visual, text.as_json).run(engine, request, text.end(), load_ms)
    return code
