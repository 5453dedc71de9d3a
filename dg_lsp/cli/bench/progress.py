"""How far a measurement is, on standard error; a pipe gets nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


def tracked(items: Sequence[Item], description: str, *, done: int = 0) -> Iterator[Item]:
    """The items one by one, under a bar with the time left; `done` of them were measured in an earlier session."""
    with progress_bar(description, done + len(items), done=done) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def progress_bar(description: str, total: int, *, done: int = 0) -> Iterator[Callable[[int], None]]:
    """A bar with the time left; what it gives is told how much more is done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(
        *columns, TextColumn("left"), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    )
    with bar:
        task = bar.add_task(description, total=total, completed=done)
        yield lambda more: bar.advance(task, more)
