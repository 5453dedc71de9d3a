"""`dg-lsp chat`, a conversation on a terminal or with given messages, and `dg-lsp generate`, which continues a text."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated

import typer
from typer import Argument, Option

from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.cli import INTERRUPTED, loading
from dg_lsp.cli.options import ModelOptions, RunOptions, check_decoder, configure, sampler_options
from dg_lsp.cli.output import show_text
from dg_lsp.cli.printing import note, size_text
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import ChatRequest
from dg_lsp.errors import InputFileError, ModelUnsupportedError, RequestError, UsageError
from dg_lsp.models.selection import instruction_advice
from dg_lsp.settings import Settings

MaxTokens = Annotated[
    int, Option("--max-tokens", "-n", min=1, max=1_000_000, metavar="N", help="Longest text in tokens.")
]
IgnoreEos = Annotated[bool, Option("--ignore-eos", help="End tokens of the model do not end the text.")]


def chat(
    run: RunOptions,
    model: ModelOptions,
    messages: Annotated[
        list[str] | None, Option("--message", "-m", metavar="TEXT", help="A message; several are sent in turn.")
    ] = None,
    system: Annotated[str, Option(metavar="TEXT", help="System message, before the conversation.")] = "",
    max_tokens: MaxTokens = 1024,
    ignore_eos: IgnoreEos = False,
) -> int:
    """Talk with a model that follows instructions. Ctrl-C ends an answer and keeps it; Ctrl-D ends the conversation."""
    is_interactive = not messages and sys.stdin.isatty()
    settings = run.with_attention(configure(model.tree_of_rewrites).for_rewrites)
    check_decoder(run.decoder, settings)
    sampler = sampler_options(run.sampler, run.top_k)
    turns = [Turn(Role.SYSTEM, system)] if system else []
    code = 0
    with loading.timed_engine(settings) as (engine, load_ms):
        if not (settings.is_remote or engine.follows_instructions):
            problem = "follows no instructions, and dg-lsp generate continues a text with it"
            advice = instruction_advice(loading.this_machine())
            raise ModelUnsupportedError(f"{engine.spec.name} {problem}; {advice}")
        _print_banner(engine, settings, run)
        for message in _typed() if is_interactive else _given(messages or ()):
            turns.append(Turn(Role.USER, message))
            request = ChatRequest(
                tuple(turns),
                name="",
                max_tokens=max_tokens,
                seed=run.seed,
                decoder=run.decoder,
                sampler=sampler,
                ignores_end=ignore_eos,
            )
            try:
                code, answer = show_text(engine, request, run, load_ms)
            except RequestError as error:
                if not is_interactive:
                    raise
                turns.pop()  # the conversation goes on without this message
                note(error)
                continue
            turns.append(Turn(Role.ASSISTANT, answer))
            if code == INTERRUPTED and not is_interactive:
                return code
    return 0 if is_interactive else code


def _print_banner(engine: Engine, settings: Settings, run: RunOptions) -> None:
    """Prints which model answers, where it runs and how it generates, if standard error is a terminal."""
    if run.as_json or not sys.stderr.isatty():
        return
    spec = engine.spec
    if settings.is_remote:
        note(f"{spec.name} at {settings.remote.url}")
        return
    used = engine.footprint
    where = ", ".join(device.name for device in used.devices) or "the processor"
    plan = "one token after the other"
    if spec.sampling is not None:
        plan = f"canvases of at most {max(spec.canvas_lengths)} tokens, {spec.sampling.max_denoising_steps} steps"
    context = f"context of {used.context_size:,} tokens with at most {size_text(used.full_cache_bytes)} of cache"
    note(f"{spec.name} with {size_text(used.weights_bytes)} of weights on {where}: {plan}; {context}")


def _typed() -> Iterator[str]:
    """The user's lines until Ctrl-D."""
    with suppress(ImportError):  # arrow keys and history, where the system has it
        import readline  # noqa: F401
    while True:
        try:
            line = input("> ")
        except EOFError:
            typer.echo("", err=True)
            return
        if line.strip():
            yield line


def _given(messages: Sequence[str]) -> Iterator[str]:
    """The messages of the command line, or standard input as one."""
    for message in messages or (_read_input(),):
        if not message.strip():
            raise UsageError("a message is empty: give --message TEXT, or standard input")
        yield message


def _read_input() -> str:
    """All of standard input. Raises InputFileError if it is no text."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        problem = f"is not {error.encoding} (byte {error.start}): convert it first"
        raise InputFileError(f"standard input {problem}") from error


def generate(
    run: RunOptions,
    model: ModelOptions,
    prompt: Annotated[
        str | None, Argument(metavar="PROMPT", help="The text. Without it standard input is read.")
    ] = None,
    max_tokens: MaxTokens = 256,
    ignore_eos: IgnoreEos = False,
) -> int:
    """Continue a text. The result is not checked; Ctrl-C ends it and keeps the text so far."""
    settings = run.with_attention(configure(model.tree))
    check_decoder(run.decoder, settings)
    text = _read_input() if prompt is None else prompt
    if not text:
        raise UsageError("there is no text to continue: give a prompt, or standard input")
    request = ChatRequest(
        (),
        name="",
        text=text,
        max_tokens=max_tokens,
        seed=run.seed,
        decoder=run.decoder,
        sampler=sampler_options(run.sampler, run.top_k),
        ignores_end=ignore_eos,
    )
    with loading.timed_engine(settings) as (engine, load_ms):
        _print_banner(engine, settings, run)
        code, _ = show_text(engine, request, run, load_ms)
    return code
