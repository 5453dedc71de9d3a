"""Places to fill in the held-out packages, in the format of HumanEval-Infilling. Knows text and syntax, no model.

Two sets that share no line: `report` is what results are told of, `tune` is for thresholds and tables.
"""

import ast
import gzip
import io
import json
import random
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dg_lsp.training.corpus import SourceFile
from dg_lsp.training.middles import WORD_START


class Kind(StrEnum):
    """What is asked for."""

    LINE_END = "line-end"  # from a word start to the end of the line
    WHOLE_LINE = "whole-line"  # a line after its indentation
    BLOCK = "block"  # whole statements after the first one's indentation, up to a dedent or a blank line


class Split(StrEnum):
    """Which of the two sets."""

    REPORT = "report"
    TUNE = "tune"


COUNTS: Mapping[Kind, int] = {Kind.LINE_END: 500, Kind.WHOLE_LINE: 300, Kind.BLOCK: 200}
MAX_TOKENS: Mapping[Kind, int] = {Kind.LINE_END: 30, Kind.WHOLE_LINE: 30, Kind.BLOCK: 64}
MIN_CHARS, MAX_CHARS = 8, 80  # of a line without its indentation
MIN_REST = 4  # characters of the rest of a line
MIN_BLOCK, MAX_BLOCK = 2, 8  # lines
FIRST_LINE = 3  # nothing can be known of a file's first lines


@dataclass(frozen=True, slots=True)
class HeldOutSite:
    """text[start:end] of a file is what was taken out; it lies in the lines [first, last], counted from 0."""

    kind: Kind
    file: SourceFile
    start: int
    end: int
    first: int
    last: int

    def row(self) -> dict[str, str]:
        """One line of the file: there are no tests, so `test` and `entry_point` are empty."""
        text, path = self.file.text, f"{self.file.package}/{self.file.path}"
        column = self.start - (text.rfind("\n", 0, self.start) + 1)
        return {
            "task_id": f"{self.kind}/{path}:{self.first + 1}:{column}",
            "prompt": text[: self.start],
            "suffix": text[self.end :],
            "canonical_solution": text[self.start : self.end],
            "test": "",
            "entry_point": "",
            "kind": self.kind,
            "path": path,
        }


class CodeLines:
    """The lines of a file with what may be asked for: code, without comments, docstrings and strings over lines."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.lines = file.text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        tree = ast.parse(file.text)
        self.ends: dict[int, int] = {}  # last line of the longest statement that begins in a line
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt):
                last = (node.end_lineno or node.lineno) - 1
                self.ends[node.lineno - 1] = max(last, self.ends.get(node.lineno - 1, 0))
        self.prose = set(_prose(file.text, tree))

    def is_code(self, number: int) -> bool:
        """Whether a line holds nothing but code."""
        return number not in self.prose and bool(self.lines[number].strip())

    def is_askable(self, number: int) -> bool:
        """Whether a single line is worth asking for."""
        return self.is_code(number) and MIN_CHARS <= len(self.lines[number].strip()) <= MAX_CHARS

    def indent(self, number: int) -> int:
        """Blanks before the code of a line."""
        return len(self.lines[number]) - len(self.lines[number].lstrip())

    def block_end(self, first: int) -> int | None:
        """The last line of the statements that begin at `first`, where they make a block."""
        before = self.lines[first - 1].rstrip()
        if before and not before.endswith(":"):
            return None
        after = first
        while after < len(self.lines) and self.lines[after].strip() and self.indent(after) >= self.indent(first):
            after += 1
        line = first
        while line < after:
            line = self.ends.get(line, len(self.lines)) + 1
        is_whole = line == after and all(map(self.is_code, range(first, after)))
        return after - 1 if is_whole and MIN_BLOCK <= after - first <= MAX_BLOCK else None


def _prose(text: str, tree: ast.Module) -> Iterator[int]:
    """Lines with a comment, a docstring or a part of a string that goes over several lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0] - 1
    for node in ast.walk(tree):
        is_alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        if isinstance(node, ast.expr | ast.Expr) and (is_alone or is_text):
            last = node.end_lineno or node.lineno
            if is_alone or last > node.lineno:
                yield from range(node.lineno - 1, last)


