"""The bar of a fetch, on standard error and only for who looks."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(name: str, total: int = 1) -> Iterator[Callable[[str, int, int | None], None]]:
    """Gives a function that is told what is being done, how much is done, and of how much where that differs."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)

        def look(what: str, done: int, of: int | None = None) -> None:
            progress.update(task, completed=done, total=of or total, description=f"{name}: {what}")

        yield look
