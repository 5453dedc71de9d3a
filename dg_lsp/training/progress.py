"""How a run is shown: a bar with losses, speed and time left in a terminal, plain lines elsewhere."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from dg_lsp.training.trainer import Report


def _losses(report: Report) -> str:
    return f"content {report.content:.3f}  fill {report.fill:.3f}  ar {report.following:.3f}"


def line(report: Report) -> str:
    """A report as one plain line; losses in nats."""
    left = timedelta(seconds=max(0, round(report.seconds_left)))
    return (
        f"step {report.step}  {report.tokens / 1e6:.2f} M tokens  {_losses(report)}  "
        f"{report.tokens_per_second:,.0f} tokens/s  rate {report.rate:.2e}  left {left}"
    )


@contextmanager
def shown(console: Console) -> Iterator[Callable[[Report | dict[str, Any]], None]]:
    """Yields what prints a report or a validation."""
    if not console.is_terminal:
        yield lambda news: console.print(
            line(news) if isinstance(news, Report) else json.dumps(news), soft_wrap=True, highlight=False
        )
        return
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("first batch", total=None)

        def show(news: Report | dict[str, Any]) -> None:
            if isinstance(news, Report):
                total = news.seconds + news.seconds_left
                progress.update(task, total=total, completed=news.seconds, description=line(news))
            else:
                progress.console.print(json.dumps(news), soft_wrap=True, highlight=False)

        yield show
