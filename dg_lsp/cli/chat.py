"""`dg-lsp chat`, a conversation on a terminal or with given messages, and `dg-lsp generate`, which continues a text."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from dg_lsp.canvas.chat import Role, Turn
from dg_lsp.cli import INTERRUPTED, loading
from dg_lsp.cli.options import ModelOptions, RunOptions, configure
from dg_lsp.cli.output import canvas_screen, cost_line, costs, drawing, for_stream
from dg_lsp.cli.printing import note, print_json, print_line
from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import ChatRequest, FillResult, Frame
from dg_lsp.errors import ModelUnsupportedError, RemoteError, RequestError, UsageError, map_input_errors, size_text
from dg_lsp.models.registry import instruction_model
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
    settings = run.configured(configure(model.tree_of_rewrites).for_rewrites)
    request = _text_request(run, max_tokens, ignores_end=ignore_eos)
    turns = [Turn(Role.SYSTEM, system)] if system else []
    code = 0
    with loading.timed_engine(settings) as (engine, load_ms):
        if not (settings.is_remote or engine.spec.follows_instructions):
            problem = "follows no instructions, and dg-lsp generate continues a text with it"
            advice = f"{instruction_model()} follows them: fetch it with dg-lsp models pull, or use --remote URL"
            raise ModelUnsupportedError(f"{engine.spec.name} {problem}; {advice}")
        run.note_effects(engine.spec)
        _print_banner(engine, settings, run)
        for message in _typed() if is_interactive else _given(messages or ()):
            asked = Turn(Role.USER, message)
            try:
                code, answer = _show_text(engine, replace(request, turns=(*turns, asked)), run, load_ms)
            except (RequestError, RemoteError) as error:
                if not is_interactive:
                    raise
                note(error)
                continue
            if answer:  # without one, the conversation goes on without this message
                turns += [asked, Turn(Role.ASSISTANT, answer)]
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
    method = "one token after the other"
    if spec.sampling is not None:
        method = f"canvases of at most {max(spec.canvas_lengths)} tokens, {spec.sampling.max_denoising_steps} steps"
    context = f"context of {used.context_size:,} tokens with at most {size_text(used.full_cache_bytes)} of cache"
    note(f"{spec.name} with {size_text(used.weights_bytes)} of weights on {where}: {method}; {context}")


def _typed() -> Iterator[str]:
    """The user's lines until Ctrl-D."""
    with suppress(ImportError):  # arrow keys and history, where the system has it
        import readline  # noqa: F401
    is_shown = sys.stdout.isatty()  # otherwise Python would write the prompt between the answers
    while True:
        if not is_shown:
            typer.echo("> ", nl=False, err=True)
        try:
            line = input("> " if is_shown else "")
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
    with map_input_errors("read", Path("standard input")):
        return sys.stdin.read()


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
    settings = run.configured(configure(model.tree))
    request = _text_request(run, max_tokens, ignores_end=ignore_eos)
    text = _read_input() if prompt is None else prompt
    with loading.timed_engine(settings) as (engine, load_ms):
        run.note_effects(engine.spec)
        _print_banner(engine, settings, run)
        code, _ = _show_text(engine, replace(request, text=text), run, load_ms)
    return code


def _text_request(run: RunOptions, max_tokens: int, *, ignores_end: bool) -> ChatRequest:
    """The request of a command without its text or conversation."""
    return ChatRequest(
        (),
        subject="",
        max_tokens=max_tokens,
        seed=run.seed,
        decoder=run.decoder,
        sampler=run.sampler_options,
        ignores_end=ignores_end,
    )


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; a second Ctrl-C raises KeyboardInterrupt."""
    event = threading.Event()

    def catch(_number: int, _frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, catch)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _show_text(engine: Engine, request: ChatRequest, run: RunOptions, load_ms: float) -> tuple[int, str]:
    """Runs a request; prints the text on standard output, the thought, the canvas and the costs beside it.

    Returns the exit code and the text. After Ctrl-C the text is what is settled.
    """
    console = Console(stderr=True, highlight=False)
    stream = _TextStream()
    # a drawing is replaced by the text when it is complete
    is_streamed = not run.as_json and not (run.visual and console.is_terminal)
    screen = canvas_screen(console, drawing) if run.visual else nullcontext(lambda _frame: None)
    with _stop_on_interrupt() as stop, screen as show:

        def look(progress: Progress) -> None:
            frame = progress.frame()
            show(frame)
            if is_streamed:
                stream.add(frame)

        result = drain(engine.chat(replace(request, is_stopped=stop.is_set), deadline=run.end()), look)
    ended_by = "interrupted" if stop.is_set() else result.ending.value
    if run.as_json:
        print_json(_text_object(result, ended_by, load_ms))
    else:
        stream.finish(result)
        rate = f"{result.output_tokens} tokens, {_rate(result, result.output_tokens):.1f} tokens/s"
        print_line(f"{cost_line(result, load_ms)}; {rate}; ended by {ended_by}", err=True)
    return INTERRUPTED if stop.is_set() else 0 if result.text else 1, result.text


class _TextStream:
    """Prints the settled text as it grows, one frame late: the result may leave out a part of the last one."""

    def __init__(self) -> None:
        self._thought = ""
        self._text = ""
        self._newest = ""

    def add(self, frame: Frame) -> None:
        """Prints what one more pass has settled."""
        self._add(frame.thought, self._newest.rstrip("\ufffd"))
        self._newest = frame.settled_text

    def finish(self, result: FillResult) -> None:
        """Prints the rest, and the end of the line."""
        if not result.text.startswith(self._text):  # settled tokens have changed, which uniform noise allows
            self._write("\n")
            self._text = ""
        self._add(result.thought, result.text)
        if not self._text.endswith("\n"):
            self._write("\n")

    def _add(self, thought: str, text: str) -> None:
        """Prints what is new of the thought and of the text."""
        thought = thought.rstrip("\ufffd\n")
        if thought.startswith(self._thought) and thought != self._thought:
            typer.secho(for_stream(thought[len(self._thought) :], sys.stderr), dim=True, nl=False, err=True)
            self._thought = thought
        if text.startswith(self._text) and text != self._text:
            if self._thought and not self._text:
                typer.echo("\n", err=True)
            self._write(text[len(self._text) :])
            self._text = text

    def _write(self, text: str) -> None:
        typer.echo(for_stream(text, sys.stdout), nl=False)
        sys.stdout.flush()


def _text_object(result: FillResult, ended_by: str, load_ms: float) -> dict[str, Any]:
    """What `chat --json` and `generate --json` print, with the keys in the documented order."""
    return {
        "text": result.text,
        "thought": result.thought,
        "model": result.model,
        "ended_by": ended_by,
        "blocks": result.num_blocks,
        "canvas_tokens": result.canvas_tokens,
        "tokens": result.output_tokens,
        "tokens_per_second": round(_rate(result, result.output_tokens), 3),
        "canvas_tokens_per_second": round(_rate(result, result.canvas_tokens), 3),
        **costs(result, load_ms),
    }


def _rate(result: FillResult, amount: int) -> float:
    return 1e3 * amount / result.timings.denoise if result.timings.denoise else 0.0