def _line_end(code: CodeLines, number: int, rng: random.Random) -> HeldOutSite | None:
    body, indent = code.lines[number].strip(), code.indent(number)
    cuts = [match.start() for match in WORD_START.finditer(body) if 0 < match.start() <= len(body) - MIN_REST]
    cuts = [cut for cut in cuts if any(map(str.isalnum, body[cut:]))]
    if not code.is_askable(number) or not cuts:
        return None
    start = code.starts[number] + indent + rng.choice(cuts)
    return HeldOutSite(Kind.LINE_END, code.file, start, code.starts[number + 1] - 1, number, number)


def _whole_line(code: CodeLines, number: int, _rng: random.Random) -> HeldOutSite | None:
    if not code.is_askable(number):
        return None
    start = code.starts[number] + code.indent(number)
    return HeldOutSite(Kind.WHOLE_LINE, code.file, start, code.starts[number + 1] - 1, number, number)


def _block(code: CodeLines, number: int, _rng: random.Random) -> HeldOutSite | None:
    last = code.block_end(number)
    if last is None:
        return None
    start = code.starts[number] + code.indent(number)
    return HeldOutSite(Kind.BLOCK, code.file, start, code.starts[last + 1] - 1, number, last)


_MAKERS: Mapping[Kind, Callable[[CodeLines, int, random.Random], HeldOutSite | None]] = {
    Kind.LINE_END: _line_end,
    Kind.WHOLE_LINE: _whole_line,
    Kind.BLOCK: _block,
}


def held_out_sites(
    files: Sequence[SourceFile],
    encode: Callable[[str], Sequence[int]],
    split: Split = Split.REPORT,
    counts: Mapping[Kind, int] = COUNTS,
    seed: int = 1,
) -> list[HeldOutSite]:
    """The sites of one set, the same every time. `tune` is drawn after `report`, from the lines that are left.

    Raises ValueError where the files do not hold that many places.
    """
    rng = random.Random(seed)
    codes = [code for file in files if (code := _read(file))]
    places = [(i, number) for i, code in enumerate(codes) for number in range(FIRST_LINE, len(code.lines) - 1)]
    rng.shuffle(places)
    taken: set[tuple[int, int]] = set()
    found: list[HeldOutSite] = []
    for _ in range(list(Split).index(split) + 1):
        found = list(_draw(codes, places, taken, counts, encode, rng))
    return found


def _read(file: SourceFile) -> CodeLines | None:
    try:
        return CodeLines(file)
    except (SyntaxError, tokenize.TokenError):  # of a later Python
        return None


def _draw(
    codes: list[CodeLines],
    places: list[tuple[int, int]],
    taken: set[tuple[int, int]],
    counts: Mapping[Kind, int],
    encode: Callable[[str], Sequence[int]],
    rng: random.Random,
) -> Iterator[HeldOutSite]:
    """Blocks first: they are the rarest."""
    for kind in reversed(Kind):
        left = counts[kind]
        for i, number in places:
            site = _MAKERS[kind](codes[i], number, rng) if left else None
            if site is None or not taken.isdisjoint((i, n) for n in range(site.first, site.last + 1)):
                continue
            if len(encode(site.file.text[site.start : site.end])) <= MAX_TOKENS[kind]:
                taken.update((i, n) for n in range(site.first, site.last + 1))
                left -= 1
                yield site
        if left:
            raise ValueError(f"the held-out files have {left} places too few of kind {kind}")


def write_sites(path: Path, sites: Sequence[HeldOutSite]) -> None:
    """One JSON object a line, gzip; the same bytes for the same sites."""
    lines = "".join(json.dumps(site.row()) + "\n" for site in sites)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))
