"""`dg-lsp chat`, a conversation on a terminal or with given messages, and `dg-lsp generate`, which continues a text."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from dg_lsp.cli import INTERRUPTED, loading
from dg_lsp.cli.options import (
    EvenSecret,
    TextOptions,
    check_decoder,
    with_model_options,
    with_rewrite_model_options,
    with_sampler_options,
    with_text_options,
)
from dg_lsp.cli.printing import note
from dg_lsp.errors import ModelUnsupportedError, RequestError, UsageError
from dg_lsp.settings import SamplerOptions

if TYPE_CHECKING:
    from dg_lsp.engine.engine import Engine

PROMPT = "> "


@with_sampler_options
@with_rewrite_model_options
@with_text_options(max_tokens=1024)
def chat(
    messages: Annotated[
        list[str] | None, Option("--message", "-m", metavar="TEXT", help="A message; several are sent in turn.")
    ] = None,
    system: Annotated[str, Option(metavar="TEXT", help="System message, before the conversation.")] = "",
    hide_thinking: Annotated[bool, Option("--hide-thinking", help="Do not print thoughts.")] = False,
    *,
    text: TextOptions,
    over: dict[str, Any],
    sampler: SamplerOptions,
) -> int:
    """Talk with a model that follows instructions. Ctrl-C ends an answer and keeps it; Ctrl-D ends the conversation."""
    from dg_lsp.canvas.chat import Role, Turn
    from dg_lsp.cli.output import show_text
    from dg_lsp.engine.request import ChatRequest

    is_interactive = not messages and sys.stdin.isatty()
    settings = loading.configure(text.over(over)).for_rewrites
    check_decoder(text.decoder, settings)
    turns = [Turn(Role.SYSTEM, system)] if system else []
    code = 0
    with loading.timed_engine(settings) as (engine, load_ms):
        if not settings.is_remote:
            _check(engine)
        for message in _typed() if is_interactive else _given(messages or ()):
            turns.append(Turn(Role.USER, message))
            request = ChatRequest(tuple(turns), name="", sampler=sampler, **text.limits)
            try:
                code, answer = show_text(engine, request, text, load_ms, hides_thought=hide_thinking)
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


def _check(engine: "Engine") -> None:
    """Raises `ModelUnsupportedError` for a model that follows no instructions."""
    from dg_lsp.models.selection import instruction_advice

    if not engine.follows_instructions:
        advice = instruction_advice(loading.this_machine())
        raise ModelUnsupportedError(
            f"{engine.spec.name} follows no instructions, and dg-lsp generate continues a text with it; {advice}"
        )


def _typed() -> Iterator[str]:
    """The user's lines until Ctrl-D."""
    with suppress(ImportError):  # arrow keys and history, where the system has it
        import readline  # noqa: F401
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            typer.echo("", err=True)
            return
        if line.strip():
            yield line


def _given(messages: Sequence[str]) -> Iterator[str]:
    """The messages of the command line, or standard input as one."""
    from dg_lsp.cli.source import read_input

    for message in messages or (read_input(),):
        if not message.strip():
            raise UsageError("a message is empty: give --message TEXT, or standard input")
        yield message


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
    from dg_lsp.cli.output import show_text
    from dg_lsp.cli.source import SourceFile, read_input
    from dg_lsp.engine.request import ChatRequest

    if prompt is not None and file is not None:
        raise UsageError("a prompt and --file exclude each other: give one of them")
    settings = loading.configure(text.over(over))
    check_decoder(text.decoder, settings)
    if file is not None:
        source = SourceFile.read(file)
        loading.check_allowed(source, settings, even_secret=even_secret)
        prompt = source.text
    if prompt is None:
        prompt = read_input()
    if not prompt:
        raise UsageError("there is no text to continue: give a prompt, --file, or standard input")
    request = ChatRequest((), name="", text=prompt, sampler=sampler, **text.limits)
    with loading.timed_engine(settings) as (engine, load_ms):
        code, _ = show_text(engine, request, text, load_ms)
    return code
