"""`FILE:LINE[:COL]` as a person types it."""

import re
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.errors import PositionError, UsageError

_NUMBER = "[0-9]{1,12}"
_LINES = re.compile(f"(?P<path>.+):(?P<first>{_NUMBER})(?:-(?P<last>{_NUMBER}))?", re.DOTALL)
_BOTH = re.compile(f"(?P<path>.+):(?P<line>{_NUMBER}):(?P<column>{_NUMBER})", re.DOTALL)
_LINE = re.compile(f"(?P<path>.+):(?P<line>{_NUMBER})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Location:
    """A cursor in a file."""

    path: Path
    line: int
    """From 1."""
    column: int | None = None
    """From 1, in characters; the cursor stands before that character. None is the end of the line."""

    @classmethod
    def parse(cls, text: str) -> "Location":
        """Numbers are read from the right, so colons in the path and drive letters stay in the path.

        Raises:
            UsageError: there is no line number.
            PositionError: a line or column of 0.
        """
        both, line = _BOTH.fullmatch(text), _LINE.fullmatch(text)
        if both and line and not _is_there(both["path"]) and _is_there(line["path"]):
            both = None  # a file whose own name ends in a colon and a number
        match = both or line
        if match is None:
            raise UsageError(f"{text}: expected FILE:LINE or FILE:LINE:COL, for example samples/shapes.py:12")
        column = int(match["column"]) if match is both else None
        if int(match["line"]) == 0 or column == 0:
            raise PositionError(f"{text}: lines and columns are counted from 1")
        return cls(Path(match["path"]), int(match["line"]), column)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + ("" if self.column is None else f":{self.column}")


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of a file, counted from 1, both ends included."""

    path: Path
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Lines":
        """`FILE:FIRST-LAST`, or `FILE:LINE`.

        Raises:
            UsageError: it is no such thing.
            PositionError: a line of 0, or a range that runs backwards.
        """
        match = _LINES.fullmatch(text)
        if match is None:
            raise UsageError(f"{text}: expected FILE:FIRST-LAST, for example samples/shapes.py:12-16")
        first = int(match["first"])
        last = int(match["last"] or first)
        if first == 0 or last < first:
            raise PositionError(f"{text}: lines are counted from 1, the first one first")
        return cls(Path(match["path"]), first, last)


def _is_there(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name that is too long, a directory that may not be looked into
        return False
