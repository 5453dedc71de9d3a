"""Test cases from the validation packages, in the format of HumanEval-Infilling.

Two sets share no line: `report` for published results, `tune` for thresholds.
"""

import ast
import io
import itertools
import random
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from enum import StrEnum

from tree_sitter import Parser

from dg_lsp.bench.dataset import TestCase
from dg_lsp.context.languages import grammar_of, language_id_of, language_of
from dg_lsp.errors import InputFileError
from dg_training.documents import WORD_START
from dg_training.store import CorpusFile


class CaseKind(StrEnum):
    """The part of a file that is the reference of a test case."""

    LINE_END = "line-end"  # from the start of a word to the end of the line
    WHOLE_LINE = "whole-line"  # a line after its indentation
    BLOCK = "block"  # whole statements after the first one's indentation, up to a dedent or a blank line


CASE_SETS = ("report", "tune")
PYTHON = "python"
FAMILIES = {"javascript": ("javascript", "javascriptreact"), "typescript": ("typescript", "typescriptreact")}
NUM_CASES: Mapping[CaseKind, int] = {CaseKind.LINE_END: 500, CaseKind.WHOLE_LINE: 300, CaseKind.BLOCK: 200}
NUM_OTHER_CASES: Mapping[CaseKind, int] = {CaseKind.LINE_END: 300, CaseKind.WHOLE_LINE: 300}
"""Of a language other than Python."""
MAX_TOKENS: Mapping[CaseKind, int] = {CaseKind.LINE_END: 30, CaseKind.WHOLE_LINE: 30, CaseKind.BLOCK: 64}
MIN_CHARS, MAX_CHARS = 8, 80  # of a line without its indentation
MIN_REST = 4  # characters of the rest of a line
MIN_BLOCK, MAX_BLOCK = 2, 8  # lines
FIRST_LINE = 3  # the first lines of a file cannot be predicted


class CodeLines:
    """The lines of a file, and which of them hold only code. Blocks are found in Python alone.

    Raises:
        SyntaxError, tokenize.TokenError: a Python file does not parse.
    """

    def __init__(self, file: CorpusFile) -> None:
        self.file = file
        self.lines = file.text.split("\n")
        self.starts = list(itertools.accumulate((len(line) + 1 for line in self.lines), initial=0))
        self.ends: dict[int, int] = {}  # last line of the longest statement that starts in a line
        self.language = language_id_of(file.path)
        if self.language != PYTHON:
            self.prose = set(_comments_and_texts(file.text, self.language))
            return
        tree = ast.parse(file.text)
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt):
                last = (node.end_lineno or node.lineno) - 1
                self.ends[node.lineno - 1] = max(last, self.ends.get(node.lineno - 1, 0))
        self.prose = set(_prose(file.text, tree))

    def is_code(self, line: int) -> bool:
        """Whether a line holds code, and no comment, docstring or part of a string of several lines."""
        return line not in self.prose and bool(self.lines[line].strip())

    def indent(self, line: int) -> int:
        """Width of a line's indentation."""
        return len(self.lines[line]) - len(self.lines[line].lstrip())

    def block_end(self, first: int) -> int | None:
        """The last line of the block of whole statements that starts at `first`, or None."""
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

    def draw_case(self, kind: CaseKind, first: int, rng: random.Random) -> tuple[TestCase, range] | None:
        """A test case whose reference starts in line `first`, and the reference's lines; None if there is none."""
        last = first
        cut = 0
        body = self.lines[first].strip()
        if kind is CaseKind.BLOCK:
            last = self.block_end(first) or 0
        elif not (self.is_code(first) and MIN_CHARS <= len(body) <= MAX_CHARS):
            return None
        elif kind is CaseKind.LINE_END:
            cuts = [match.start() for match in WORD_START.finditer(body) if 0 < match.start() <= len(body) - MIN_REST]
            cuts = [cut for cut in cuts if any(map(str.isalnum, body[cut:]))]
            cut = rng.choice(cuts) if cuts else 0
        if not last or (kind is CaseKind.LINE_END and not cut):
            return None
        column = self.indent(first) + cut
        start = self.starts[first] + column
        end = self.starts[last + 1] - 1
        text = self.file.text
        path = f"{self.file.package}/{self.file.path}"
        name = f"{kind}/{path}:{first + 1}:{column}"
        case = TestCase(name, kind, text[:start], text[end:], text[start:end], path=path, language=self.language)
        return case, range(first, last + 1)


def _prose(text: str, tree: ast.Module) -> Iterator[int]:
    """Lines with a comment, a docstring or a part of a string of several lines."""
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


def _comments_and_texts(text: str, language: str) -> Iterator[int]:
    """The same lines in another language, by its grammar."""
    grammar = grammar_of(language_of(language).grammar)
    if grammar is None:
        raise InputFileError(f"{language} has no grammar that is installed")
    nodes = [Parser(grammar).parse(text.encode()).root_node]
    while nodes:
        node = nodes.pop()
        first, last = node.start_point.row, node.end_point.row
        if "comment" in node.type or ("string" in node.type and last > first):
            yield from range(first, last + 1)
        else:
            nodes += node.children


def draw_cases(
    files: Iterable[CorpusFile],
    encode: Callable[[str], Sized],
    case_set: str = "report",
    num_cases: Mapping[CaseKind, int] | None = None,
    language: str = PYTHON,
) -> list[TestCase]:
    """The test cases of one set, always the same ones. `tune` is drawn after `report`, from the lines that are left.

    `num_cases` of each kind are 500, 300 and 200 in Python, and 300 of each kind of one line in other languages.

    Raises:
        InputFileError: the files do not hold that many test cases.
    """
    rng = random.Random(1)
    num_cases = num_cases or (NUM_CASES if language == PYTHON else NUM_OTHER_CASES)
    wanted = FAMILIES.get(language, (language,))
    codes = [code for file in files if language_id_of(file.path) in wanted and (code := _parse(file))]
    positions = [(code, line) for code in codes for line in range(FIRST_LINE, len(code.lines) - 1)]
    rng.shuffle(positions)
    used: set[tuple[str, int]] = set()
    cases: list[TestCase] = []

    def draw(kind: CaseKind) -> Iterator[TestCase]:
        for code, line in positions:
            if not (drawn := code.draw_case(kind, line, rng)):
                continue
            case, lines = drawn
            covered = {(case.path, n) for n in lines}
            if used.isdisjoint(covered) and len(encode(case.reference)) <= MAX_TOKENS[kind]:
                used.update(covered)
                yield case

    for _ in range(CASE_SETS.index(case_set) + 1):
        cases = []
        for kind in (kind for kind in reversed(CaseKind) if kind in num_cases):  # blocks are the rarest
            cases += itertools.islice(draw(kind), num_cases[kind])
            if missing := num_cases[kind] - sum(case.kind == kind for case in cases):
                raise InputFileError(f"the files have {missing} test cases too few of kind {kind}")
    return cases


def _parse(file: CorpusFile) -> CodeLines | None:
    try:
        return CodeLines(file)
    except (SyntaxError, tokenize.TokenError):  # of a later Python
        return None
