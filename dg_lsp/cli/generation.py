"""Runs a text or an answer on the command line: streams it, shows the canvas, and prints the costs at the end."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from dg_lsp.cli import INTERRUPTED
from dg_lsp.cli.output import Screen, draft_text, for_stream, plural, times
from dg_lsp.cli.printing import print_json, print_line

if TYPE_CHECKING:
    from dg_lsp.cli.options import TextOptions
    from dg_lsp.engine.decoders.base import Progress
    from dg_lsp.engine.engine import Engine
    from dg_lsp.engine.request import ChatRequest
    from dg_lsp.engine.result import FillResult, Frame


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; a second Ctrl-C raises KeyboardInterrupt. Only the main thread can catch them."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def catch(_number: int, _frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, catch)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def show_text(
    engine: "Engine", request: "ChatRequest", options: "TextOptions", load_ms: float, *, hides_thought: bool = False
) -> tuple[int, str]:
    """Runs a request; prints the text on standard output, the thought, the canvas and the costs beside it.

    Returns the exit code and the text. After Ctrl-C the text is what is settled.
    """
    from dg_lsp.engine.engine import drain

    stream = None if options.as_json else TextStream(hides_thought=hides_thought)
    screen = Screen(Console(stderr=True, highlight=False), _end_of) if options.visual else None

    def show(progress: "Progress") -> None:
        frame = engine.frame(progress)
        if screen is not None:
            screen.add(frame)
        if stream is not None and not (screen and screen.is_live):  # the text is printed when the screen is gone
            stream.add(frame)

    with stop_on_interrupt() as stop, screen or nullcontext():
        request = replace(request, is_stopped=stop.is_set)
        result = drain(engine.chat(request, deadline=options.end()), show)
    if screen is not None:
        screen.print_rows()
    ended_by = "interrupted" if stop.is_set() else result.ending.value
    if stream is None:
        print_json(_object(result, ended_by, load_ms))
    else:
        stream.finish(result)
        print_line(summary_line(result, ended_by, load_ms), err=True)
    return INTERRUPTED if stop.is_set() else 0 if result.text else 1, result.text


class TextStream:
    """Prints the settled text as it grows, one frame late: the result may leave out a part of the last one."""

    def __init__(self, *, hides_thought: bool) -> None:
        self._hides_thought = hides_thought
        self._thought = self._text = self._newest = ""

    def add(self, frame: "Frame") -> None:
        """Prints what one more pass has settled."""
        self._add_thought(frame.thought)
        settled, self._newest = self._newest, frame.settled_text
        self._add_text(settled.rstrip("\ufffd"))

    def finish(self, result: "FillResult") -> None:
        """Prints the rest, and the end of the line."""
        self._add_thought(result.thought)
        if not result.text.startswith(self._text):  # settled tokens have changed, which uniform noise allows
            self._write("\n")
            self._text = ""
        self._add_text(result.text)
        if not self._text.endswith("\n"):
            self._write("\n")

    def _add_thought(self, thought: str) -> None:
        thought = thought.rstrip("\ufffd\n")
        if self._hides_thought or not thought.startswith(self._thought) or thought == self._thought:
            return
        typer.secho(for_stream(thought[len(self._thought) :], sys.stderr), dim=True, nl=False, err=True)
        self._thought = thought

    def _add_text(self, text: str) -> None:
        if not text.startswith(self._text) or text == self._text:
            return
        if self._thought and not self._text:
            typer.echo("\n", err=True)
        self._write(text[len(self._text) :])
        self._text = text

    def _write(self, text: str) -> None:
        typer.echo(for_stream(text, sys.stdout), nl=False)
        sys.stdout.flush()


def _end_of(frame: "Frame", height: int) -> Text:
    """The last lines of the text that fit."""
    return Text("\n").join(draft_text(frame).split("\n", allow_blank=True)[-max(1, height // 2) :])


def summary_line(result: "FillResult", ended_by: str, load_ms: float) -> str:
    """Speed and costs on one line."""
    seconds, timings = result.timings.denoise / 1e3, result.timings
    steps = plural(result.steps, "step")
    canvases = steps
    if result.num_blocks:
        blocks = f"{result.num_blocks} canvas{'es' * (result.num_blocks != 1)} of {result.canvas_length} tokens"
        speed = f"{_rate(result.canvas_tokens, seconds):.0f} canvas tokens/s"
        canvases = f"{blocks}, {steps}, {result.tokens_per_forward:.1f} tokens per step, {speed}"
    return (
        f"{result.model}: {result.output_tokens} tokens in {seconds:.2f} s,"
        f" {_rate(result.output_tokens, seconds):.1f} tokens/s; {result.decoder.value}, {canvases};"
        f" prompt {result.prompt_tokens} tokens, {result.cached_tokens} cached, {timings.prefill:.0f} ms;"
        f" {load_ms:.0f} ms load; ended by {ended_by}"
    )


def _object(result: "FillResult", ended_by: str, load_ms: float) -> dict[str, Any]:
    """Keys in the documented order."""
    seconds = result.timings.denoise / 1e3
    return {
        "text": result.text,
        "thought": result.thought,
        "model": result.model,
        "ended_by": ended_by,
        "decoder": result.decoder.value,
        "canvas_length": result.canvas_length,
        "blocks": result.num_blocks,
        "canvas_tokens": result.canvas_tokens,
        "steps": result.steps,
        "tokens": result.output_tokens,
        "tokens_per_forward": round(result.tokens_per_forward, 3),
        "tokens_per_second": round(_rate(result.output_tokens, seconds), 3),
        "canvas_tokens_per_second": round(_rate(result.canvas_tokens, seconds), 3),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "timings_ms": times(result.timings, load_ms, "prefill", "denoise"),
    }


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0
