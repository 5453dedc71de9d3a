"""The output of commands: lines, tables, trees of facts, JSON, progress bars, notes and warnings.

Lines may contain text of files, folders, models and servers, which must not control a terminal.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import typer

from dg_lsp.errors import escaped, size_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from dg_lsp.models.packages import ShowStep


def print_line(*lines: object, err: bool = False) -> None:
    """Prints lines on standard output or standard error, with control characters and line ends in them as escapes."""
    for line in lines:
        typer.echo(escaped(str(line)), err=err)


def note(sentence: object) -> None:
    """Prints a sentence about the command itself on standard error."""
    print_line(f"dg-lsp: {sentence}", err=True)


def warn(sentence: object) -> None:
    """Prints a problem with its remedy on standard error; the command goes on."""
    note(f"warning: {sentence}")


def print_json(tree: object) -> None:
    """Prints one JSON object on one line, in ASCII."""
    typer.echo(json.dumps(tree))


_SIZES = ("bytes", "memory", "disk", "size", "bandwidth")
"""Parts of the names of numbers of bytes."""


def print_facts(tree: Mapping[str, object]) -> None:
    """Prints a tree of JSON values in two columns."""
    print_table([row for name, value in tree.items() for row in _fact_rows(name, value)])


def _fact_rows(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield _label(f"{name} {key}"), _fact_text(key, inner)
    elif isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
        for inner in value:
            yield _label(name), _fact_text(name, inner)
    else:
        yield _label(name), _fact_text(name, value)


def _label(name: object) -> str:
    """A key in words, without the unit, which stands beside the value."""
    return str(name).replace("_", " ").removesuffix(" bytes").removesuffix(" ms")


def _fact_text(name: object, value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_label(key)}: {_fact_text(key, inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_fact_text(name, inner) for inner in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "none" if value in (None, "") else str(value)
    is_size = value >= 1e6 and any(word in str(name) for word in _SIZES)
    number = size_text(value) if is_size else f"{value:.5g}" if value < 1e4 else f"{value:.0f}"
    unit = "/s" if str(name).endswith("bandwidth") else " ms" if str(name).endswith("_ms") else ""
    return f"{number}{unit}"


def plural(num: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{num} {noun}{'s' * (num != 1)}"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print_line("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _progress() -> "Progress":
    """Bars on standard error with the remaining time; a pipe gets nothing."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def progress_bar(description: str, total: float, done: int = 0) -> Iterator[Callable[[float], None]]:
    """A progress bar; yields the function that advances it."""
    with _progress() as bars:
        yield partial(bars.advance, bars.add_task(_plain(description), total=total, completed=done))


def _plain(description: str) -> str:
    """A description without the markup of rich, and with escapes for control characters."""
    from rich.markup import escape

    return escape(escaped(description))


@contextmanager
def step_progress() -> "Iterator[ShowStep]":
    """A progress bar; yields the function that shows a step and the fraction of it that is done."""
    with _progress() as bars:
        task = bars.add_task("preparing", total=None)

        def show(step: str, fraction: float | None) -> None:
            bars.update(task, description=_plain(step), completed=fraction or 0, total=None if fraction is None else 1)

        yield show
