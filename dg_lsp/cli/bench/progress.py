"""How far a measurement is, on standard error; a pipe gets nothing."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def tracked(items: Sequence[Item], description: str, *, done: int = 0) -> Iterator[Item]:
    """The items one by one, under a bar with the time left; `done` of them were measured in an earlier session."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(description, total=done + len(items), completed=done)
        for item in items:
            yield item
            bar.advance(task)
