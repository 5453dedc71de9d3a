"""Fills at listed places, beside what a person would expect there. Knows engine and files, loads no model."""

import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cattrs

from dg_lsp.engine.result import FillResult
from dg_lsp.errors import InputFileError


@dataclass(frozen=True, slots=True)
class ExpectedFill:
    """A cursor in a sample, and the texts that would be right there."""

    file: str
    line: int
    expect: list[str]
    col: int | None = None

    def is_met_by(self, fill: str) -> bool:
        """The fill's first line equals the first line of an expected text, blanks around them left out."""
        lines = fill.strip().splitlines()
        return bool(lines) and any(lines[0].strip() == text.strip().splitlines()[0].strip() for text in self.expect)


@dataclass(frozen=True, slots=True)
class SampleFill:
    """What came out at one place."""

    place: ExpectedFill
    result: FillResult
    ms: float

    @property
    def verdict(self) -> str:
        """`right`, `other` (which may be right, too), or the reason why there is nothing."""
        if not self.result.candidates:
            return self.result.rejections[0].reason.value if self.result.rejections else "empty"
        return "right" if self.place.is_met_by(self.result.text) else "other"


def read_places(path: Path) -> tuple[ExpectedFill, ...]:
    """The places of a TOML file.

    Raises:
        InputFileError: it cannot be read or is no list of places.
    """
    try:
        tree: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return tuple(cattrs.structure(place, ExpectedFill) for place in tree["places"])
    except (OSError, ValueError, KeyError, TypeError, cattrs.BaseValidationError) as error:
        raise InputFileError(f"cannot read places from {path}: {error}") from error


def fill_places(places: Iterable[ExpectedFill], fill: Callable[[ExpectedFill], FillResult]) -> Iterator[SampleFill]:
    """Fills one place after the other; `fill` opens the sample and asks an engine."""
    for place in places:
        start = time.perf_counter()
        result = fill(place)
        yield SampleFill(place, result, 1e3 * (time.perf_counter() - start))


def markdown_table(fills: Iterable[SampleFill]) -> Iterator[str]:
    """Lines of a Markdown table, one row per place, and a last line that counts."""
    yield "| place | expected | filled | verdict | steps | ms |"
    yield "|---|---|---|---|---|---|"
    num, num_right = 0, 0
    for fill in fills:
        num, num_right = num + 1, num_right + (fill.verdict == "right")
        place = fill.place
        where = f"{place.file}:{place.line}" + ("" if place.col is None else f":{place.col}")
        cells = (where, _code(place.expect[0]), _code(fill.result.text), fill.verdict)
        yield f"| {' | '.join(cells)} | {fill.result.steps} | {fill.ms:.0f} |"
    yield f"\n{num_right} of {num} as expected."


def _code(text: str) -> str:
    """One table cell; line ends as a sign, bars escaped."""
    shown = "↵".join(text.splitlines()).replace("|", "\\|")
    if not shown.strip():
        return ""
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"
