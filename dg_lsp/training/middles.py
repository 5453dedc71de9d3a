"""Which part of a file is asked for, as an editor would ask. Knows characters and lines only."""

import re
from dataclasses import dataclass

import numpy as np

BODY = re.compile(r"^([ ]*)(?:async )?(?:def|class|if|elif|else|for|while|with|try|except|finally|match|case)\b.*:$")
WORD_START = re.compile(r"(?<=[^\w])(?=\w)|(?<=[.(\[{,=:])")

MAX_LINES, MAX_BODY_LINES = 4, 12
MEAN_SPAN = 40  # characters
MAX_ROWS = 24  # lines after the chosen one that a middle may need to see


@dataclass(frozen=True, slots=True)
class MiddleShares:
    """How often each kind of middle is asked for; together 1."""

    line_rest: float = 0.45
    lines: float = 0.30
    span: float = 0.15
    body: float = 0.10

    def pick(self, rng: np.random.Generator) -> str:
        """The name of a kind."""
        names = ("line_rest", "lines", "span", "body")
        bounds = np.cumsum([getattr(self, name) for name in names])
        return names[min(int(np.searchsorted(bounds, rng.random(), side="right")), len(names) - 1)]


@dataclass(frozen=True, slots=True)
class Middle:
    """[start, end) in characters, relative to the start of the line it was chosen from."""

    start: int
    end: int


def pick_middle(lines: list[str], rng: np.random.Generator, shares: MiddleShares | None = None) -> Middle:
    """A middle that begins in `lines[0]`, which is not blank; `lines` are what follows, without their newlines."""
    kind, line = (shares or MiddleShares()).pick(rng), lines[0]
    indent = len(line) - len(line.lstrip())
    if kind == "line_rest":
        return Middle(indent + _cut(line[indent:], rng), len(line))
    if kind == "lines":
        start = indent if rng.random() < 0.5 else 0
        return Middle(start, _end_of(lines, int(rng.integers(min(MAX_LINES, len(lines))))))
    if kind == "body" and (last := _body_end(lines)):
        # an editor that indents by itself leaves the cursor after the first line's indentation
        given = len(lines[1]) - len(lines[1].lstrip()) if rng.random() < 0.5 else 0
        return Middle(len(line) + 1 + given, _end_of(lines, last))
    start = int(rng.integers(len(line)))
    end = start + 1 + int(rng.exponential(MEAN_SPAN))
    return Middle(start, min(end, _end_of(lines, len(lines) - 1)))


def _cut(body: str, rng: np.random.Generator) -> int:
    """Where the rest of a line begins: half at the start of a word, half anywhere, words included."""
    if rng.random() < 0.5:
        cuts = [match.start() for match in WORD_START.finditer(body) if match.start() < len(body)]
        return cuts[int(rng.integers(len(cuts)))] if cuts else 0
    return int(rng.integers(len(body)))


def _end_of(lines: list[str], last: int) -> int:
    """Offset of the end of line `last`; blank lines at the end of a middle are left out."""
    while last and not lines[last]:
        last -= 1
    return sum(map(len, lines[: last + 1])) + last


def _body_end(lines: list[str]) -> int:
    """The last line of the block that `lines[0]` opens, or 0 where it opens none or a long one."""
    opening = BODY.match(lines[0])
    if not opening:
        return 0
    outer, last = len(opening[1]), 0
    for i, line in enumerate(lines[1:], 1):
        if line and len(line) - len(line.lstrip()) <= outer:
            return last
        if line:
            last = i
        if last > MAX_BODY_LINES:
            return 0
    return 0
