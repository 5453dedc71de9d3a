"""`dg-lsp generate`: continues a text as it is."""

import math
import sys
import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dg_lsp.cli import loading
from dg_lsp.cli.loading import Decoder, EvenSecret, GpuLayers, Json, MaxTokens, Model, Remote, Seed, Threads
from dg_lsp.cli.sampling import with_sampler_options
from dg_lsp.errors import UsageError
from dg_lsp.sampler_options import SamplerOptions


@with_sampler_options
def generate(
    prompt: Annotated[str | None, Argument(metavar="[PROMPT]", help="The text; without it standard input.")] = None,
    file: Annotated[Path | None, Option("--file", "-f", metavar="FILE", help="A file with the text.")] = None,
    max_tokens: MaxTokens = 256,
    model: Model = None,
    remote: Remote = None,
    decoder: Decoder = None,
    context_length: loading.ContextLength = None,
    deadline: loading.TextDeadline = None,
    seed: Seed = 0,
    visual: loading.Visual = False,
    as_json: Json = False,
    even_secret: EvenSecret = False,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
    *,
    sampler: SamplerOptions,
) -> int:
    """Continue a text as the model goes on with it. Nothing is checked; Ctrl-C keeps what is there."""
    from dg_lsp.cli.generation import Display
    from dg_lsp.cli.source import SourceFile
    from dg_lsp.engine.request import ChatRequest

    if prompt is not None and file is not None:
        raise UsageError("a prompt and --file exclude each other: give one of them")
    over = loading.overrides(model=model, gpu_layers=gpu_layers, threads=threads, remote=remote)
    settings = loading.configure(loading.with_context_length(over, context_length))
    loading.check_decoder(decoder, settings)
    if file is not None:
        source = SourceFile.read(file)
        if not even_secret:
            loading.check_allowed(source, settings, loading.USE_EVEN_SECRET)
        prompt = source.text
    if prompt is None:
        prompt = sys.stdin.read()
    if not prompt:
        raise UsageError("there is no text to continue: give a prompt, --file, or standard input")
    request = ChatRequest((), name="", text=prompt, max_tokens=max_tokens, seed=seed, decoder=decoder, sampler=sampler)
    with loading.timed_engine(settings) as (engine, load_ms):
        until = math.inf if deadline is None else time.monotonic() + deadline / 1e3
        code, _ = Display(visual, as_json).run(engine, request, until, load_ms)
    return code
