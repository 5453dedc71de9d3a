"""Fills at the cursor positions of a TOML file, next to the texts that are right there."""

import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import cattrs

from dg_lsp.bench.tables import Table
from dg_lsp.engine.result import FillResult
from dg_lsp.errors import InputFileError


@dataclass(frozen=True, slots=True)
class SamplePosition:
    """A cursor in a sample file."""

    file: str
    line: int
    expect: list[str]
    """Right texts."""
    col: int | None = None

    def is_right(self, fill: str) -> bool:
        """True if the first line of the fill is that of an expected text, without blanks around it."""
        lines = fill.strip().splitlines()
        return bool(lines) and any(lines[0].strip() == text.strip().splitlines()[0].strip() for text in self.expect)


def read_positions(path: Path) -> tuple[SamplePosition, ...]:
    """Reads the list `places` of a TOML file.

    Raises:
        InputFileError: the file is unreadable or has no such list.
    """
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        return tuple(cattrs.structure(place, SamplePosition) for place in tree["places"])
    except (OSError, ValueError, KeyError, TypeError, cattrs.BaseValidationError) as error:
        raise InputFileError(f"cannot read cursor positions from {path}: {error}") from error


def sample_table(positions: Iterable[SamplePosition], fill: Callable[[SamplePosition], FillResult]) -> Table:
    """Fills all positions; one row for each."""
    rows = []
    for position in positions:
        start = time.perf_counter()
        result = fill(position)
        ms = 1e3 * (time.perf_counter() - start)
        name = f"{position.file}:{position.line}" + ("" if position.col is None else f":{position.col}")
        texts = (_code(position.expect[0]), _code(result.text))
        rows.append((name, *texts, _verdict(position, result), str(result.steps), f"{ms:.0f}"))
    num_right = sum(row[3] == "right" for row in rows)
    columns = ("position", "expected", "filled", "verdict", "steps", "ms")
    return Table(f"{num_right} of {len(rows)} as expected", columns, {"": rows})


def _verdict(position: SamplePosition, result: FillResult) -> str:
    """`right`, `other` (which may be right, too), or the reason why there is no fill."""
    if result.candidates:
        return "right" if position.is_right(result.text) else "other"
    return result.rejections[0].reason.value if result.rejections else "empty"


def _code(text: str) -> str:
    """A table cell with visible line ends and escaped bars."""
    shown = "↵".join(text.splitlines()).replace("|", "\\|")
    if not shown.strip():
        return ""
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"
